"""A temporary folder that does not outlive its process for long.

A process that is killed can't remove its folder, and its database may be large. So each holds a lock on its own, and
removes those of others that nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "hark-s3-"
_UNFINISHED = "new-"
_LOCK = "lock"


class ScratchFolder:
    """A new folder in the temporary directory of this machine, or in `parent`."""

    def __init__(self, parent: Path | None = None) -> None:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        made = Path(tempfile.mkdtemp(prefix=_UNFINISHED + PREFIX, dir=parent))
        self._lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # It gets the name that others look for once it is held.
        self.path = made.rename(parent / made.name.removeprefix(_UNFINISHED))
        _remove_orphans(parent)

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_orphans(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        # Those of other users, and those that somebody else is just removing, are none of our business.
        with contextlib.suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
