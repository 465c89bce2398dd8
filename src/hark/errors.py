"""Every error that Hark answers with: one tree, each with a code, a status and what to do.

    HarkError
    ├── InvalidInput          400  the request is wrong; sending it again will not help
    │   ├── BodyTooLarge      413
    │   └── ...
    ├── Unauthorized          401  the token is missing, unknown or expired
    ├── Forbidden             403  this client may not
    ├── NotFound              404
    ├── Conflict              409  the request contradicts what is stored
    │   ├── LeaseLost         409  the message is no longer this consumer's
    │   └── TransactionRefused 409 nothing of a transaction was done; `index` says which operation is to blame
    ├── Refused               501  a capability that this server does not have
    ├── Overloaded            429  try again after `retry_after` seconds
    ├── Unavailable           503  try again after `retry_after` seconds
    └── EngineFailure         503  the store failed; nothing was kept (`outcome_unknown`: it may have been)
        └── StoreUnusable     -    the store can't be opened at all (start-up only)

`code` is stable and for machines, the text is for people and says what to do.
"""

from __future__ import annotations

from typing import Self


class HarkError(Exception):
    """Base of all errors that Hark raises or answers."""

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
        """The same for somebody else: errors are not shared, because whoever raises one adds to its traceback."""
        other = type(self).__new__(type(self), *self.args)
        other.__dict__.update(self.__dict__)
        other.__cause__ = self.__cause__
        return other


class InvalidInput(HarkError):
    """The request is malformed; the text names the item and the field."""

    code = "invalid_input"
    status = 400


class BodyTooLarge(InvalidInput):
    """The request body is over the limit."""

    code = "body_too_large"
    status = 413


class Unauthorized(HarkError):
    """The server wants a token, and got none that it knows: it is missing, unknown, expired or wrongly signed."""

    code = "unauthorized"
    status = 401


class Forbidden(HarkError):
    """This client may not do that."""

    code = "forbidden"
    status = 403


class NotFound(HarkError):
    """What the request names does not exist."""

    code = "not_found"
    status = 404


class MethodNotAllowed(HarkError):
    """The route exists, but not for this HTTP method."""

    code = "method_not_allowed"
    status = 405

    def __init__(self, text: str, *, allow: str) -> None:
        super().__init__(text)
        self.allow = allow


class Conflict(HarkError):
    """The request contradicts what is stored."""

    code = "conflict"
    status = 409


class LeaseLost(Conflict):
    """The lease under which a message came has ended: it comes again, or came to somebody else."""

    code = "lease_lost"


class TransactionRefused(Conflict):
    """A transaction was refused and nothing of it was done; `code` says why, such as `check_failed`."""

    code = "transaction_refused"

    def __init__(self, text: str, *, code: str | None = None, index: int | None = None) -> None:
        super().__init__(text, code=code)
        self.index = index
        """Which push or settlement was refused, if it was one and the server says which."""


class Refused(HarkError):
    """A capability that this server does not have, or not yet."""

    code = "not_supported"
    status = 501


class Overloaded(HarkError):
    """More work is waiting than the server accepts."""

    code = "overloaded"
    status = 429
    retryable = True

    def __init__(self, text: str, *, code: str | None = None, retry_after: float = 1) -> None:
        super().__init__(text, code=code, retry_after=retry_after)


class Unavailable(HarkError):
    """The server can't do this right now: maintenance, or stopping."""

    code = "unavailable"
    status = 503
    retryable = True

    def __init__(self, text: str, *, code: str | None = None, retry_after: float = 1) -> None:
        super().__init__(text, code=code, retry_after=retry_after)


class EngineFailure(Unavailable):
    """The store failed; nothing of this request was kept.

    Except with the code `outcome_unknown`: the way to the store broke before its answer came, so it may have been kept.
    """

    code = "engine_failure"


class StoreUnusable(HarkError):
    """The store can't be opened: corrupt, locked by another process, not writable, or too new."""

    code = "store_unusable"


class InvalidSetting(HarkError):
    """A setting is unknown or has a wrong value; the text names it and where it came from."""

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
_BY_CODE: dict[str, type[HarkError]] = {"engine_failure": EngineFailure, "outcome_unknown": EngineFailure}


def error_of(status: int, code: str, text: str, retry_after: float | None = None) -> HarkError:
    """The error that a server's answer means, for clients."""
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if kind is None:
        error = HarkError(text, code=code, retry_after=retry_after)
        error.status = status
        return error
    return kind(text, code=code, retry_after=1 if retry_after is None and kind.retryable else retry_after)
