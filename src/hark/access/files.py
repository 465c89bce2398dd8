"""Files that change while a server runs, detected by their metadata."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

Look = tuple[int, int, int, int] | None
"""Metadata that changes with the file; None: the file does not exist."""


def look_at(path: Path) -> Look:
    """Return the metadata of a file. An inaccessible file counts as missing."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_secret(path: Path) -> bytes:
    """Return the content of a secret file; log a warning if other users can access it."""
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            log.warning(
                "other users can read or write the secret file %s (mode %o); restrict it with: chmod 600 %s",
                path,
                mode,
                path,
            )
        return file.read()
