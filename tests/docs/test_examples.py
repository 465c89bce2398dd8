"""What the guides show is run: each page's code, in its order, at a real server."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.s3.credentials import AWS_ENVIRONMENT
from tests.s3.ministack import running_ministack
from tests.servers import running_server

from .examples import DOCS, FILE, NOT_RUN, RUN, blocks_of, python_of, run_page

PAGES = (
    "../README.md",
    "quickstart.md",
    "client.md",
    "worker.md",
    "flows.md",
    "polling.md",
    "schedules.md",
    "testing.md",
    "from-celery.md",
    "from-queen.md",
    "tracing.md",
)
BUCKETS = DOCS / "s3.md"


@pytest.mark.parametrize("name", PAGES)
def test_the_examples_of_a_page_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with running_server(tmp_path) as url:
        monkeypatch.setenv("HARK_URL", url)
        assert run_page(DOCS / name, url, f"docs_{Path(name).stem}") > 0


def test_the_examples_of_the_page_about_buckets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "ministack"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(here)
    for name, value in AWS_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with running_ministack(elsewhere) as server:
        with urllib.request.urlopen(urllib.request.Request(f"{server.url}/my-bucket", method="PUT")) as answer:
            assert answer.status == 200
        # As for a reader whose bucket is not at AWS.
        monkeypatch.setenv("HARK_S3_ENDPOINT_URL", server.url)
        assert run_page(BUCKETS, "", "docs_s3") > 0
    blocks = python_of(BUCKETS)
    assert blocks
    assert [block.location for block in blocks if block.not_run] == []


def test_the_examples_of_the_page_about_postgresql_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", postgres_url)
    with running_server(tmp_path, engine=postgres_url) as url:
        assert run_page(DOCS / "postgresql.md", url, "docs_postgresql") > 1


def test_what_a_note_says_is_known_and_has_a_reason() -> None:
    for name in PAGES:
        for block in blocks_of(DOCS / name):
            known = block.note in ("", RUN) or block.note.startswith((NOT_RUN, FILE))
            assert known, f"{block.location}: {block.note!r} says nothing to the test"
            assert not block.note.endswith(":"), f"{block.location}: why?"


def test_most_of_the_python_that_is_shown_is_run() -> None:
    blocks = [block for name in PAGES for block in python_of(DOCS / name)]
    assert sum(bool(block.not_run) for block in blocks) <= len(blocks) / 4


# The harness itself: it must be able to fail ---------------------------------------------------------------


@pytest.fixture
def run_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Do what a page with this text shows; how many blocks that were."""
    monkeypatch.chdir(tmp_path)

    def run(text: str) -> int:
        page = tmp_path / "page.md"
        page.write_text(text)
        return run_page(page, "http://somewhere:1", "docs_page")

    return run


def test_an_example_that_is_wrong_is_found(run_text: Callable[[str], int]) -> None:
    with pytest.raises(AssertionError) as failure:
        run_text("```python\nx = 1\n```\n\n```python\nimport asyncio\nawait asyncio.sleep(0)\nassert x == 2\n```\n")
    assert failure.traceback[-1].lineno == 7


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("echo to $HARK_URL\nfalse\necho never", r"ended with 1:\nto http://somewhere:1\n$"),
        (
            "hark version # this one\nhark queue list --limit \\\n  none\nhark version",
            r"ended with 2:\nhark [0-9.]+\n[^\n]*",
        ),
    ],
    ids=["shell", "hark"],
)
def test_a_command_that_fails_is_found_with_what_it_stated(
    run_text: Callable[[str], int], code: str, failure: str
) -> None:
    with pytest.raises(AssertionError, match=rf"docs/page\.md, line 3 {failure}"):
        run_text(f"<!-- run -->\n```sh\n{code}\n```\n")


def test_a_file_is_written_and_what_is_only_shown_is_not_run(run_text: Callable[[str], int], tmp_path: Path) -> None:
    assert run_text('<!-- file: a.py -->\n```python\nurl = "ws://localhost:6632"\nraise SystemExit\n```\n') == 1
    assert (tmp_path / "a.py").read_text() == 'url = "ws://somewhere:1"\nraise SystemExit\n'
    assert run_text("<!-- not run: never ends -->\n```python\n1 / 0\n```\n\n```sh\nfalse\n```\n") == 0
