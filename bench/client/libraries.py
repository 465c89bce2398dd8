"""Which HTTP client carries our requests: small POSTs over kept connections, by each library that is installed.

`python -m bench.client.libraries URL [SECONDS]`, against `python -m bench.bare PORT`. Nearly all of the time is the
client's, because that server does nothing; both share the machine.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module

BODY = b'{"items":[{"queue":"orders","payload":{"id":17,"text":"%s"},"transactionId":"order-17"}]}' % (b"x" * 200)
HEADERS = {"Content-Type": "application/json"}
CONCURRENCY = 16
ROUNDS = 3
SKIP = 50
"""Requests of each task before the clock starts: connections are open and caches warm then."""

Post = Callable[[], Awaitable[object]]
Library = Callable[[str], AbstractAsyncContextManager[Post]]


@asynccontextmanager
async def _aiohttp(url: str) -> AsyncIterator[Post]:
    aiohttp = import_module("aiohttp")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def post() -> object:
            async with session.post(url, data=BODY, headers=HEADERS) as response:
                return await response.read()

        yield post


@asynccontextmanager
async def _httpx(url: str) -> AsyncIterator[Post]:
    httpx = import_module("httpx")
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None)) as client:
        yield lambda: client.post(url, content=BODY, headers=HEADERS)


@asynccontextmanager
async def _httpcore(url: str) -> AsyncIterator[Post]:
    async with import_module("httpcore").AsyncConnectionPool(max_connections=None) as pool:
        yield lambda: pool.request("POST", url, content=BODY, headers=HEADERS)


@asynccontextmanager
async def _niquests(url: str) -> AsyncIterator[Post]:
    async with import_module("niquests").AsyncSession(pool_maxsize=CONCURRENCY) as session:
        yield lambda: session.post(url, data=BODY, headers=HEADERS)


@asynccontextmanager
async def _curl_cffi(url: str) -> AsyncIterator[Post]:
    async with import_module("curl_cffi").AsyncSession(max_clients=CONCURRENCY) as session:
        yield lambda: session.post(url, data=BODY, headers=HEADERS)


@asynccontextmanager
async def _aiosonic(url: str) -> AsyncIterator[Post]:
    async with import_module("aiosonic").HTTPClient() as client:

        async def post() -> object:
            return await (await client.post(url, data=BODY, headers=HEADERS)).content()

        yield post


@asynccontextmanager
async def _pyreqwest(url: str) -> AsyncIterator[Post]:
    builder = import_module("pyreqwest.client").ClientBuilder()
    async with builder.build() as client:

        async def post() -> object:
            response = await client.post(url).body_bytes(BODY).headers(HEADERS).build().send()
            return await response.bytes()

        yield post


@asynccontextmanager
async def _pycurl(url: str) -> AsyncIterator[Post]:
    """By way of tornado, which drives it from an event loop."""
    client = import_module("tornado.curl_httpclient").CurlAsyncHTTPClient(force_instance=True, max_clients=CONCURRENCY)
    yield lambda: client.fetch(url, method="POST", body=BODY, headers=HEADERS)
    client.close()


LIBRARIES: dict[str, Library] = {
    "aiohttp": _aiohttp,
    "aiosonic": _aiosonic,
    "curl_cffi": _curl_cffi,
    "httpcore": _httpcore,
    "httpx": _httpx,
    "niquests": _niquests,
    "pycurl": _pycurl,
    "pyreqwest": _pyreqwest,
}


def measure_libraries(url: str, seconds: float = 2.0) -> dict[str, float]:
    """Requests a second by each library that is installed, the fastest first; the median of rounds in turn."""
    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, library in LIBRARIES.items():
            try:
                found.setdefault(name, []).append(asyncio.run(_rate(library, url, seconds)))
            except ImportError:
                del found[name]
    rates = {name: statistics.median(each) for name, each in found.items()}
    return dict(sorted(rates.items(), key=lambda pair: -pair[1]))


async def _rate(library: Library, url: str, seconds: float) -> float:
    async with library(url) as post:
        await _together(post, lambda done: done < SKIP)
        began = time.perf_counter()
        requests = await _together(post, lambda _: time.perf_counter() - began < seconds)
        return requests / (time.perf_counter() - began)


async def _together(post: Post, goes_on: Callable[[int], bool]) -> int:
    """Post from many tasks as long as each should; how many requests that were."""

    async def one() -> int:
        done = 0
        while goes_on(done):
            await post()
            done += 1
        return done

    return sum(await asyncio.gather(*(one() for _ in range(CONCURRENCY))))


if __name__ == "__main__":
    for name, rate in measure_libraries(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 2.0).items():
        print(f"{name:12} {rate:8,.0f} requests/s")
