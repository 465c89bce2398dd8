"""Authenticates requests by API token or JWT."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from hark.access import tokens
from hark.access.jwts import Key, Verified, key_files, read_keys, verify
from hark.access.tokens import UNRESTRICTED, Identity, Look, Token, TokenFile
from hark.clock import SECOND, Clock
from hark.errors import HarkError, Unauthorized
from hark.settings import Settings

log = logging.getLogger(__name__)

_LOOK_EVERY = SECOND
"""Interval between checks of the files: a revoked token is rejected after this time at the latest."""
_JWT_REMEMBERED = 60 * SECOND
"""How long a verified JWT is cached. A change of the keys clears the cache."""
_FOR_EVER = 1 << 62
_MOST_REMEMBERED = 10_000
_SCHEME = "bearer"


class Authenticates(Protocol):
    """Authenticates requests."""

    @property
    def enabled(self) -> bool:
        """Whether authentication is on."""

    def identify(self, credential: str | None) -> Identity:
        """Return the identity of a token; raises `Unauthorized`, or `Forbidden` if it has no role."""


class Open:
    """No authentication: every request has all permissions."""

    enabled = False

    def identify(self, credential: str | None) -> Identity:
        """Return an identity with all permissions."""
        del credential
        return UNRESTRICTED


class Authenticator:
    """Verifies tokens against files, and reads the files again when they change.

    Once authentication is on, it stays on: if a file is removed or damaged, all tokens are rejected. Not thread-safe.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Read the files; raises `StoreUnusable` or `InvalidSetting` if one cannot be used."""
        auth = settings.auth
        self._auth = auth
        self._clock = clock
        self._file = TokenFile(tokens.tokens_path(settings))
        self._key_files = key_files(auth) if auth.jwt_enabled else ()
        # The state is taken before the files are read, so that a change in between is detected at the next check.
        self._looks = self._look()
        self._tokens: Mapping[str, Token] = self._file.read()
        self._keys: tuple[Key, ...] = read_keys(auth) if auth.jwt_enabled else ()
        self._enabled = auth.required or auth.jwt_enabled or bool(auth.tokens_file) or self._looks[0] is not None
        self._next_look = clock.now() + _LOOK_EVERY
        self._known: dict[str, Verified] = {}
        if self._enabled and not self._tokens and not self._keys:
            log.warning(
                "all requests are rejected: authentication is on and %s has no tokens; create one with: "
                "hark token create NAME",
                self._file.path,
            )

    @property
    def enabled(self) -> bool:
        """Whether authentication is on."""
        if (now := self._clock.now()) >= self._next_look:
            self._look_again(now)
        return self._enabled

    def identify(self, credential: str | None) -> Identity:
        """Return the identity of a token; an identity with all permissions while authentication is off.

        Raises `Unauthorized` if the token is missing, unknown or expired, and `Forbidden` if it has no role.
        """
        now = self._clock.now()
        if now >= self._next_look:
            self._look_again(now)
        if credential is None:
            if self._enabled:
                raise Unauthorized("this server requires a token; send it as `Authorization: Bearer <token>`")
            return UNRESTRICTED
        # A lookup compares texts only if their keyed hashes are equal, so its duration reveals nothing.
        known = self._known.get(credential)
        if known is not None and now < known.until:
            return known.identity
        return self._verify(credential, now) if self._enabled else UNRESTRICTED

    def _verify(self, credential: str, now: int) -> Identity:
        if credential.startswith(tokens.PREFIX):
            known = self._by_token(credential, now)
        elif self._auth.jwt_enabled:
            known = verify(credential, self._keys, self._auth)
            known = Verified(known.identity, min(known.until, now + _JWT_REMEMBERED))
        else:
            raise Unauthorized("the token is unknown; this server accepts only API tokens, which begin with hark_")
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[credential] = known
        return known.identity

    def _by_token(self, text: str, now: int) -> Verified:
        parts = tokens.split(text)
        if parts is None:
            raise Unauthorized(
                "the token is incomplete: expected hark_<id>_<secret>, as `hark token create` printed it"
            )
        token = self._tokens.get(parts[0])
        if not tokens.matches(token, parts[1]) or token is None:
            raise Unauthorized("the token is unknown or was revoked; `hark token list` shows the valid tokens")
        if token.has_expired(now):
            raise Unauthorized(f"the token {token.id} has expired; create a new one with: hark token create NAME")
        return Verified(
            token.identity, _FOR_EVER if token.expires_at is None else tokens.microseconds(token.expires_at)
        )

    def reload(self) -> None:
        """Read all files again, changed or not."""
        self._looks = ()
        self._look_again(self._clock.now())

    # Files ------------------------------------------------------------------------------------------------------

    def _look(self) -> tuple[Look, ...]:
        return tokens.look_at(self._file.path), *map(tokens.look_at, self._key_files)

    def _look_again(self, now: int) -> None:
        """Read changed files again, and clear the cache of verified tokens."""
        self._next_look = now + _LOOK_EVERY
        looks = self._look()
        if looks == self._looks:
            return
        self._looks = looks
        self._known.clear()
        self._tokens = self._read_tokens()
        if self._auth.jwt_enabled:
            self._keys = self._read_keys()
        if looks[0] is not None and not self._enabled:
            self._enabled = True
            log.warning("found tokens in %s: authentication is now on, and requests need a token", self._file.path)

    def _read_tokens(self) -> Mapping[str, Token]:
        try:
            found = self._file.read()
        except HarkError as error:
            log.error("all API tokens are rejected until the file is repaired: %s", error)
            return {}
        log.info("read %d tokens from %s", len(found), self._file.path)
        return found

    def _read_keys(self) -> tuple[Key, ...]:
        try:
            return read_keys(self._auth)
        except HarkError as error:
            log.error("all JWTs are rejected until the keys are repaired: %s", error)
            return ()


def credential_of(header: str | None) -> str | None:
    """Return the token of an Authorization header, `Bearer <token>` or only the token; raises `Unauthorized`."""
    if not header:
        return None
    scheme, space, rest = header.partition(" ")
    if not space:
        return scheme
    if scheme.lower() != _SCHEME:
        raise Unauthorized("the Authorization header has another scheme; expected `Authorization: Bearer <token>`")
    return rest.strip() or None
