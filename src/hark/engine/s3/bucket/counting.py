"""How many requests were sent, and what they cost."""

from __future__ import annotations

import threading
from typing import Literal

import msgspec

from hark.settings.s3 import S3

Kind = Literal["put", "get", "list", "delete"]
KINDS: tuple[Kind, ...] = ("put", "get", "list", "delete")
_MILLION = 1_000_000


class Prices(msgspec.Struct, frozen=True):
    """Dollars for a million requests of each kind; those of S3 Standard if nothing else is said."""

    put: float = 5.0
    get: float = 0.4
    list: float = 5.0
    delete: float = 0.0

    @classmethod
    def of(cls, settings: S3) -> Prices:
        """The prices that the settings say; to delete is free everywhere, and nothing is ever listed."""
        return cls(put=settings.put_dollars, get=settings.get_dollars)


class RequestCounter:
    """Counts requests. Any thread may ask and count.

    Each one that was sent counts, also in the estimate of costs: stores take money for most refusals as well.
    """

    def __init__(self, prices: Prices | None = None) -> None:
        self._prices = Prices() if prices is None else prices
        self._lock = threading.Lock()
        self._sent: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._failed: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._up = 0
        self._down = 0

    def sent(self, kind: Kind, *, up: int = 0) -> None:
        """A request goes out, with a body of so many bytes."""
        with self._lock:
            self._sent[kind] += 1
            self._up += up

    def received(self, down: int) -> None:
        """A body of so many bytes came."""
        with self._lock:
            self._down += down

    def failed(self, kind: Kind) -> None:
        """A request got no answer, or one that is of no use. That a key is taken or missing is of use."""
        with self._lock:
            self._failed[kind] += 1

    def count(self, kind: Kind) -> int:
        """Requests of a kind, failed ones too."""
        with self._lock:
            return self._sent[kind]

    def failures(self, kind: Kind | None = None) -> int:
        """Failed requests of a kind, or of all."""
        with self._lock:
            return sum(self._failed.values()) if kind is None else self._failed[kind]

    @property
    def bytes_up(self) -> int:
        """Bytes of the bodies that were sent."""
        return self._up

    @property
    def bytes_down(self) -> int:
        """Bytes of the bodies that came."""
        return self._down

    def dollars(self, prices: Prices | None = None) -> float:
        """What all requests so far cost, at these prices or at those it was made with."""
        of = self._prices if prices is None else prices
        with self._lock:
            sent = dict(self._sent)
        price: dict[Kind, float] = {"put": of.put, "get": of.get, "list": of.list, "delete": of.delete}
        return sum(sent[kind] * price[kind] for kind in KINDS) / _MILLION

    def as_metrics(self) -> dict[str, float]:
        """All figures by the names of their metrics."""
        with self._lock:
            figures: dict[str, float] = {f"s3_requests_{kind}": self._sent[kind] for kind in KINDS}
            figures["s3_requests_failed"] = sum(self._failed.values())
            figures["s3_bytes_up"] = self._up
            figures["s3_bytes_down"] = self._down
        figures["s3_dollars"] = self.dollars()
        return figures
