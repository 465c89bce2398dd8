"""Texts that users read are free of the words that Hark once invented: docs, help, OpenAPI, errors, logs, dashboard."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
import typer

from hark.broker import Broker
from hark.cli import app as commands
from hark.http.app import App
from hark.settings import Settings

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "hark"

WORDS = {
    r"who(m)?ever|somebody|anybody|everybody|nobody|those who|who waits": "the consumer, the caller",
    r"so (many|much)": "a number of, how many",
    r"anew": "again",
    r"(is|are|was|were|be|been|being) told|tells? (of|who)": "is notified, notifies",
    r"for good|by no route|in vain|but for": "permanently, never, except",
    r"shall": "must, will",
    r"what (is|was) (said|told|heard|wished|asked)": "name the thing",
    r"(comes?|came|coming) again|given up": "is redelivered, is dead-lettered",
    r"lease (runs|ran) out|lease is over": "the lease expires",
    r"(is|are|was) away": "is unavailable",
    r"makes? (itself|themselves|no sense)": "is created, is invalid",
    r"looks? after|looked after": "operates, maintains",
    r"believed|telling|hearing|manner|sight|wishes|desk|agenda|dues": "see the glossary",
    r"verdict|judges?|bury|buries|buried|workbench|census|outlook|placing": "see the glossary",
}
"""What must not come back, and what to write instead. Hark's own list; it is no grammar checker."""

_BANNED = re.compile("|".join(rf"\b(?:{words})\b" for words in WORDS), re.IGNORECASE)
_PUBLIC = ("__init__.py", "errors.py", "client", "worker", "sync", "testing", "polling", "connecting.py")
"""Where the public names of Python are."""


def _instead(word: str) -> str:
    return next(advice for words, advice in WORDS.items() if re.fullmatch(words, word, re.IGNORECASE))


def found_in(text: str, where: str) -> list[str]:
    """Each line of a text that has such a word, with what to write instead."""
    return [
        f"{where}:{number}: {match[0]!r} (write: {_instead(match[0])}): {line.strip()[:100]}"
        for number, line in enumerate(text.splitlines(), 1)
        for match in _BANNED.finditer(line)
    ]


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
DASHBOARD = sorted(path for path in (SOURCE / "dashboard").rglob("*") if path.suffix in (".js", ".html"))


@pytest.mark.parametrize("page", [*PAGES, *DASHBOARD], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_none_of_the_words(page: Path) -> None:
    assert found_in(page.read_text(encoding="utf-8"), page.name) == []


def _helps(app: typer.Typer) -> Iterator[tuple[str, str]]:
    """The command line's texts: what `--help` shows of each command and of its options."""
    pending = [("hark", typer.main.get_command(app))]
    while pending:
        name, command = pending.pop()
        texts = [command.help, command.short_help, command.epilog]
        texts += [getattr(parameter, "help", None) for parameter in command.params]
        yield name, "\n".join(text for text in texts if text)
        pending += [(f"{name} {key}", found) for key, found in getattr(command, "commands", {}).items()]


def test_the_help_of_commands_has_none_of_the_words() -> None:
    helps = dict(_helps(commands))
    assert len(helps) > 50
    assert [line for name, text in helps.items() for line in found_in(text, name)] == []


def test_the_openapi_document_has_none_of_the_words() -> None:
    document = msgspec.json.decode(App(cast(Broker, None), Settings()).openapi)
    assert found_in(json.dumps(document, indent=1), "openapi.json") == []


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts in a module's code, such as errors and log lines; docstrings too where names are public."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    public = path.relative_to(SOURCE).parts[0] in _PUBLIC
    described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    if public:
        holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(tree):
            if isinstance(node, holders) and not getattr(node, "name", "").startswith("_"):
                described -= {id(first.value) for first in node.body[:1] if isinstance(first, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
            yield node.lineno, node.value if " " in node.value else ""  # A single word is a name.


def test_errors_and_log_lines_have_none_of_the_words() -> None:
    found = [
        line
        for path in sorted(SOURCE.rglob("*.py"))
        for number, text in _texts(path)
        for line in found_in(text.replace("\n", " "), f"{path.relative_to(ROOT)}:{number}")
    ]
    assert found == []


def test_a_word_that_comes_back_is_found_with_its_remedy() -> None:
    (line,) = found_in("The lease expires.\nWhoever waits is notified.", "page.md")
    assert line == "page.md:2: 'Whoever' (write: the consumer, the caller): Whoever waits is notified."
    assert found_in("test_who_is_notified_when, the judged", "page.md") == []
