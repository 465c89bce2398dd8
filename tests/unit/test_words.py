"""Texts that users read, and names in the code, are free of the words that Hark once invented."""

from __future__ import annotations

import ast
import json
import re
import tokenize
from collections.abc import Iterator
from io import StringIO
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


PRIVATE = """
    agenda alarm alarms anybody asked asking believed buried bury census chain counted desk dues end_part
    everybody exceptions feed fold foreign fronts hear heard hearing held holding holes judge judged judges
    let_go looking manner measured news nobody outlook pace patience piece pieces place placed places reconsider
    said shift sight somebody supply tell teller telling tells told touched verdict verdicts whoever wish wishes
    workbench
"""
"""Words that names had before they were those of the trade; `line` is ordinary for a line of text."""
ORDINARY = {
    "chain": "itertools, and public: `hark.chain`",
    "Chain": "what `hark.chain` makes, as in Celery",
    "load_cert_chain": "ssl",
    "exceptions": "modules of botocore and cryptography",
    "return_exceptions": "asyncio",
    "pretty_exceptions_enable": "typer",
    "feed_data": "httptools",
    "counted": "public: whether a retry counts as an attempt",
    "asked_at": "in the API: `askedAt` of the reason `not_asked`",
    "asked_here_only": "in the API: `askedHereOnly`",
    "not_asked": "in the API: a reason of `explain`",
}
"""Names that have one of them all the same, and why."""
_PRIVATE = re.compile(rf"(?<![a-z])(?:{'|'.join(PRIVATE.split())})(?![a-z])")
_SQL_TEXT = re.compile(r"--[^\n]*|'[^'\n]*'")
_JS_TEXT = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`""", re.DOTALL)


def identifiers(path: Path) -> set[str]:
    """The names in a file of Python, SQL or JavaScript, without its texts."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return {one.string for one in tokenize.generate_tokens(StringIO(text).readline) if one.type == tokenize.NAME}
    return set(re.findall(r"[A-Za-z_]\w*", (_SQL_TEXT if path.suffix == ".sql" else _JS_TEXT).sub(" ", text)))


def is_private(name: str) -> bool:
    """Whether a name has one of the words, in either way of writing."""
    return _PRIVATE.search(re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()) is not None


def test_no_identifier_and_no_file_has_a_private_word() -> None:
    paths = [path for path in sorted(SOURCE.rglob("*")) if path.suffix in (".py", ".sql", ".js")]
    used = {name: path for path in paths for name in (identifiers(path) | {path.stem.replace("-", "_")})}
    private = {name: str(path.relative_to(ROOT)) for name, path in used.items() if is_private(name)}
    assert {name: path for name, path in private.items() if name not in ORDINARY} == {}
    assert ORDINARY.keys() <= private.keys(), "no longer used: remove it from the list"


@pytest.mark.parametrize("name", ["_held", "Teller", "keepLooking", "o_dues", "let_go", "TOLD_AT_MOST"])
def test_a_private_word_is_found_however_it_is_written(name: str) -> None:
    assert is_private(name)
    assert not is_private("leased_line")
