"""Files that others change while a server runs: noticed by what the file system says about them."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

Look = tuple[int, int, int, int] | None
"""What tells one state of a file from another; None: there is no file."""


def look_at(path: Path) -> Look:
    """How the file is now; a file that can't be looked at is as good as none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_secret(path: Path) -> bytes:
    """The content of a file that only its owner should be able to read, with a warning if that is not so."""
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            log.warning(
                "others can read or write %s (mode %o); make it yours alone with: chmod 600 %s", path, mode, path
            )
        return file.read()
