"""Addresses of peers, as `peers` lists them: `host:port`, or `host:first-last` for the processes of one server."""

from __future__ import annotations

import re

Address = tuple[str, int]
"""A host name or a numeric address, and a port."""

_MAX_PORTS = 1024
_ENTRY = re.compile(
    r"(?:\[(?P<numeric>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:\[\]/@]+)):(?P<first>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?"
)


def peer_addresses(entry: str) -> list[Address]:
    """All that one entry stands for; raises `ValueError` when it is none."""
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise ValueError(f"{entry!r} is not host:port")
    host = match["numeric"] or match["name"]
    first = int(match["first"])
    last = int(match["last"] or first)
    if not 1 <= first <= last <= 65_535 or last - first >= _MAX_PORTS:
        raise ValueError(f"{entry!r} has no ports from 1 to 65535, the lowest first, {_MAX_PORTS} at most")
    return [(host, port) for port in range(first, last + 1)]
