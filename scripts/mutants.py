"""Makes faults on purpose, one at a time and in a copy of the tree, and sees whether the tests find them.

The faults are in mutants.toml. The tests nearest to a fault run first; only for one that survives them the whole suite
runs. A test that fails counts only if it passes without the fault.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

import msgspec

TREE = Path(__file__).parent.parent
NEAREST_SECONDS = 180
WHOLE_SECONDS = 3600
"""Tests that do not end within these hang, and a hang is found too."""
GIVE_UP_SECONDS = 20
# In the order of the files: in another one a test might fail for another reason than the fault.
ORDERED = ("--randomly-dont-reorganize", "--randomly-dont-reset-seed")
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-rfE", "--tb=no", *ORDERED)
ALONE = ("-n", "0", "--timeout", "60")
TOGETHER = ("-n", str((os.cpu_count() or 1) + 2), "--dist", "worksteal")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::\w+(?:\[.*\])?|\S+)(?: - .*)?$", re.MULTILINE)
_PASSED, _SELECTED_NOTHING = 0, 5


class Mutant(msgspec.Struct, forbid_unknown_fields=True):
    """One fault."""

    name: str
    file: str
    old: str
    new: str
    breaks: str
    nearest: str


class Run(NamedTuple):
    """What a run of tests came to."""

    passed: bool
    by: str
    """The first test that failed; empty: none did, or it hung."""


class Unusable(Exception):
    """The list or the tests are wrong, so that nothing can be said."""


def read_mutants(names: list[str]) -> list[Mutant]:
    """All mutants, or those with these names."""
    listed = tomllib.loads((TREE / "scripts/mutants.toml").read_text())["mutant"]
    mutants = {one.name: one for one in msgspec.convert(listed, list[Mutant])}
    unknown = [name for name in names if name not in mutants]
    if unknown or len(mutants) != len(listed):
        raise Unusable(f"no such mutant: {', '.join(unknown)}" if unknown else "two mutants have the same name")
    return [mutants[name] for name in names] or list(mutants.values())


def copy_tree(target: Path, checkout: Path) -> None:
    """The sources of this tree with the tests, and what belongs to them, of a checkout."""
    # With compiled files: they go by the times of their sources, which are kept, so that only the mutant is compiled.
    ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", "src")
    shutil.copytree(checkout, target, ignore=ignored)
    shutil.copytree(TREE / "src", target / "src")
    (target / ".venv").symlink_to((TREE / ".venv").resolve())


def apply(mutant: Mutant, copy: Path) -> None:
    """Make the fault."""
    path = copy / "src/hark" / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise Unusable(f"{mutant.name}: `old` is {text.count(mutant.old)} times in {mutant.file}, expected once")
    path.write_text(text.replace(mutant.old, mutant.new))


def run_tests(copy: Path, arguments: list[str], seconds: int) -> Run:
    """Run tests of a copy, and its sources in them, in all processes that they start."""
    python = str(copy / ".venv/bin/python")
    environment = os.environ | {"PYTHONPATH": str(copy / "src")}
    found = subprocess.check_output([python, "-c", "import hark; print(hark.__file__)"], env=environment, text=True)
    if not Path(found).is_relative_to(copy / "src"):
        raise Unusable(f"the tests would not run {copy / 'src'} but {found.strip()}")
    process = subprocess.Popen(
        [python, *PYTEST, *arguments],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return Run(False, "")
    finally:
        _end(process)
    if process.returncode == _PASSED:
        return Run(True, "")
    failed = _FAILED.search(output)
    if process.returncode == _SELECTED_NOTHING or failed is None:
        raise Unusable(f"pytest {shlex.join(arguments)} ended with code {process.returncode}:\n{output[-2000:]}")
    return Run(False, failed[1])


def _end(process: subprocess.Popen[str]) -> None:
    """Let fixtures stop their servers, if it hangs; then end whatever is left of it."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GIVE_UP_SECONDS)


def finder_of(mutant: Mutant, checkout: Path, folder: Path, only_nearest: bool) -> str | None:
    """What finds a mutant; None: nothing does."""
    copy, clean = folder / "copy", folder / "clean"
    copy_tree(copy, checkout)
    try:
        apply(mutant, copy)
        nearest = shlex.split(mutant.nearest)
        for arguments, seconds in (([*nearest, *ALONE], NEAREST_SECONDS), ([*TOGETHER], WHOLE_SECONDS)):
            run = run_tests(copy, arguments, seconds)
            if not run.passed:
                if not clean.exists():
                    copy_tree(clean, checkout)
                if not run_tests(clean, [run.by, *ALONE] if run.by else arguments, seconds).passed:
                    raise Unusable(f"{run.by or mutant.nearest} fails without the mutant too")
                return run.by or f"a hang of {shlex.join(arguments)}"
            if only_nearest:
                break
    finally:
        shutil.rmtree(copy)
    return None


def main() -> int:
    """Try mutants; 1 if any survives, 2 if nothing can be said of one."""
    parser = argparse.ArgumentParser(
        prog="scripts/mutants", description="Make faults and see whether the tests find them."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="mutants of scripts/mutants.toml; all if none is given"
    )
    parser.add_argument("--list", action="store_true", help="show them and make none")
    parser.add_argument("--only-nearest", action="store_true", help="do not run the whole suite for those that survive")
    parser.add_argument("--tests", type=Path, default=TREE, metavar="DIR", help="use the tests of another checkout")
    options = parser.parse_args()
    # A process in the background ignores Ctrl-C, and so would all that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    survived, unusable = 0, 0
    try:
        mutants = read_mutants(options.names)
    except Unusable as error:
        parser.error(str(error))
    for mutant in mutants:
        if options.list:
            print(f"{mutant.name}: {mutant.breaks}")
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="hark-mutant-") as folder:
            try:
                by = finder_of(mutant, options.tests.resolve(), Path(folder), options.only_nearest)
                word, what = ("survived", mutant.breaks) if by is None else ("found", by)
            except Unusable as error:
                word, what = "unusable", str(error)
        survived += word == "survived"
        unusable += word == "unusable"
        print(f"{word:8}  {mutant.name:42}  {time.monotonic() - began:6.1f} s  {what}", flush=True)
    if not options.list:
        print(
            f"{len(mutants) - survived - unusable} found, {survived} survived"
            + f", {unusable} unusable" * bool(unusable)
        )
    return 2 if unusable else min(survived, 1)


if __name__ == "__main__":
    sys.exit(main())
