"""The wheel, installed into an environment that has nothing but what the wheel says that it needs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.servers import server_process

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKER = """
import hark

worker = hark.Worker(queue="greetings")


@worker.task
def greet(name: str) -> None:
    print(f"hello {name}", flush=True)
"""
SAY = "import asyncio, app; asyncio.run(app.greet.push('ada'))"


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a program without the settings of the shell, and return what it prints."""
    done = subprocess.run(
        command, cwd=cwd, env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def needed(requirements: list[str], found: dict[str, Distribution]) -> dict[str, Distribution]:
    """The distributions that these requirements name, and those that they need."""
    for requirement in map(Requirement, requirements):
        for extra in requirement.extras or {""}:
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            if requirement.name not in found:
                found[requirement.name] = distribution(requirement.name)
                needed(found[requirement.name].requires or [], found)
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel and its dependencies, which are those of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT, cwd=folder, HOME=str(folder))
    [wheel] = folder.glob("*.whl")
    assert wheel.name.startswith("hark_mq-")
    target = folder / "environment"
    venv.create(target, symlinks=True)
    [site] = target.glob("lib/python*/site-packages")
    for one in needed(PROJECT["dependencies"], {}).values():
        tops = {file.parts[0] for file in one.files or [] if file.parts[0] != ".."}
        for top in tops - {"__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(str(one.locate_file(top)))
    run(*pip, "--python", target / "bin" / "python", "install", "--no-index", wheel, cwd=folder, HOME=str(folder))
    return target / "bin"


def test_it_serves_pushes_pops_and_works_from_a_wheel(installed: Path, tmp_path: Path) -> None:
    hark, python = installed / "hark", installed / "python"
    home = run(python, "-c", "import hark; print(hark.__file__)", cwd=tmp_path)
    assert Path(home).is_relative_to(installed.parent)
    (tmp_path / "app.py").write_text(WORKER)
    with server_process(tmp_path, engine="sqlite:///hark.db", hark=[str(hark)]) as url:
        run(hark, "push", "orders", '{"id": 1}', cwd=tmp_path, HARK_URL=url)
        popped = json.loads(run(hark, "pop", "orders", "--json", cwd=tmp_path, HARK_URL=url))
        assert [message["data"] for message in popped["messages"]] == [{"id": 1}]
        run(python, "-c", SAY, cwd=tmp_path, HARK_URL=url)
        assert run(hark, "work", "app:worker", "--burst", cwd=tmp_path, HARK_URL=url) == "hello ada\n"


@pytest.mark.parametrize("extra", ["postgres", "s3"])
def test_what_an_extra_brings_is_named_with_the_name_of_the_distribution(
    installed: Path, tmp_path: Path, extra: str
) -> None:
    engine = {"postgres": "postgresql://127.0.0.1/x", "s3": "s3://bucket/x"}[extra]
    done = subprocess.run(
        [installed / "hark", "serve", "--engine", engine], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode and f"pip install '{PROJECT['name']}[{extra}]'" in done.stderr
    assert extra in PROJECT["optional-dependencies"]


def test_every_hint_installs_this_distribution_with_one_of_its_extras() -> None:
    hints = {
        hint
        for file in [*ROOT.glob("src/hark/**/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
        for hint in re.findall(r"(?:pip install (?:-e )?|Needs `)'?([\w.-]+)\[(\w+)\]", file.read_text())
    }
    assert {name for name, _ in hints} == {".", PROJECT["name"]}
    assert {extra for _, extra in hints} <= PROJECT["optional-dependencies"].keys()
