"""The objects of one bucket in memory, with the conditions of S3."""

from __future__ import annotations

import threading
from collections import Counter, deque
from email.utils import formatdate
from hashlib import md5
from typing import Literal, get_args

import msgspec

from hark.clock import SECOND, Clock

Kind = Literal["put", "get", "list", "delete"]
KINDS: tuple[Kind, ...] = get_args(Kind)
NO_ANSWER = 0
"""The status in the log of a request whose client heard nothing."""
LONGEST_LOG = 100_000


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it arrives."""

    kind: Kind
    key: str
    body: bytes = b""
    if_absent: bool = False
    """If-None-Match: *"""
    if_match: str | None = None
    first: int | None = None
    """The first byte of a range; None: all of the object."""
    last: int | None = None
    """The last byte of a range; None: up to the end."""
    keys: tuple[str, ...] = ()
    """What a delete removes."""


class Answer(msgspec.Struct, frozen=True):
    """What the store says. `code`: the code of an error, as S3 names it."""

    status: int
    code: str = ""
    body: bytes = b""
    etag: str = ""
    size: int = 0
    """The length of the whole object, also when only a range of it was asked for."""


class StubStore:
    """A bucket. Requests may come from any thread; each happens at one instant.

    `ignores_conditions`: be one of the servers that accept conditional headers and do not look at them.
    """

    def __init__(self, clock: Clock, *, ignores_conditions: bool = False) -> None:
        self.clock = clock
        self.ignores_conditions = ignores_conditions
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, str]] = {}
        self._counts: Counter[Kind] = Counter()
        self._log: deque[tuple[Kind, str, int]] = deque(maxlen=LONGEST_LOG)

    def execute(self, request: Request) -> Answer:
        """Do what a request asks; it is not counted, since a fault may do it twice or for nobody."""
        with self._lock:
            if request.kind == "put":
                return self._put(request)
            if request.kind == "get":
                return self._get(request)
            if request.kind == "delete":
                for key in request.keys or (request.key,):
                    self._objects.pop(key, None)
                return Answer(204)
        # Hark finds everything by name. A list is counted, so that a test sees it, and refused.
        return Answer(501, "NotImplemented")

    def _put(self, request: Request) -> Answer:
        there = self._objects.get(request.key)
        if not self.ignores_conditions:
            if request.if_absent and there is not None:
                return Answer(412, "PreconditionFailed")
            if request.if_match is not None and there is None:
                return Answer(404, "NoSuchKey")
            if request.if_match is not None and there is not None and request.if_match != there[1]:
                return Answer(412, "PreconditionFailed")
        etag = f'"{md5(request.body, usedforsecurity=False).hexdigest()}"'
        self._objects[request.key] = (request.body, etag)
        return Answer(200, etag=etag)

    def _get(self, request: Request) -> Answer:
        there = self._objects.get(request.key)
        if there is None:
            return Answer(404, "NoSuchKey")
        body, etag = there
        if request.first is None:
            return Answer(200, "", body, etag, len(body))
        if request.first >= len(body):
            return Answer(416, "InvalidRange", size=len(body))
        end = len(body) if request.last is None else request.last + 1
        return Answer(206, "", body[request.first : end], etag, len(body))

    def note(self, request: Request, status: int) -> None:
        """Count a request, and write down what its client heard."""
        with self._lock:
            self._counts[request.kind] += 1
            self._log.append((request.kind, request.key, status))

    @property
    def counts(self) -> dict[Kind, int]:
        """How many requests of each kind came."""
        with self._lock:
            return {kind: self._counts[kind] for kind in KINDS}

    @property
    def log(self) -> list[tuple[Kind, str, int]]:
        """The latest requests: kind, key and the status that the client heard (0: none)."""
        with self._lock:
            return list(self._log)

    def keys(self, prefix: str = "") -> list[str]:
        """The keys that begin so, in order; for tests, so it is not counted."""
        with self._lock:
            return sorted(key for key in self._objects if key.startswith(prefix))

    def read(self, key: str) -> bytes | None:
        """An object; for tests, so it is not counted."""
        with self._lock:
            there = self._objects.get(key)
        return None if there is None else there[0]

    def stored_bytes(self) -> int:
        """The bytes of all objects."""
        with self._lock:
            return sum(len(body) for body, _ in self._objects.values())

    def forget_requests(self) -> None:
        """Count from zero again; the objects stay."""
        with self._lock:
            self._counts.clear()
            self._log.clear()

    def reset(self) -> None:
        """Be as new: no objects, nothing counted."""
        self.forget_requests()
        with self._lock:
            self._objects.clear()

    def date(self) -> int:
        """The `Date` of an answer that is made now, in microseconds: whole seconds, as the header has it."""
        return self.clock.now() // SECOND * SECOND

    def date_header(self) -> str:
        """The same as the header's text."""
        return formatdate(self.date() // SECOND, usegmt=True)
