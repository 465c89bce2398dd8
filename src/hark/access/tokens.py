"""API tokens: `hark_<id>_<secret>`. The server stores only a hash of the secret.

The secret is 32 random bytes, which cannot be guessed, so a single SHA-256 is enough. Slow hashes are needed only for
passwords, which people choose.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from hark.access.identity import ALL_QUEUES, Identity, Role
from hark.clock import SECOND
from hark.errors import InvalidInput

PREFIX = "hark_"
MAX_NAME = 255
"""Maximum number of characters of a name; it is stored with each message that the token pushes."""
MAX_QUEUES = 100
"""Maximum number of patterns of a token: each is compared with each queue of a request."""
_MAX_PATTERN = 255
_ID_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
"""Without characters that look alike."""
_ID_LENGTH = 8
_SECRET_BYTES = 32
_SHAPE = re.compile(r"hark_([a-z0-9]{8})_([A-Za-z0-9_-]{43})", re.ASCII)

RoleText = Annotated[str, Meta(pattern=r"^(read-only|read-write|admin)\Z")]
Moment = Annotated[datetime, Meta(tz=True)]


class Token(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The stored part of a token: everything except its secret."""

    id: Annotated[str, Meta(pattern=r"^[a-z0-9]{8}\Z")]
    name: str
    role: RoleText
    queues: tuple[str, ...] = ALL_QUEUES
    created_at: Moment
    expires_at: Moment | None = None
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    """Hash of the secret, in hexadecimal digits."""

    def __repr__(self) -> str:
        """Return a text without the hash, for logs."""
        return f"Token(id={self.id!r}, name={self.name!r}, role={self.role!r}, queues={self.queues!r})"

    @property
    def identity(self) -> Identity:
        """The identity of requests with this token."""
        return Identity(self.name, _role_of(self.role), self.queues)

    def has_expired(self, now: int) -> bool:
        """Return whether the token has expired at a time in microseconds since the epoch."""
        return self.expires_at is not None and microseconds(self.expires_at) <= now


def make_token(
    name: str,
    role: Role,
    queues: Sequence[str],
    *,
    now: int,
    expires_at: int | None = None,
    taken: Callable[[str], bool] = lambda _id: False,
) -> tuple[Token, str]:
    """Return a new token and its text, which is not stored; raises `InvalidInput`. `taken`: whether an id exists."""
    check_subject(name, "name")
    check_queues(queues)
    while taken(identifier := "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))):
        pass
    secret = base64.urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).rstrip(b"=").decode()
    token = Token(
        id=identifier,
        name=name,
        role=role.text,
        queues=tuple(queues),
        created_at=_moment(now),
        expires_at=None if expires_at is None else _moment(expires_at),
        sha256=_hash(secret),
    )
    return token, f"{PREFIX}{identifier}_{secret}"


def split(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of a token text; None if it is not a token."""
    match = _SHAPE.fullmatch(text)
    return None if match is None else (match[1], match[2])


def matches(token: Token | None, secret: str) -> bool:
    """Return whether the secret belongs to the token, in constant time."""
    return hmac.compare_digest(_hash(secret), _NOBODYS if token is None else token.sha256) and token is not None


def check_subject(name: object, field: str) -> str:
    """Check that a name fits into one line of a log."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable() or name != name.strip():
        raise InvalidInput(f"{field}: expected 1 to {MAX_NAME} printable characters without leading or trailing spaces")
    return name


def check_queues(queues: object) -> tuple[str, ...]:
    """Check a list of patterns."""
    if not isinstance(queues, Sequence) or isinstance(queues, str) or len(queues) > MAX_QUEUES:
        raise InvalidInput(f"queues: expected a list of at most {MAX_QUEUES} patterns, such as orders.*")
    for pattern in queues:
        if not isinstance(pattern, str) or not 1 <= len(pattern) <= _MAX_PATTERN:
            raise InvalidInput(f"queues: expected patterns of 1 to {_MAX_PATTERN} characters, such as orders.*")
    return tuple(queues)


def microseconds(moment: datetime) -> int:
    """Return the microseconds since the epoch."""
    whole = moment.replace(microsecond=0)
    return int(whole.timestamp()) * SECOND + moment.microsecond


def _moment(now: int) -> datetime:
    seconds, rest = divmod(now, SECOND)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)


def _role_of(text: str) -> Role:
    role = Role.of(text)
    assert role is not None  # The file was checked when it was read.
    return role


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


_NOBODYS = _hash("")
"""Used for the comparison if the token does not exist; no secret of the right length has this hash."""
