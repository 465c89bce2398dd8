"""What the bucket alone takes: a PUT of the size of a small record over a connection that is open already."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from urllib.parse import urlsplit

from bench.s3.bucket import Stub
from hark.cli.bench import Wire

_BODY = b"x" * 1024
_serial = count()


async def bare_puts(bucket: Stub, seconds: float, rate: float) -> list[float]:
    """Milliseconds of each of so many PUTs a second, of objects that are not there yet."""
    address = urlsplit(bucket.url)
    host, port = address.hostname or "", address.port or 0
    _, wire = await asyncio.get_running_loop().create_connection(lambda: Wire(address.netloc), host, port)
    trips = []
    try:
        for _ in range(max(1, int(seconds * rate))):
            await asyncio.sleep(1 / rate)
            sent = time.perf_counter()
            status, _answer = await wire.request(
                b"PUT", b"/%s/bare/%d" % (bucket.bucket.encode(), next(_serial)), _BODY
            )
            trips.append(1e3 * (time.perf_counter() - sent))
            if status != 200:
                raise RuntimeError(f"the bucket answered a bare PUT with {status}")
    finally:
        wire.close()
    return trips
