"""Peer addresses in the setting `peers`: `host:port`, or `host:first-last` for the processes of one server."""

from __future__ import annotations

import re

Address = tuple[str, int]
"""A host name or a numeric address, and a port."""

_MAX_PORTS = 1024
_ENTRY = re.compile(
    r"(?:\[(?P<numeric>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:\[\]/@]+)):(?P<first>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?"
)


def peer_addresses(entry: str) -> list[Address]:
    """All addresses of one entry. Raises `ValueError` if the entry is invalid."""
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise ValueError(f"{entry!r} is not host:port")
    host = match["numeric"] or match["name"]
    first = int(match["first"])
    last = int(match["last"] or first)
    if not 1 <= first <= last <= 65_535 or last - first >= _MAX_PORTS:
        raise ValueError(f"{entry!r}: expected ports from 1 to 65535 in ascending order, at most {_MAX_PORTS} of them")
    return [(host, port) for port in range(first, last + 1)]
