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


class SegmentRoute(Route):
    """A route whose `{name}` takes one segment as the client wrote it, so that %2F is part of a name."""

    def __init__(self, pattern: str, endpoints: Mapping[str, Endpoint]) -> None:
        async def endpoint(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            return await endpoints[method](request)

        super().__init__(pattern, endpoint, methods=list(endpoints), name=pattern)
        self._pattern = [
            (segment[1:-1], True) if segment.startswith("{") else (segment, False) for segment in pattern.split("/")[1:]
        ]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Compare segment by segment; starlette would compare the decoded path."""
        if scope["type"] != "http":
            return Match.NONE, {}
        segments: list[str] | None = scope.get(_SEGMENTS)
        if segments is None:
            segments = path_segments(scope.get("raw_path") or quote(scope["path"]).encode())
            scope[_SEGMENTS] = segments
        if len(segments) != len(self._pattern):
            return Match.NONE, {}
        params: dict[str, str] = {}
        for segment, (word, is_name) in zip(segments, self._pattern, strict=True):
            if is_name:
                params[word] = segment
            elif segment != word:
                return Match.NONE, {}
        allowed = self.methods is None or scope["method"] in self.methods
        child: Scope = {"endpoint": self.endpoint, "path_params": params}
        return (Match.FULL if allowed else Match.PARTIAL), child
