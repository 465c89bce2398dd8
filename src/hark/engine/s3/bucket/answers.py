"""Translates responses of the bucket to errors, by status and code."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from hark.clock import SECOND
from hark.engine.s3.bucket.api import BucketError, Conflicting, Refused, Taken, Unclear

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


def meaning(status: int, code: str, said: str) -> BucketError:
    """The error for a response; `said` is its text for people."""
    if status == 412:
        return Taken(said)
    if status == 409:
        return Conflicting(said)
    if status == 404 and code != "NoSuchBucket":
        return Missing(said)
    if status in (429, 503) or code in _SLOW_DOWN:
        return Unclear(said, slow_down=True)
    # Of the 5xx statuses, only 501 is about the request itself.
    if status == 408 or (status >= 500 and status != 501) or code in _UNCLEAR:
        return Unclear(said)
    return Refused(f"{said}; {advice(status, code)}")


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
