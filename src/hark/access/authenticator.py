"""Finds out who asks, from what they send along: an API token or a JWT."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

import msgspec

from hark.access.files import Look, look_at
from hark.access.identity import ANYBODY, Identity
from hark.access.jwt_keys import Key, key_files, read_keys
from hark.access.jwts import verify
from hark.access.token_file import TokenFile, tokens_path
from hark.access.tokens import PREFIX, Token, matches, microseconds, split
from hark.clock import SECOND, Clock
from hark.errors import HarkError, Unauthorized
from hark.settings import Settings

log = logging.getLogger(__name__)

_LOOK_EVERY = SECOND
"""How often files are looked at: what was revoked is refused after that at the latest."""
_JWT_REMEMBERED = 60 * SECOND
"""How long a JWT is not verified again; a key that was withdrawn counts at once all the same."""
_FOR_EVER = 1 << 62
_MOST_REMEMBERED = 10_000
_SCHEME = "bearer"


class Authenticates(Protocol):
    """Says who asks."""

    @property
    def enabled(self) -> bool:
        """Whether anybody has to say who they are."""

    def identify(self, credential: str | None) -> Identity:
        """Who comes with this token; raises `Unauthorized`, or `Forbidden` if it gives no role."""


class Open:
    """No authentication: everybody may do everything."""

    enabled = False

    def identify(self, credential: str | None) -> Identity:
        """Anybody, whatever they send."""
        del credential
        return ANYBODY


class _Known(msgspec.Struct, frozen=True):
    """Who came with a credential that was verified."""

    identity: Identity
    until: int


class Authenticator:
    """Verifies tokens against files, which it reads again when they change.

    Once authentication is on, it stays on as long as this lives: a file that vanished or is damaged lets nobody in.
    Belongs to one thread.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Reads the files; raises `StoreUnusable` or `InvalidSetting` when one can't be used."""
        auth = settings.auth
        self._auth = auth
        self._clock = clock
        self._file = TokenFile(tokens_path(settings))
        self._key_files = key_files(auth) if auth.jwt_enabled else ()
        # Looked at before they are read: a change in between is seen the next time.
        self._looks = self._look()
        self._tokens: Mapping[str, Token] = self._file.read()
        self._keys: tuple[Key, ...] = read_keys(auth) if auth.jwt_enabled else ()
        self._enabled = auth.required or auth.jwt_enabled or bool(auth.tokens_file) or self._looks[0] is not None
        self._next_look = clock.now() + _LOOK_EVERY
        self._known: dict[str, _Known] = {}
        if self._enabled and not self._tokens and not self._keys:
            log.warning("nobody is let in: %s has no tokens; make one with: hark token create NAME", self._file.path)

    @property
    def enabled(self) -> bool:
        """Whether anybody has to say who they are."""
        if (now := self._clock.now()) >= self._next_look:
            self._look_again(now)
        return self._enabled

    def identify(self, credential: str | None) -> Identity:
        """Who comes with this token; anybody while authentication is off.

        Raises `Unauthorized` when it is missing, unknown or expired, and `Forbidden` when it gives no role.
        """
        now = self._clock.now()
        if now >= self._next_look:
            self._look_again(now)
        if credential is None:
            if self._enabled:
                raise Unauthorized("this server wants a token; send it as `Authorization: Bearer <token>`")
            return ANYBODY
        # A lookup compares texts only if their hashes are the same, and those are keyed: its time tells nothing.
        known = self._known.get(credential)
        if known is not None and now < known.until:
            return known.identity
        return self._verify(credential, now) if self._enabled else ANYBODY

    def _verify(self, credential: str, now: int) -> Identity:
        if credential.startswith(PREFIX):
            known = self._by_token(credential, now)
        elif self._auth.jwt_enabled:
            verified = verify(credential, self._keys, self._auth)
            known = _Known(verified.identity, min(verified.until, now + _JWT_REMEMBERED))
        else:
            raise Unauthorized("the token is unknown; this server takes API tokens: hark_...")
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[credential] = known
        return known.identity

    def _by_token(self, text: str, now: int) -> _Known:
        parts = split(text)
        if parts is None:
            raise Unauthorized("the token is not whole: expected hark_<id>_<secret>, as it was printed")
        token = self._tokens.get(parts[0])
        if not matches(token, parts[1]) or token is None:
            raise Unauthorized("the token is unknown or was revoked; `hark token list` shows those that there are")
        if token.has_expired(now):
            raise Unauthorized(f"the token {token.id} has expired; make another with: hark token create")
        return _Known(token.identity, _FOR_EVER if token.expires_at is None else microseconds(token.expires_at))

    # Files ------------------------------------------------------------------------------------------------------

    def _look(self) -> tuple[Look, ...]:
        return look_at(self._file.path), *map(look_at, self._key_files)

    def _look_again(self, now: int) -> None:
        """Take over what changed; who was let in before has to be verified again."""
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
            log.warning("there are tokens in %s now: nobody is let in without one any more", self._file.path)

    def _read_tokens(self) -> Mapping[str, Token]:
        try:
            tokens = self._file.read()
        except HarkError as error:
            log.error("nobody is let in with an API token: %s", error)
            return {}
        log.info("read %d tokens from %s", len(tokens), self._file.path)
        return tokens

    def _read_keys(self) -> tuple[Key, ...]:
        try:
            return read_keys(self._auth)
        except HarkError as error:
            log.error("nobody is let in with a JWT: %s", error)
            return ()


def credential_of(header: str | None) -> str | None:
    """The token in an Authorization header: `Bearer <token>`, or the token alone; raises `Unauthorized`."""
    if not header:
        return None
    scheme, space, rest = header.partition(" ")
    if not space:
        return scheme
    if scheme.lower() != _SCHEME:
        raise Unauthorized("expected `Authorization: Bearer <token>`, got another scheme")
    return rest.strip() or None
