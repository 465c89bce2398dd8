"""Where a store is: `s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=eu-west-1`."""

from __future__ import annotations

import re
from typing import NoReturn
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec

from hark.errors import InvalidSetting

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
        """What people call it; there is nothing secret in it."""
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
