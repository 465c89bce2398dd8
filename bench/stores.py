"""Where the servers under test keep their data: each gets a new, empty place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal, Protocol

import apsw
import msgspec

EngineName = Literal["sqlite", "postgres", "s3"]


class StoreLocation(msgspec.Struct, frozen=True):
    """Where one server keeps its data."""

    folder: Path
    """The data of an embedded store; the server's log is beside it."""
    url: str = ""
    """The database, when the data is in one."""
    store_pid: int = 0
    """The process whose children serve that database."""


class Stores(Protocol):
    """Makes places of one kind."""

    engine: EngineName
    version: str
    """Of the database."""

    def create(self, folder: Path) -> StoreLocation:
        """An empty place; the folder's name is its name."""

    def copy(self, store: StoreLocation, folder: Path) -> StoreLocation:
        """A copy of a place that no server uses, written to disk."""

    def settle(self) -> None:
        """Wait until what was written so far is where it stays; else that goes on while a row is measured."""

    def remove(self, store: StoreLocation) -> None:
        """Let go of a place."""


class SqliteStores:
    """A folder for each server."""

    engine: EngineName = "sqlite"
    version: str = apsw.sqlite_lib_version()

    def create(self, folder: Path) -> StoreLocation:
        """An empty folder."""
        return StoreLocation(folder)

    def copy(self, store: StoreLocation, folder: Path) -> StoreLocation:
        """A copy of the folder."""
        shutil.copytree(store.folder, folder)
        os.sync()  # else it is still being written while the rows are measured
        return StoreLocation(folder)

    def settle(self) -> None:
        """Write what the system holds back."""
        os.sync()

    def remove(self, store: StoreLocation) -> None:
        """Remove the folder."""
        shutil.rmtree(store.folder, ignore_errors=True)
