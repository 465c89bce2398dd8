"""Login of web browsers: the token in a cookie that scripts cannot read, and a limit on failed logins."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

from hark.errors import InvalidInput, Overloaded

COOKIE = "hark_session"
MAX_TOKEN_BYTES = 3800
"""Web browsers limit cookies to about 4 KiB."""
FAILURES = 10
"""Number of failed logins of one address within the window before further logins are rejected."""
WINDOW_SECONDS = 60.0
_ADDRESSES = 10_000
_FORBIDDEN = frozenset(' ",;\\')


def cookie_value(header: bytes | None) -> str | None:
    """Return the token in the cookies of a request."""
    if header is None:
        return None
    for part in header.decode("latin-1").split(";"):
        name, _, value = part.partition("=")
        if name.strip() == COOKIE:
            return value.strip() or None
    return None


def set_cookie(token: str, *, secure: bool) -> str:
    """Return the `Set-Cookie` header that keeps the token until the web browser is closed.

    The cookie has the token itself and not a session id. So any server on the store accepts it, a restart does not log
    users out, and a revoked or expired token no longer works.
    """
    if not token.isascii() or not token.isprintable() or _FORBIDDEN & set(token) or len(token) > MAX_TOKEN_BYTES:
        raise InvalidInput(
            f"token: cannot be stored in a cookie; expected at most {MAX_TOKEN_BYTES} printable ASCII characters "
            "without spaces, quotes, commas, semicolons or backslashes"
        )
    return _cookie(token, secure)


def clear_cookie(*, secure: bool) -> str:
    """Return the `Set-Cookie` header that removes the token."""
    return f"{_cookie('', secure)}; Max-Age=0"


def _cookie(value: str, secure: bool) -> str:
    return f"{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"


class Guesses:
    """Failed logins of the last minute, by client address."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._failures: OrderedDict[str, list[float]] = OrderedDict()
        """The oldest addresses come first; they are removed when there are too many."""

    def check(self, address: str) -> None:
        """Raise `Overloaded` if an address has too many failed logins."""
        failures = self._recent(address)
        if len(failures) >= FAILURES:
            wait = failures[0] + WINDOW_SECONDS - self._now()
            raise Overloaded(
                "too many failed logins from this address; wait one minute and try again",
                code="too_many_logins",
                retry_after=wait,
            )

    def failed(self, address: str) -> None:
        """Count a failed login of an address."""
        self._failures[address] = [*self._recent(address), self._now()]
        self._failures.move_to_end(address)
        if len(self._failures) > _ADDRESSES:
            self._failures.popitem(last=False)

    def _recent(self, address: str) -> list[float]:
        since = self._now() - WINDOW_SECONDS
        return [at for at in self._failures.get(address, ()) if at > since]
