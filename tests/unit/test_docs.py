"""The documents say what the code does: links, tests, routes, options, error codes and commands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import cast

import msgspec
import pytest
import typer

from hark.api.operations import WEBSOCKET
from hark.broker import Broker
from hark.cli import app as commands
from hark.http.app import App
from hark.model import QueueOptions
from hark.settings import Settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_TEST = re.compile(r"(tests/[\w/]+\.py)((?:::\w+)+)")
_ROUTE = re.compile(r"`(GET|POST|PUT|DELETE|PATCH) (/[^`?\s]*)")
_RULE = re.compile(r"^### (\d+)\. ", re.MULTILINE)
_CODE = re.compile(r"\bcode ?= ?\"([a-z_]+)\"|\"code\": \"([a-z_]+)\"|^[A-Z][A-Z_]+ = \(\s*\"([a-z_]+)\"", re.MULTILINE)
_INTERNAL_CODES = {"sealing_mismatch", "unavailable"}
"""Codes that the broker deals with, and those of classes that are never raised bare."""
_TREE = ROOT / "src" / "hark" / "errors.py"
"""Has errors of both sides."""
_CLIENT_SIDE = ("api", "client", "worker", "polling", "sync", "testing", "connecting.py")
"""What runs in the programs of users; docs/errors.md lists its codes in a table of their own."""
_CLASS_CODE = re.compile(r"\bcode ?= ?\"([a-z_]+)\"")


# Links -----------------------------------------------------------------------------------------------------


def _slug(heading: str) -> str:
    """The anchor that a heading gets where Markdown is shown."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def _anchors(page: Path) -> frozenset[str]:
    return frozenset(_slug(heading) for heading in _HEADING.findall(_FENCE.sub("", page.read_text())))


def _links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for target in _LINK.findall(_FENCE.sub("", page.read_text())):
            if not target.startswith(("http://", "https://")):
                yield page, target


@pytest.mark.parametrize(("page", "target"), [pytest.param(*link, id=f"{link[0].name}-{link[1]}") for link in _links()])
def test_a_relative_link_leads_to_a_file_and_a_heading(page: Path, target: str) -> None:
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    assert file.exists(), f"{page.name} links to {target}, which does not exist"
    assert not anchor or anchor in _anchors(file), f"{page.name} links to {target}: {file.name} has no such heading"


# Tests -----------------------------------------------------------------------------------------------------


@cache
def _tests_of(file: Path) -> frozenset[str]:
    """The tests of a file as `::name` or `::Class::name`."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        members = [(f"::{node.name}", node.body)] if isinstance(node, ast.ClassDef) else [("", [node])]
        for prefix, body in members:
            found |= {
                f"{prefix}::{item.name}" for item in body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return frozenset(found)


@pytest.mark.parametrize("page", ["guarantees.md", "rules.md"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    named = set(_TEST.findall((DOCS / page).read_text()))
    assert named
    missing = [file + name for file, name in named if not (ROOT / file).exists() or name not in _tests_of(ROOT / file)]
    assert missing == []


def test_every_promise_names_a_test() -> None:
    rows = [line for line in (DOCS / "guarantees.md").read_text().splitlines() if re.match(r"\| \d", line)]
    assert [row.split("|")[1].strip() for row in rows] == [str(number) for number in range(1, 10)]
    assert [row[:40] for row in rows if not _TEST.search(row)] == []


# HTTP ------------------------------------------------------------------------------------------------------


def _section(page: str, heading: str) -> str:
    """A part of a page, from its heading to the next one of the same level."""
    return (DOCS / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]


def _routes_in_code() -> set[tuple[str, str]]:
    table = App(cast(Broker, None), Settings()).table
    return {
        ("GET" if method == WEBSOCKET else method, path) for path, operations in table.items() for method in operations
    }


def test_every_route_is_documented_and_every_documented_route_exists() -> None:
    documented = set(_ROUTE.findall((DOCS / "http.md").read_text()))
    assert documented == _routes_in_code()


def test_the_table_of_queue_options_has_the_names_and_defaults_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([\w.]+)` \| ", _section("http.md", "Queue options"), re.MULTILINE)
    fields = msgspec.structs.fields(QueueOptions)
    assert rows == [(field.encode_name, msgspec.json.encode(field.default).decode()) for field in fields]


def _sources(*, client_side: bool) -> list[str]:
    """The code of servers, or that of clients, without the tree of errors; commands have no codes of their own."""
    root = ROOT / "src" / "hark"
    return [
        path.read_text()
        for path in root.rglob("*.py")
        if "cli" not in path.relative_to(root).parts
        and path.name != _TREE.name
        and (path.relative_to(root).parts[0] in _CLIENT_SIDE) is client_side
    ]


def _codes_of_servers() -> set[str]:
    section = _section("errors.md", "The server")
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    start_codes = section[section.index("Codes at start") :]
    return set(re.findall(r"`([a-z_]+)`", " ".join(first_cells) + start_codes))


def _codes_of_clients() -> set[str]:
    rows = [line for line in _section("errors.md", "The client and the worker").splitlines() if line.startswith("| `")]
    return {code for row in rows for code in re.findall(r"`([a-z_]+)`", row.split("|")[1])}


def test_every_error_code_of_servers_is_documented_and_every_documented_code_exists() -> None:
    documented = _codes_of_servers()
    sources = _sources(client_side=False)
    given = {code for source in sources for match in _CODE.findall(source) for code in match if code}
    assert given - _INTERNAL_CODES - documented == set(), "codes that docs/errors.md does not have"
    sources.append(_TREE.read_text())
    unknown = {code for code in documented if not any(f'"{code}"' in source for source in sources)}
    assert unknown == set(), "codes that the code does not have"


def test_every_error_code_of_clients_is_documented_and_every_documented_code_exists() -> None:
    documented = _codes_of_clients()
    sources = _sources(client_side=True)
    given = {code for source in sources for code in _CLASS_CODE.findall(source)}
    assert given - documented - _codes_of_servers() == set(), "codes that docs/errors.md does not have"
    sources.append(_TREE.read_text())
    unknown = {code for code in documented if not any(f'"{code}"' in source for source in sources)}
    assert unknown == set(), "codes that the code does not have"


def test_every_code_of_the_tree_of_errors_is_documented() -> None:
    given = set(_CLASS_CODE.findall(_TREE.read_text()))
    assert given - _INTERNAL_CODES - _codes_of_servers() - _codes_of_clients() == set()


# Rules and commands ----------------------------------------------------------------------------------------


def test_the_rules_are_numbered_in_order() -> None:
    numbers = [int(number) for number in _RULE.findall((DOCS / "rules.md").read_text())]
    assert numbers == sorted(set(numbers))
    assert numbers[:26] == list(range(1, 27))


def _commands(app: typer.Typer, prefix: str) -> Iterator[str]:
    for command in app.registered_commands:
        yield f"{prefix} {command.name}"
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from _commands(group.typer_instance, f"{prefix} {group.name}")


def test_every_command_is_documented_and_every_documented_command_exists() -> None:
    documented = re.findall(r"^\| `(hark [a-z -]+)` \|", (DOCS / "cli.md").read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(_commands(commands, "hark"))
