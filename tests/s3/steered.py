"""A process on a bucket that does what a test says, one request after the other.

    python -m tests.s3.steered BUCKET

It says `ready`; then each line is a request as JSON, `[method, path, body]`, and the answer a line `[status, body]`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec

import hark
from hark.client.transport.api import ConnectionFailed, Request

PATIENCE_SECONDS = 120.0
_decode = msgspec.json.Decoder(tuple[str, str, msgspec.Raw]).decode


async def serve(bucket: str) -> None:
    """Until the input ends."""
    loop = asyncio.get_running_loop()
    async with hark.connect(bucket) as client:
        transport = client.caller.transport
        print("ready", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
            method, path, body = _decode(line)
            path, _, query = path.partition("?")
            pairs = dict(pair.split("=") for pair in query.split("&") if pair)
            content = None if bytes(body) == b"null" else bytes(body)
            said: tuple[int, Any]
            try:
                answer = await transport.send(Request(method, path, pairs, content, PATIENCE_SECONDS))
                said = answer.status, msgspec.Raw(answer.body or b"null")
            except ConnectionFailed as error:
                said = 0, str(error)
            print(msgspec.json.encode(said).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
