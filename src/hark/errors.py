"""Every error that Hark answers with: one tree, each with a code, a status and what to do.

    HarkError
    ├── InvalidInput          400  the request is wrong; sending it again will not help
    │   ├── BodyTooLarge      413
    │   └── ...
    ├── Forbidden             403  this client may not
    ├── NotFound              404
    ├── Conflict              409  the request contradicts what is stored
    ├── Refused               501  a capability that this server does not have
    ├── Overloaded            429  try again after `retry_after` seconds
    ├── Unavailable           503  try again after `retry_after` seconds
    └── EngineFailure         503  the store failed; nothing was kept (`outcome_unknown`: it may have been)
        └── StoreUnusable     -    the store can't be opened at all (start-up only)

`code` is stable and for machines, the text is for people and says what to do.
"""

from __future__ import annotations


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


class InvalidInput(HarkError):
    """The request is malformed; the text names the item and the field."""

    code = "invalid_input"
    status = 400


class BodyTooLarge(InvalidInput):
    """The request body is over the limit."""

    code = "body_too_large"
    status = 413


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
