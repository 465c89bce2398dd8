"""All errors of Hark: one class hierarchy. Each error has a code, an HTTP status and a text that says what to do.

    HarkError
    ├── InvalidInput          400  the request is invalid; sending it again does not help
    │   ├── BodyTooLarge      413
    │   └── ...
    ├── Unauthorized          401  the token is missing, unknown, expired or revoked
    ├── Forbidden             403  the request is not allowed
    ├── NotFound              404
    ├── Conflict              409  the request conflicts with the stored state
    │   ├── LeaseLost         409  the lease on the message has expired
    │   └── TransactionRefused 409 the transaction was not applied; `index` is the failed operation
    ├── Refused               501  the server does not support this feature
    ├── Overloaded            429  retry after `retry_after` seconds
    ├── Unavailable           503  retry after `retry_after` seconds
    │   └── EngineFailure     503  the store failed and stored nothing (`outcome_unknown`: it may have stored the data)
    │       └── DiskFull      507  the disk of the store is full or nearly full
    ├── StoreUnusable         -    the store cannot be opened (start-up only)
    └── InvalidSetting        -    a setting is unknown or invalid (start-up only)

`code` is stable and meant for programs. The text is meant for people.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Self


class HarkError(Exception):
    """Base class of all errors that Hark raises or returns."""

    code = "error"
    status = 500
    retryable = False

    def __init__(self, text: str, *, code: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.text = text
        if code is not None:
            self.code = code
        self.retry_after = retry_after

    def again(self) -> Self:
        """Return a copy for another caller: each raise adds to the traceback of an error, so errors are not shared."""
        other = type(self).__new__(type(self), *self.args)
        other.__dict__.update(self.__dict__)
        other.__cause__ = self.__cause__
        return other


class InvalidInput(HarkError):
    """The request is invalid. The text names the item and the field."""

    code = "invalid_input"
    status = 400


class BodyTooLarge(InvalidInput):
    """The request body is larger than the limit."""

    code = "body_too_large"
    status = 413


class Unauthorized(HarkError):
    """The server requires a token, and the token is missing, unknown, expired, revoked or not signed correctly."""

    code = "unauthorized"
    status = 401


class Forbidden(HarkError):
    """The request is not allowed: the role or the queues of the token do not permit it."""

    code = "forbidden"
    status = 403


class NotFound(HarkError):
    """The requested object does not exist."""

    code = "not_found"
    status = 404


class MethodNotAllowed(HarkError):
    """The route does not support this HTTP method."""

    code = "method_not_allowed"
    status = 405

    def __init__(self, text: str, *, allow: str) -> None:
        super().__init__(text)
        self.allow = allow


class Conflict(HarkError):
    """The request conflicts with the stored state."""

    code = "conflict"
    status = 409


class LeaseLost(Conflict):
    """The lease on a message has expired. The message is redelivered, or another consumer has received it."""

    code = "lease_lost"


class TransactionRefused(Conflict):
    """The transaction was refused and nothing of it was applied. `code` is the reason, such as `check_failed`."""

    code = "transaction_refused"

    def __init__(self, text: str, *, code: str | None = None, index: int | None = None) -> None:
        super().__init__(text, code=code)
        self.index = index
        """Position of the push or acknowledgement that was refused; None if it is not known."""


class Refused(HarkError):
    """The server does not support this feature."""

    code = "not_supported"
    status = 501


class Overloaded(HarkError):
    """The server or a queue is at its limit. Retry after `retry_after` seconds."""

    code = "overloaded"
    status = 429
    retryable = True

    def __init__(self, text: str, *, code: str | None = None, retry_after: float = 1) -> None:
        super().__init__(text, code=code, retry_after=retry_after)


class Unavailable(HarkError):
    """The server is unavailable, for example during maintenance or shutdown. Retry after `retry_after` seconds."""

    code = "unavailable"
    status = 503
    retryable = True

    def __init__(self, text: str, *, code: str | None = None, retry_after: float = 1) -> None:
        super().__init__(text, code=code, retry_after=retry_after)


class EngineFailure(Unavailable):
    """The store failed and nothing of this request was stored.

    Exception: with the code `outcome_unknown` the connection to the store broke before the response arrived, so the
    request may have been stored.
    """

    code = "engine_failure"


class DiskFull(EngineFailure):
    """The disk of the store is full, or nearly full, and nothing of this request was stored."""

    code = "disk_full"
    status = 507

    def __init__(self, text: str, *, code: str | None = None, retry_after: float = 10) -> None:
        super().__init__(text, code=code, retry_after=retry_after)


class StoreUnusable(HarkError):
    """The store cannot be opened: it is corrupt, locked by another process, not writable, or of a newer version."""

    code = "store_unusable"


class InvalidSetting(HarkError):
    """A setting is unknown or has an invalid value. The text names the setting and its source."""

    code = "invalid_setting"


_BY_STATUS: dict[int, type[HarkError]] = {
    400: InvalidInput,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: BodyTooLarge,
    429: Overloaded,
    501: Refused,
    503: Unavailable,
}
_BY_CODE: dict[str, type[HarkError]] = {
    "engine_failure": EngineFailure,
    "outcome_unknown": EngineFailure,
    "store_unavailable": EngineFailure,
    "disk_full": DiskFull,
}


def error_of(status: int, code: str, text: str, retry_after: float | None = None) -> HarkError:
    """Return the error that corresponds to a response of a server, for clients."""
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if kind is None:
        error = HarkError(text, code=code, retry_after=retry_after)
        error.status = status
        return error
    return kind(text, code=code, retry_after=1 if retry_after is None and kind.retryable else retry_after)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for the end of an error text: the known name that is most similar. Empty if none is similar."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
