"""The interface to an object store, its address and errors, the cost of requests, and its time."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import Literal, NoReturn, Protocol
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec

from hark.clock import SECOND, Clock
from hark.errors import InvalidSetting

# Keys are relative to the prefix of the store. Every method sends one request and never repeats it, because only the
# caller knows whether a repetition is safe.


class Stored(msgspec.Struct, frozen=True):
    """An object as it was read."""

    body: bytes
    etag: str


class BucketError(Exception):
    """A failed request."""

    slow_down = False
    """The store asked for fewer requests."""


class Taken(BucketError):
    """412: the condition is false, because the object exists or was changed."""


class Conflicting(BucketError):
    """409: another request for the same key was in flight; read it, then retry."""


class Unclear(BucketError):
    """No answer, or a 5xx or 429: the outcome is unknown.

    `was_sent`: False where there was no connection, so that nothing happened.
    """

    def __init__(self, text: str, *, slow_down: bool = False, was_sent: bool = True) -> None:
        super().__init__(text)
        self.slow_down = slow_down
        self.was_sent = was_sent


class Refused(BucketError):
    """Any other answer (no such bucket, access denied, ...): the request had no effect, and a retry would not help."""


class Bucket(Protocol):
    """One prefix of one bucket."""

    @property
    def name(self) -> str:
        """The name in messages: `s3://bucket/prefix`."""

    @property
    def requests(self) -> RequestCounter:
        """Counts of the requests."""

    @property
    def time(self) -> ServerTime:
        """The time of the store, from the dates of its answers."""

    async def open(self) -> None:
        """Open the client; nothing is sent. Raises `Refused` if the configuration is invalid."""

    async def close(self) -> None:
        """Close the connections."""

    async def get(self, key: str) -> Stored | None:
        """Return an object; None: it does not exist."""

    async def get_range(self, key: str, first: int, length: int) -> bytes | None:
        """Return a range of an object; None: it does not exist. Raises `Refused` if the object is shorter."""

    async def create(self, key: str, body: bytes) -> str:
        """Create an object (If-None-Match: *) and return its ETag. Raises `Taken`."""

    async def replace(self, key: str, body: bytes, etag: str) -> str:
        """Replace the object with this ETag (If-Match) and return the new ETag. Raises `Taken`."""

    async def put(self, key: str, body: bytes) -> str:
        """Store an object unconditionally and return its ETag."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, with one request for each 1,000. Missing ones are no error."""


SCHEME = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# What all stores and tools take without escaping; S3 itself allows more.
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()=-]+(/[A-Za-z0-9!_.*'()=-]+)*")
_REGION = re.compile(r"[A-Za-z0-9-]+")
_MAX_PREFIX = 512
_PARAMETERS = ("endpoint", "region")


class Address(msgspec.Struct, frozen=True):
    """A prefix of a bucket, and how to reach it."""

    bucket: str
    prefix: str = ""
    """Without slashes at its ends; empty: the whole bucket."""
    endpoint: str | None = None
    """None: as the settings say, else as the AWS tools find it."""
    region: str | None = None

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read the URL of an engine; raises `InvalidSetting` with what is wrong."""
        if not url.startswith(SCHEME):
            _refuse("expected s3://bucket/prefix")
        try:
            parts = urlsplit(url)
        except ValueError:
            _refuse("invalid URL; expected s3://bucket/prefix")
        parameters = _parameters(parts)
        return cls(
            bucket=_bucket(parts),
            prefix=_prefix(parts),
            endpoint=_endpoint(parameters.get("endpoint")),
            region=_region(parameters.get("region")),
        )

    @property
    def text(self) -> str:
        """The name in messages; it contains no secrets."""
        return f"{SCHEME}{self.bucket}/{self.prefix}" if self.prefix else f"{SCHEME}{self.bucket}"

    def key(self, name: str) -> str:
        """The full key of an object whose name is relative to the prefix."""
        return f"{self.prefix}/{name}" if self.prefix else name


def _refuse(text: str) -> NoReturn:
    # The URL itself is not repeated: it may have credentials in it.
    raise InvalidSetting(f"engine: {text}") from None


def _bucket(parts: SplitResult) -> str:
    if "@" in parts.netloc:
        _refuse(
            "the URL of a bucket must not contain credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "AWS_PROFILE"
        )
    if not parts.netloc:
        _refuse("the URL names no bucket; expected s3://bucket/prefix")
    if _BUCKET.fullmatch(parts.netloc) is None or ".." in parts.netloc:
        _refuse(
            f"{parts.netloc!r} is not a bucket name: expected 3 to 63 lower-case letters, digits, dots and hyphens "
            "(for a server other than AWS, add ?endpoint=http://host:port)"
        )
    return parts.netloc


def _prefix(parts: SplitResult) -> str:
    if parts.fragment:
        _refuse(f"the URL of a bucket cannot have a part after '#'; remove {parts.fragment!r}")
    prefix = parts.path.strip("/")
    if not prefix:
        return ""
    if _PREFIX.fullmatch(prefix) is None or {".", ".."} & set(prefix.split("/")) or len(prefix) > _MAX_PREFIX:
        _refuse(
            f"invalid prefix {prefix!r}; expected names of letters, digits and !_.*'()=- between single slashes, "
            f"at most {_MAX_PREFIX} characters"
        )
    return prefix


def _parameters(parts: SplitResult) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _PARAMETERS:
            _refuse(f"unknown parameter {name!r} in the URL of a bucket; expected endpoint or region")
        if name in found:
            _refuse(f"the URL contains {name}= twice; remove one of them")
        found[name] = value
    return found


def _endpoint(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        _refuse("endpoint= is not the URL of a server; expected, for example, ?endpoint=http://127.0.0.1:9000")
    if "@" in parts.netloc or parts.query or parts.fragment:
        _refuse("endpoint= must be the URL of a server without credentials and parameters")
    return text.rstrip("/")


def _region(text: str | None) -> str | None:
    if text is not None and _REGION.fullmatch(text) is None:
        _refuse(f"region={text!r} is not the name of a region; expected, for example, region=eu-west-1")
    return text


_SLOW_DOWN = frozenset(
    {
        "RequestLimitExceeded",
        "RequestThrottled",
        "ServiceUnavailable",
        "SlowDown",
        "SlowDownRead",
        "SlowDownWrite",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)
# S3 answers 400 when the body of a request arrived too slowly, although the request is valid.
_UNCLEAR = frozenset({"InternalError", "OperationTimeout", "RequestTimeout"}) | _SLOW_DOWN
_ABOUT_CREDENTIALS = "the credentials are invalid; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_EXPIRED = "the credentials have expired; renew them"
_ELSEWHERE = "the bucket is in another region; set it with ?region= in the engine URL, or as s3.region"
_FORBIDDEN = (
    "the credentials lack a permission; Hark needs s3:GetObject, s3:PutObject and s3:DeleteObject on the objects, and "
    "s3:ListBucket on the bucket (without it, S3 answers 403 for missing objects)"
)
_ADVICE = {
    "AccessDenied": _FORBIDDEN,
    "AuthorizationHeaderMalformed": _ELSEWHERE,
    "ExpiredToken": _EXPIRED,
    "InvalidAccessKeyId": _ABOUT_CREDENTIALS,
    "InvalidToken": _EXPIRED,
    "NoSuchBucket": "the bucket does not exist; create it, or correct its name in the engine URL",
    "NotImplemented": "the store does not support this request, so Hark cannot use it; choose another store",
    "PermanentRedirect": _ELSEWHERE,
    "RequestTimeTooSkewed": "the clock of this machine is wrong; synchronise it",
    "SignatureDoesNotMatch": _ABOUT_CREDENTIALS,
    "TokenRefreshRequired": _EXPIRED,
}


class Missing(BucketError):
    """404: the object does not exist. Never leaves this package."""


def meaning(status: int, code: str, text: str) -> BucketError:
    """The error for a response; `text` is its text for people."""
    if status == 412:
        return Taken(text)
    if status == 409:
        return Conflicting(text)
    if status == 404 and code != "NoSuchBucket":
        return Missing(text)
    if status in (429, 503) or code in _SLOW_DOWN:
        return Unclear(text, slow_down=True)
    # Of the 5xx statuses, only 501 is about the request itself.
    if status == 408 or (status >= 500 and status != 501) or code in _UNCLEAR:
        return Unclear(text)
    return Refused(f"{text}; {advice(status, code)}")


def advice(status: int, code: str) -> str:
    """The remedy for a permanent error."""
    known = _ADVICE.get(code)
    if known is not None:
        return known
    if status == 403:
        return _FORBIDDEN
    if status == 501:
        return _ADVICE["NotImplemented"]
    if 300 <= status < 400:
        return _ELSEWHERE
    return "check that the engine URL names an S3 server and an existing bucket"


def date_of(header: str | None) -> int | None:
    """A Date header in microseconds, or None if it is missing or invalid."""
    if header is None:
        return None
    try:
        return int(parsedate_to_datetime(header).timestamp()) * SECOND
    except (ValueError, OverflowError):
        return None


Kind = Literal["put", "get", "list", "delete"]
KINDS: tuple[Kind, ...] = ("put", "get", "list", "delete")
_MILLION = 1_000_000


class RequestCounter:
    """Counts requests. Any thread may ask and count.

    Each one that was sent counts, also in the estimate of costs: stores take money for most refusals as well. The
    prices are dollars for a million requests, by default those of S3 Standard. To delete is free everywhere, and
    nothing is ever listed.
    """

    def __init__(self, put_dollars: float = 5.0, get_dollars: float = 0.4) -> None:
        self._prices: dict[Kind, float] = {"put": put_dollars, "get": get_dollars}
        self._lock = threading.Lock()
        self._sent: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._failed: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self.bytes_up = 0
        """Number of sent bytes in bodies."""
        self.bytes_down = 0
        """Number of received bytes in bodies."""

    def sent(self, kind: Kind, *, up: int = 0) -> None:
        """Count a request and the bytes of its body."""
        with self._lock:
            self._sent[kind] += 1
            self.bytes_up += up

    def received(self, down: int) -> None:
        """Count the bytes of a received body."""
        with self._lock:
            self.bytes_down += down

    def failed(self, kind: Kind) -> None:
        """Count a failed request. A taken or missing key is no failure."""
        with self._lock:
            self._failed[kind] += 1

    def count(self, kind: Kind) -> int:
        """Return the number of requests of a kind, including failed ones."""
        return self._sent[kind]

    def failures(self, kind: Kind | None = None) -> int:
        """Return the number of failed requests of a kind, or of all."""
        return sum(self._failed.values()) if kind is None else self._failed[kind]

    def dollars(self) -> float:
        """Return the cost of all requests."""
        return sum(self._sent[kind] * price for kind, price in self._prices.items()) / _MILLION

    def as_metrics(self) -> dict[str, float]:
        """Return all values by metric name."""
        return {
            **{f"s3_requests_{kind}": self._sent[kind] for kind in KINDS},
            "s3_requests_failed": self.failures(),
            "s3_bytes_up": self.bytes_up,
            "s3_bytes_down": self.bytes_down,
            "s3_dollars": self.dollars(),
        }


# A date has whole seconds, and was written at an unknown moment between request and answer. So each answer allows a
# range of offsets between the clock of the store and the local one, and all answers together allow the intersection: a
# few of them narrow it to about a round trip. The range grows with time, because clocks drift.


DRIFT_PPM = 200
"""Maximum drift between two clocks in microseconds per second; quartz is ten times better."""


class ServerTime:
    """The time of the store. Any thread can use it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._range: tuple[int, int] | None = None
        self._at = 0
        """Local time at which the range was valid."""

    def note(self, date: int, sent: int, received: int) -> None:
        """Note the date of an answer (whole seconds, in microseconds), with the local times before and after it."""
        # The date was written at any moment of the exchange, and clocks drift meanwhile.
        drift = (received - sent) * DRIFT_PPM // SECOND
        low, high = date - received - drift, date + SECOND - sent + drift
        with self._lock:
            known = self._grown(received)
            if known is not None and high < known[0] and sent < self._at:
                # It was sent before the last answer arrived and is older: the machine was suspended between them.
                return
            if known is not None and max(low, known[0]) <= min(high, known[1]):
                low, high = max(low, known[0]), min(high, known[1])
            # Otherwise one of the clocks was set, and the earlier range is void.
            self._range = (low, high)
            self._at = max(self._at, received)

    def offset(self) -> int:
        """Return the smallest correction that the answers allow, so a correct clock is not corrected."""
        with self._lock:
            known = self._grown(self._clock.now())
        return 0 if known is None else min(max(0, known[0]), known[1])

    def allowed(self) -> tuple[int, int] | None:
        """Return the smallest and largest possible offset; None before the first answer."""
        with self._lock:
            return self._grown(self._clock.now())

    def now(self) -> int:
        """Return the estimated time of the store in microseconds."""
        return self._clock.now() + self.offset()

    def _grown(self, now: int) -> tuple[int, int] | None:
        if self._range is None:
            return None
        # Answers can be noted out of order; time must not run backwards.
        drift = -(-max(0, now - self._at) * DRIFT_PPM // SECOND)
        return self._range[0] - drift, self._range[1] + drift
