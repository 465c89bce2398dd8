"""A bucket for the run: the stub of the tests in a process of its own, as far away as a real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from bench.servers import ROOT
from bench.stores import EngineName, StoreLocation

LATENCY_MS = 30.0
"""What the stub adds to every request."""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}
PUT_DOLLARS = LIST_DOLLARS = 5.0
GET_DOLLARS = 0.4
"""Of a million requests to S3 Standard; deletes are free."""
_STOP_SECONDS = 10.0


class Counts(msgspec.Struct, frozen=True):
    """Requests that a bucket has counted."""

    put: int = 0
    get: int = 0
    list: int = 0
    delete: int = 0

    @property
    def requests(self) -> int:
        """All that are paid for."""
        return self.put + self.get + self.list

    @property
    def dollars(self) -> float:
        """What they cost."""
        return (self.put * PUT_DOLLARS + self.list * LIST_DOLLARS + self.get * GET_DOLLARS) / 1e6

    def since(self, before: Counts) -> Counts:
        """Those between two readings."""
        return Counts(*(getattr(self, name) - getattr(before, name) for name in self.__struct_fields__))


class Stub:
    """A bucket that runs."""

    def __init__(self, url: str, bucket: str, pid: int) -> None:
        self.url = url
        self.bucket = bucket
        self.pid = pid

    def address(self, prefix: str) -> str:
        """How Hark is told of a place in it."""
        return f"s3://{self.bucket}/{prefix}?endpoint={self.url}"

    def counts(self) -> Counts:
        """What it has counted until now."""
        connection = HTTPConnection(urlsplit(self.url).netloc)
        try:
            connection.request("GET", "/_stub/counts")
            return msgspec.json.decode(connection.getresponse().read(), type=Counts)
        finally:
            connection.close()


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables for the processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def stub(latency_ms: float = LATENCY_MS) -> Iterator[Stub]:
    """An empty bucket, so far away."""
    command = [sys.executable, "-m", "tests.s3.stub.server", "--port", "0", "--latency-ms", str(latency_ms)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url, address = process.stdout.readline().strip(), process.stdout.readline().strip()
        if not address:
            raise RuntimeError("the stub of the bucket did not start")
        with environment(CREDENTIALS):
            yield Stub(url, urlsplit(address).netloc, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class BucketStores:
    """A prefix of one bucket for each server."""

    engine: EngineName = "s3"

    def __init__(self, bucket: Stub) -> None:
        self.bucket = bucket
        self.version = f"stub + {LATENCY_MS:g} ms"

    def create(self, folder: Path) -> StoreLocation:
        """An empty prefix."""
        return StoreLocation(folder, self.bucket.address(folder.name))

    def copy(self, address: StoreLocation, folder: Path) -> StoreLocation:
        """Refused: the rows of this engine measure no history."""
        raise RuntimeError(f"{address.url} can't be copied to {folder.name}: Hark never lists a bucket")

    def settle(self) -> None:
        """A bucket has nothing to write later."""

    def remove(self, address: StoreLocation) -> None:
        """Remove the folder with the server's log; the bucket goes away as a whole."""
        shutil.rmtree(address.folder, ignore_errors=True)
