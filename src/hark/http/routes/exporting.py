"""Export of a queue as lines of JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from hark.http.responses import known_error
from hark.http.routes.requests import NO_QUEUE, broker_of, name_in_path
from hark.http.routes.table import LINES, Reach, Table, read
from hark.model.export import ErrorLine


async def export_queue(request: Request) -> Response:
    """Export a queue.

    Returns the options, consumer groups and messages of a queue as lines of JSON, for the command `hark import`. The
    last line has the type `end`; without it the export is incomplete. Dead letters are not exported.
    """
    lines = broker_of(request).export_queue(name_in_path(request, "queue"))
    # An export that cannot start returns an ordinary error.
    first = await anext(lines)
    return StreamingResponse(_streamed(first, lines), media_type=LINES)


async def _streamed(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    try:
        async for lines in rest:
            yield lines
    except Exception as error:
        # The status is sent already. The file lacks its last line, and this line gives the reason.
        known = known_error(error)
        yield msgspec.json.encode(ErrorLine(error=known.text, code=known.code)) + b"\n"


TABLE: Table = {
    "/api/v1/resources/queues/{queue}/export": {
        "GET": read(export_queue, Reach.PATH, answer=str, media=LINES, errors=(NO_QUEUE,))
    }
}
