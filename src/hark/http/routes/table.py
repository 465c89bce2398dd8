"""How paths find their endpoints: by segment, decoded after the split, with one entry per path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from hark.http.checks import path_segments

Endpoint = Callable[[Request], Awaitable[Response]]
Table = Mapping[str, Mapping[str, Endpoint]]
"""Path patterns, each with an endpoint per HTTP method."""

_SEGMENTS = "hark.path_segments"
_REST = ":path}"


class SegmentRoute(Route):
    """A route whose `{name}` takes one segment as the client wrote it, so that %2F is part of a name.

    A `{name:path}` at the end takes all segments that are left, one or more, as a list.
    """

    def __init__(self, pattern: str, endpoints: Mapping[str, Endpoint]) -> None:
        async def endpoint(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            return await endpoints[method](request)

        super().__init__(pattern, endpoint, methods=list(endpoints), name=pattern)
        words = pattern.split("/")[1:]
        self._rest = words.pop()[1:].removesuffix(_REST) if pattern.endswith(_REST) else None
        self._pattern = [(segment[1:-1], True) if segment.startswith("{") else (segment, False) for segment in words]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Compare segment by segment; starlette would compare the decoded path."""
        if scope["type"] != "http":
            return Match.NONE, {}
        segments: list[str] | None = scope.get(_SEGMENTS)
        if segments is None:
            segments = path_segments(scope.get("raw_path") or quote(scope["path"]).encode())
            scope[_SEGMENTS] = segments
        params: dict[str, str | list[str]] = {}
        fixed = len(self._pattern)
        if self._rest is not None and len(segments) > fixed:
            params[self._rest], segments = segments[fixed:], segments[:fixed]
        elif self._rest is not None or len(segments) != fixed:
            return Match.NONE, {}
        for segment, (word, is_name) in zip(segments, self._pattern, strict=True):
            if is_name:
                params[word] = segment
            elif segment != word:
                return Match.NONE, {}
        allowed = self.methods is None or scope["method"] in self.methods
        child: Scope = {"endpoint": self.endpoint, "path_params": params}
        return (Match.FULL if allowed else Match.PARTIAL), child
