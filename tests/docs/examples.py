"""Runs what a page of the docs shows as its reader would: block after block, at a server of its own.

Python runs in one module per page, with `await` at the top level. A line before a block says what else is to be done:

<!-- not run: why -->     it is only shown
<!-- file: app.py -->     it is a file, written into the current directory
<!-- run -->              it is for the shell; without that line, blocks that are not Python are only shown
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import CodeType, ModuleType
from unittest.mock import patch

import msgspec

from tests.cli.conftest import runner

DOCS = Path(__file__).parents[2] / "docs"
SERVER = re.compile(r"(?P<scheme>https?|ws)://(?:localhost|127\.0\.0\.1):6632")
COMMAND_SECONDS = 60.0
NOT_RUN = "not run: "
FILE = "file: "
RUN = "run"
_BLOCK = re.compile(
    r"^(?:<!-- (?P<note>[^>]*) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)

_PLAIN = re.compile(r"hark (?!work )[^|&<>;()`]*(#.*)?$")
"""A command without anything of a shell but quotes, variables and a comment; workers need processes of their own."""
_CONTINUED = re.compile(r"\\\n\s*")


class Block(msgspec.Struct, frozen=True):
    """A piece of code in a page."""

    page: str
    line: int
    language: str
    code: str
    note: str = ""

    @property
    def not_run(self) -> str:
        """Why it is only shown; empty: it is run."""
        return self.note.removeprefix(NOT_RUN) if self.note.startswith(NOT_RUN) else ""

    @property
    def file(self) -> str:
        """What file it is; empty: none."""
        return self.note.removeprefix(FILE) if self.note.startswith(FILE) else ""

    @property
    def location(self) -> str:
        """Where it is, for people."""
        return f"docs/{self.page}, line {self.line}"

    def at(self, url: str) -> str:
        """Its code with the server that is there."""
        host = url.partition("://")[2]
        return SERVER.sub(lambda match: f"{match['scheme']}://{host}", self.code)


def blocks_of(page: Path) -> list[Block]:
    """The code of a page, in its order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page.name,
            text.count("\n", 0, match.start("code")) + 1,
            match["language"],
            match["code"],
            match["note"] or "",
        )
        for match in _BLOCK.finditer(text)
    ]


def python_of(page: Path) -> list[Block]:
    """The Python of a page."""
    return [block for block in blocks_of(page) if block.language == "python"]


def compiled(block: Block, url: str) -> CodeType:
    """A block as code whose errors name the page and the line."""
    code = "\n" * (block.line - 1) + block.at(url)
    made: CodeType = compile(code, f"docs/{block.page}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return made


def run_page(page: Path, url: str, name: str) -> int:
    """Do what a page shows, in the current directory; how many blocks that were."""
    module = ModuleType(name)
    sys.modules[name] = module  # Where annotations are looked up.
    blocks = blocks_of(page)

    async def run() -> int:
        return sum([await _is_done(block, url, module) for block in blocks])

    try:
        return asyncio.run(run())
    finally:
        for made in (name, *(Path(block.file).stem for block in blocks if block.file)):
            sys.modules.pop(made, None)


async def _is_done(block: Block, url: str, module: ModuleType) -> bool:
    """Do what a block is for; whether there was anything to do."""
    if block.file:
        write_file(block, url)
    elif block.language == "python" and not block.not_run:
        code = compiled(block, url)
        if code.co_flags & inspect.CO_COROUTINE:
            await eval(code, module.__dict__)
        else:
            exec(code, module.__dict__)
    elif block.note == RUN:
        # Commands have event loops of their own.
        await asyncio.to_thread(run_command, block, url)
    else:
        return False
    return True


def write_file(block: Block, url: str) -> None:
    """Write a block into the current directory."""
    Path(block.file).write_text(block.at(url), encoding="utf-8")


def run_command(block: Block, url: str) -> str:
    """Give a block to the shell: what it printed; a command that fails is an error that says that.

    Plain `hark` commands run in this process: it takes half a second to start another.
    """
    output = ""
    for line in _CONTINUED.sub("", block.at(url)).splitlines():
        code, printed = _in_process(line, url) if _PLAIN.match(line) else _in_shell(line, url)
        output += printed
        if code:
            raise AssertionError(f"{block.location} ended with {code}:\n{output}")
    return output


def _in_process(line: str, url: str) -> tuple[int, str]:
    words = shlex.split(os.path.expandvars(line), comments=True)
    with patch.dict(os.environ, HARK_URL=url):
        result = runner()(*words[1:])
    return result.exit_code, result.output


def _in_shell(line: str, url: str) -> tuple[int, str]:
    programs = Path(sys.executable).parent
    # This may itself be a test, of which the tests of a page must know nothing.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment |= {"PATH": f"{programs}{os.pathsep}{environment.get('PATH', '')}", "HARK_URL": url}
    # What the reader of a page has installed, and not all that is installed here.
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p hark.testing.plugin -p asyncio"}
    done = subprocess.run(
        ["bash", "-e", "-c", line],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout
