"""The stub over HTTP, path style: for the real client, for several processes and for benchmarks.

    python -m tests.s3.stub.server --port 0 --latency-ms 30 --faults 0.02 --seed 7

prints its URL as the first line. `GET /_stub/counts` answers what it counted, `POST /_stub/reset` makes it as new.
Signatures are not checked: any credentials will do.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from queue import SimpleQueue
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import msgspec
import uvloop
from aiohttp import web

from hark.clock import SystemClock
from tests.s3.stub.faults import Broken, Faults, Silent
from tests.s3.stub.store import Answer, Request, StubStore

BUCKET = "hark-stub"
DELETED = b'<?xml version="1.0" encoding="UTF-8"?><DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"/>'


_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_MESSAGES = {
    "ConditionalRequestConflict": "A conflicting conditional operation is currently in progress against this resource.",
    "InternalError": "We encountered an internal error. Please try again.",
    "InvalidRange": "The requested range is not satisfiable.",
    "NoSuchBucket": "The specified bucket does not exist.",
    "NoSuchKey": "The specified key does not exist.",
    "PreconditionFailed": "At least one of the pre-conditions you specified did not hold.",
    "SlowDown": "Please reduce your request rate.",
}


class BadRequest(Exception):
    """A request that the stub does not understand."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class Target(msgspec.Struct, frozen=True):
    """What a request line and the range name."""

    method: str
    bucket: str
    key: str
    deletes_many: bool
    first: int | None
    last: int | None


def target_of(request: web.BaseRequest) -> Target:
    """Read the path (`/bucket/key`), the query and the range."""
    _, bucket, *rest = request.path.split("/", 2)
    found = _RANGE.fullmatch(request.headers.get("Range", ""))
    first = int(found[1]) if found else None
    last = int(found[2]) if found and found[2] else None
    deletes_many = request.method == "POST" and "delete" in request.query
    return Target(request.method, bucket, rest[0] if rest else "", deletes_many, first, last)


def request_of(target: Target, headers: Mapping[str, str], body: bytes) -> Request:
    """What the store is asked. Raises `BadRequest`."""
    if target.deletes_many:
        keys = tuple(element.text or "" for element in ElementTree.fromstring(body).iter() if _is_key(element))
        return Request(kind="delete", key=keys[0] if keys else "", keys=keys)
    if target.method == "GET" and not target.key:
        return Request(kind="list", key="")
    if target.method in {"GET", "HEAD"}:
        # HEAD costs what GET costs.
        return Request(kind="get", key=target.key, first=target.first, last=target.last)
    if target.method == "DELETE" and target.key:
        return Request(kind="delete", key=target.key)
    if target.method == "PUT":
        absent = headers.get("If-None-Match")
        if absent not in {None, "*"}:
            raise BadRequest(501, "NotImplemented")
        return Request(
            kind="put",
            key=target.key,
            body=body,
            if_absent=absent is not None,
            if_match=_quoted(headers.get("If-Match")),
        )
    raise BadRequest(405, "MethodNotAllowed")


def error_body(code: str, key: str) -> bytes:
    """An error as S3 writes it."""
    message = _MESSAGES.get(code, code)
    text = f"<Code>{code}</Code><Message>{message}</Message><Key>{escape(key)}</Key><RequestId>stub</RequestId>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{text}</Error>'.encode()


async def read_body(request: web.BaseRequest) -> bytes:
    """The body, without the chunks in which some clients wrap it. Of any size: `request.read` stops at 1 MB."""
    body = await request.content.read()
    if "aws-chunked" in request.headers.get("Content-Encoding", ""):
        return _without_chunks(body)
    return body


def _without_chunks(body: bytes) -> bytes:
    """Chunks are `size in hex[;signature]`, a line end, the bytes, a line end; the last is empty."""
    parts: list[bytes] = []
    at = 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end].split(b";")[0], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2


def _is_key(element: ElementTree.Element) -> bool:
    return element.tag.rpartition("}")[2] == "Key"


def _quoted(etag: str | None) -> str | None:
    """S3 takes an ETag with quotes and without."""
    return etag if etag is None or etag.startswith('"') else f'"{etag}"'


class StubServer:
    """One bucket, served on a port of this machine. `url` is known once it listens."""

    def __init__(self, store: StubStore, faults: Faults | None = None) -> None:
        self.store = store
        self.faults = Faults() if faults is None else faults
        self.url = ""

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[None]:
        """Serve on the running event loop."""
        # A client that gave up ends its request here too: what it waited for in vain must not wait for ever.
        runner = web.ServerRunner(web.Server(self._handle, handler_cancellation=True), shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            self.url = "http://{}:{}".format(*runner.addresses[0][:2])
            yield
        finally:
            await runner.cleanup()

    def bucket_url(self, prefix: str = "") -> str:
        """How Hark is told of it."""
        return f"s3://{BUCKET}/{prefix}?endpoint={self.url}"

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if request.path.startswith("/_stub/"):
            return self._steer(request)
        body = await read_body(request)
        target = target_of(request)
        if target.bucket != BUCKET:
            return self._respond(target, Answer(404, "NoSuchBucket"))
        if not target.key and target.method in {"PUT", "HEAD"}:
            return self._respond(target, Answer(200))
        try:
            request_ = request_of(target, request.headers, body)
        except BadRequest as error:
            return self._respond(target, Answer(error.status, error.code))
        try:
            return self._respond(target, await self.faults.perform(self.store, request_))
        except Silent:
            await asyncio.Event().wait()
            raise
        except Broken:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)

    def _respond(self, target: Target, answer: Answer) -> web.Response:
        headers = {"Date": self.store.date_header(), "x-amz-request-id": "stub"}
        status, body = answer.status, answer.body
        if answer.etag:
            headers["ETag"] = answer.etag
        if status == 206:
            first = target.first or 0
            headers["Content-Range"] = f"bytes {first}-{first + len(body) - 1}/{answer.size}"
        if answer.code:
            headers["Content-Type"] = "application/xml"
            body = b"" if target.method == "HEAD" else error_body(answer.code, target.key)
        elif target.method == "HEAD":
            headers["Content-Length"] = str(len(body))
            body = b""
        elif target.deletes_many:
            status, body = 200, DELETED
            headers["Content-Type"] = "application/xml"
        return web.Response(status=status, headers=headers, body=body)

    def _steer(self, request: web.BaseRequest) -> web.Response:
        if (request.method, request.path) == ("GET", "/_stub/counts"):
            figures = self.store.counts | {"objects": len(self.store.keys()), "bytes": self.store.stored_bytes()}
            return web.Response(body=msgspec.json.encode(figures), content_type="application/json")
        if (request.method, request.path) == ("POST", "/_stub/reset"):
            self.store.reset()
            return web.Response(status=204)
        return web.Response(status=404)


@contextmanager
def serving_in_thread(server: StubServer) -> Iterator[StubServer]:
    """Serve from a thread with an event loop of its own, so that a test may block."""
    started: SimpleQueue[BaseException | tuple[asyncio.AbstractEventLoop, asyncio.Event]] = SimpleQueue()

    async def work() -> None:
        stopping = asyncio.Event()
        async with server.listening():
            started.put((asyncio.get_running_loop(), stopping))
            await stopping.wait()

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            started.put(error)
            raise

    thread = threading.Thread(target=run, name="stub-server", daemon=True)
    thread.start()
    outcome = started.get()
    if isinstance(outcome, BaseException):
        raise outcome
    loop, stopping = outcome
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join()


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until the process is ended."""
    seconds, spread, chance = arguments.latency_ms / 1000, arguments.jitter, random.Random(arguments.seed)
    faults = Faults.by_chance(
        arguments.seed, arguments.faults, latency=lambda _: seconds * chance.uniform(1 - spread, 1 + spread)
    )
    server = StubServer(StubStore(SystemClock(), ignores_conditions=arguments.ignore_conditions), faults)
    async with server.listening(arguments.port):
        print(server.url, flush=True)
        print(server.bucket_url("prefix"), flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m tests.s3.stub.server", description="An S3 bucket in memory.")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="of every request")
    parser.add_argument("--jitter", type=float, default=0.0, help="share by which latencies differ, 0 to 1")
    parser.add_argument("--faults", type=float, default=0.0, help="share of requests that fail, 0 to 1")
    parser.add_argument("--seed", type=int, default=0, help="of the faults and the jitter")
    parser.add_argument("--ignore-conditions", action="store_true", help="accept conditional headers, do not look")
    with suppress(KeyboardInterrupt):
        uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
