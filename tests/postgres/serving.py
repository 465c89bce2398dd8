"""Servers on PostgreSQL, in threads of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.http.api import Api
from tests.servers import running_server

CLIENT_SECONDS = 60
NO_LOOKS = {"HARK_FALLBACK_INITIAL_MS": "3600000", "HARK_FALLBACK_MAX_MS": "3600000"}
"""Settings of a server that does not look for work by itself while a test runs."""


@contextmanager
def serving(directory: Path, database: str, **settings: str) -> Iterator[Api]:
    """The API of a server of its own on a database, with these settings in its environment."""
    with (
        running_server(directory, engine=database, settings=settings) as url,
        httpx.Client(base_url=url, timeout=CLIENT_SECONDS) as client,
    ):
        yield Api(client)


def wait_for_group(api: Api, queue: str, group: str) -> None:
    """Return when a group has met a queue: its pop has arrived."""
    while all(found["name"] != group for found in api.get("/consumer-groups", queue=queue).json()):
        pass
