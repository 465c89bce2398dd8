"""The folder of the scratch database goes with its process, or after it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hark.engine.s3.replica.folder import PREFIX, ScratchFolder

DIES = """
import os, sys
from pathlib import Path
from hark.engine.s3.replica.folder import ScratchFolder
folder = ScratchFolder(Path(sys.argv[1]))
(folder.path / "state").write_text("large")
print(folder.path, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_folder_is_removed_at_the_end(tmp_path: Path) -> None:
    folder = ScratchFolder(tmp_path)
    assert folder.path.name.startswith(PREFIX)
    (folder.path / "state").write_text("something")
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_who_comes_next_removes_the_folder_of_one_that_was_killed(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=False)
    assert killed.returncode == -9
    left = Path(killed.stdout.strip())
    assert (left / "state").exists()
    folder = ScratchFolder(tmp_path)
    assert list(tmp_path.iterdir()) == [folder.path]
    folder.close()


def test_folders_in_use_and_those_of_other_programs_stay(tmp_path: Path) -> None:
    foreign = tmp_path / f"{PREFIX}of-somebody-else"
    foreign.mkdir()
    first = ScratchFolder(tmp_path)
    second = ScratchFolder(tmp_path)
    assert {*tmp_path.iterdir()} == {foreign, first.path, second.path}
    first.close()
    second.close()
    assert list(tmp_path.iterdir()) == [foreign]
