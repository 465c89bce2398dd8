"""What the answers of a store mean, by their status and their code."""

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
# S3 answers 400 when the body of a request came too slowly, though nobody did anything wrong.
_UNCLEAR = frozenset({"InternalError", "OperationTimeout", "RequestTimeout"}) | _SLOW_DOWN
_ABOUT_CREDENTIALS = (
    "these credentials are not accepted; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
)
_EXPIRED = "the credentials have expired; renew them"
_ELSEWHERE = "the bucket is in another region; name it with ?region= in the URL of the engine, or as s3.region"
_FORBIDDEN = (
    "these credentials may not do that; Hark needs s3:GetObject, s3:PutObject and s3:DeleteObject on the objects, and "
    "s3:ListBucket on the bucket (without it, S3 calls an object that is missing forbidden)"
)
_ADVICE = {
    "AccessDenied": _FORBIDDEN,
    "AuthorizationHeaderMalformed": _ELSEWHERE,
    "ExpiredToken": _EXPIRED,
    "InvalidAccessKeyId": _ABOUT_CREDENTIALS,
    "InvalidToken": _EXPIRED,
    "NoSuchBucket": "there is no such bucket; create it, or correct its name in the URL of the engine",
    "NotImplemented": "the store does not know this kind of request, so Hark can't be used on it",
    "PermanentRedirect": _ELSEWHERE,
    "RequestTimeTooSkewed": "the clock of this machine is wrong; set it",
    "SignatureDoesNotMatch": _ABOUT_CREDENTIALS,
    "TokenRefreshRequired": _EXPIRED,
}


class Missing(BucketError):
    """404: there is no such object. Never leaves this folder."""


def meaning(status: int, code: str, said: str) -> BucketError:
    """The error that an answer is; `said` is what people should read of it."""
    if status == 412:
        return Taken(said)
    if status == 409:
        return Conflicting(said)
    if status == 404 and code != "NoSuchBucket":
        return Missing(said)
    if status in (429, 503) or code in _SLOW_DOWN:
        return Unclear(said, slow_down=True)
    # 501 is the one of the 5xx that is about the request.
    if status == 408 or (status >= 500 and status != 501) or code in _UNCLEAR:
        return Unclear(said)
    return Refused(f"{said}; {advice(status, code)}")


def advice(status: int, code: str) -> str:
    """What to do about an answer that does not go away."""
    known = _ADVICE.get(code)
    if known is not None:
        return known
    if status == 403:
        return _FORBIDDEN
    if status == 501:
        return _ADVICE["NotImplemented"]
    if 300 <= status < 400:
        return _ELSEWHERE
    return "check the URL of the engine: is that an S3 server, and is this its bucket?"


def date_of(header: str | None) -> int | None:
    """A Date header in microseconds; None: there is none that makes sense."""
    if header is None:
        return None
    try:
        return int(parsedate_to_datetime(header).timestamp()) * SECOND
    except (ValueError, OverflowError):
        return None
