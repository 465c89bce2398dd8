"""What the page about buckets shows is run, in its order, on a bucket of a server that others wrote."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from tests.s3.credentials import AWS_ENVIRONMENT
from tests.s3.ministack import running_ministack

from .examples import DOCS, blocks_of, run_page

PAGE = DOCS / "s3.md"
BUCKET = "my-bucket"


def test_the_examples_of_the_page_about_buckets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "ministack"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(here)
    for name, value in AWS_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with running_ministack(elsewhere) as server:
        with urllib.request.urlopen(urllib.request.Request(f"{server.url}/{BUCKET}", method="PUT")) as answer:
            assert answer.status == 200
        # As for a reader whose bucket is not at AWS.
        monkeypatch.setenv("HARK_S3_ENDPOINT_URL", server.url)
        assert run_page(PAGE, "", "docs_s3") > 0


def test_every_python_block_of_the_page_is_run_or_a_file() -> None:
    blocks = [block for block in blocks_of(PAGE) if block.language == "python"]
    assert blocks
    assert [block.place for block in blocks if block.not_run] == []
