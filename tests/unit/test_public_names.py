"""What `import hark` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import hark


def test_every_public_name_is_there_and_in_order() -> None:
    assert hark.__all__ == sorted(hark.__all__)
    assert dir(hark) == hark.__all__
    for name in hark.__all__:
        assert getattr(hark, name) is not None


def test_another_name_is_refused_as_usual() -> None:
    assert not hasattr(hark, "nothing")


def test_importing_hark_imports_neither_client_nor_server() -> None:
    code = "import sys, hark; print([name for name in sys.modules if name.startswith(('aiohttp', 'hark.', 'uvicorn'))])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['hark._version']"
