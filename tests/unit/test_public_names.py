"""What `import hark` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hark


def test_every_public_name_is_there_and_in_order() -> None:
    assert hark.__all__ == sorted(hark.__all__)
    assert dir(hark) == hark.__all__
    for name in hark.__all__:
        assert getattr(hark, name) is not None
    assert not hasattr(hark, "nothing")


@pytest.mark.parametrize(
    ("module", "expensive", "found"),
    [
        ("hark", ("aiohttp", "hark.", "httptools", "starlette"), "['hark._version']"),
        ("hark.settings", ("typer", "rich", "httpx", "httptools", "starlette"), "[]"),
    ],
)
def test_an_import_brings_nothing_expensive_with_it(module: str, expensive: tuple[str, ...], found: str) -> None:
    code = f"import sys, {module}; print([name for name in sys.modules if name.startswith({expensive})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == found
