"""Login of browsers: the token in a cookie that scripts can't read, and a bound on wrong guesses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

from hark.errors import InvalidInput, Overloaded

COOKIE = "hark_session"
MAX_TOKEN_BYTES = 3800
"""Browsers keep about 4 KiB of a cookie."""
FAILURES = 10
"""Wrong logins of one address within the window; then it has to wait."""
WINDOW_SECONDS = 60.0
_ADDRESSES = 10_000
_FORBIDDEN = frozenset(' ",;\\')


def cookie_value(header: bytes | None) -> str | None:
    """The token in the cookies of a request."""
    if header is None:
        return None
    for part in header.decode("latin-1").split(";"):
        name, _, value = part.partition("=")
        if name.strip() == COOKIE:
            return value.strip() or None
    return None


def set_cookie(token: str, *, secure: bool) -> str:
    """The header that makes a browser keep the token until it is closed, and send it to nobody else.

    The token itself is kept, not a number that stands for it: any server on the store takes it, a restart forgets
    nobody, and a token that is revoked or over lets nobody in.
    """
    if not token.isascii() or not token.isprintable() or _FORBIDDEN & set(token) or len(token) > MAX_TOKEN_BYTES:
        raise InvalidInput(f"token: can't be kept in a cookie; at most {MAX_TOKEN_BYTES} characters of base64url")
    return _cookie(token, secure)


def clear_cookie(*, secure: bool) -> str:
    """The header that makes a browser forget the token."""
    return f"{_cookie('', secure)}; Max-Age=0"


def _cookie(value: str, secure: bool) -> str:
    return f"{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"


class Guesses:
    """Wrong logins by address, of the last minute."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._failures: OrderedDict[str, list[float]] = OrderedDict()
        """The oldest addresses first; they are forgotten when there are too many."""

    def check(self, address: str) -> None:
        """Refuse an address that was wrong too often."""
        failures = self._recent(address)
        if len(failures) >= FAILURES:
            wait = failures[0] + WINDOW_SECONDS - self._now()
            raise Overloaded(
                "too many wrong tokens from this address; wait a minute", code="too_many_logins", retry_after=wait
            )

    def failed(self, address: str) -> None:
        """Somebody at an address was wrong."""
        self._failures[address] = [*self._recent(address), self._now()]
        self._failures.move_to_end(address)
        if len(self._failures) > _ADDRESSES:
            self._failures.popitem(last=False)

    def _recent(self, address: str) -> list[float]:
        since = self._now() - WINDOW_SECONDS
        return [at for at in self._failures.get(address, ()) if at > since]
