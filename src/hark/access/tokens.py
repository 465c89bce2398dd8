"""The identities of requests; API tokens: `hark_<id>_<secret>`, of which only a hash of the secret is stored."""

from __future__ import annotations

import base64
import fcntl
import fnmatch
import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from hark.api.operations import Role
from hark.clock import SECOND
from hark.errors import Forbidden, InvalidInput, NotFound, StoreUnusable
from hark.settings import Settings

log = logging.getLogger(__name__)

# Identities ------------------------------------------------------------------------------------------------

ALL_QUEUES = ("*",)
"""The patterns that permit every queue."""


class Identity(msgspec.Struct, frozen=True, dict=True):
    """The subject and the permissions of a request."""

    subject: str
    """The name of the token, or the `sub` of the JWT; empty when authentication is off."""
    role: Role
    queues: tuple[str, ...] = ALL_QUEUES
    """Patterns of permitted queues: `*` matches any characters, `?` matches one."""

    @cached_property
    def restricted(self) -> bool:
        """Whether only some queues are permitted."""
        return "*" not in self.queues

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # Without patterns nothing matches: an empty list means no queue, not every queue.
        return re.compile("|".join(map(fnmatch.translate, self.queues)) or r"(?!)")

    def may_use(self, queue: str) -> bool:
        """Return whether the queue is permitted. Patterns are case-sensitive."""
        return not self.restricted or self._pattern.match(queue) is not None

    def may_label(self, namespace: str) -> bool:
        """Return whether one of the patterns covers a namespace whole, with every queue that it can have (rule 27)."""
        return not self.restricted or any(_covers(pattern, f"{namespace}.") for pattern in self.queues)

    def check_queue(self, queue: str) -> None:
        """Raise `Forbidden` with the code `queue_not_allowed` if the queue is not permitted."""
        if not self.may_use(queue):
            raise Forbidden(
                f"this token does not permit the queue {queue!r}; use a token whose queue patterns include it",
                code="queue_not_allowed",
            )


def _covers(pattern: str, prefix: str) -> bool:
    """Return whether a pattern matches every name with this prefix."""
    if not pattern.endswith("*"):
        return False
    return any(fnmatch.fnmatchcase(prefix[:length], pattern[:-1]) for length in range(len(prefix) + 1))


UNRESTRICTED = Identity("", Role.ADMIN)
"""The identity of every request while authentication is off."""
ANONYMOUS = Identity("", Role.READ_ONLY, ())
"""The identity of requests that are not identified, such as those to public routes. It has no queues."""


# Files with secrets ------------------------------------------------------------------------------------------

Look = tuple[int, int, int, int] | None
"""Metadata that changes with the file; None: the file does not exist."""


def look_at(path: Path) -> Look:
    """Return the metadata of a file. An inaccessible file counts as missing."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_secret(path: Path) -> bytes:
    """Return the content of a secret file; log a warning if other users can access it."""
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            text = "other users can read or write the secret file %s (mode %o); restrict it with: chmod 600 %s"
            log.warning(text, path, mode, path)
        return file.read()


# The secret is 32 random bytes, which cannot be guessed, so a single SHA-256 is enough. Slow hashes are needed only for
# passwords, which people choose.

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
        role = Role.of(self.role)
        assert role is not None  # The file was checked when it was read.
        return Identity(self.name, role, self.queues)

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
    return hmac.compare_digest(_hash(secret), _NO_TOKEN_HASH if token is None else token.sha256) and token is not None


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


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


_NO_TOKEN_HASH = _hash("")
"""Used for the comparison if the token does not exist; no secret of the right length has this hash."""
_VERSION = 1


class _Content(msgspec.Struct, kw_only=True):
    """The content of the file."""

    version: int
    tokens: list[Token]


def tokens_path(settings: Settings) -> Path:
    """Return the path of the token file."""
    return Path(settings.auth.tokens_file) if settings.auth.tokens_file else Path(settings.data) / "tokens.json"


class TokenFile:
    """API tokens in a file that is replaced atomically, so that readers always see a complete file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Mapping[str, Token]:
        """Return the tokens by id, empty if the file does not exist; raises `StoreUnusable` if it is damaged."""
        try:
            data = read_secret(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise StoreUnusable(
                f"cannot read the token file {self.path}: {error.strerror}; check its permissions"
            ) from error
        return _decode(data, self.path)

    def add(self, make: Callable[[Mapping[str, Token]], Token]) -> Token:
        """Add a token. `make` creates it and receives the existing tokens."""
        with self._locked():
            tokens = self.read()
            token = make(tokens)
            self._write([*tokens.values(), token])
            return token

    def remove(self, identifier: str) -> Token:
        """Remove a token; raises `NotFound`. An empty file remains, so that authentication stays on."""
        if not self.path.exists():
            raise NotFound(f"the token {identifier!r} does not exist: there is no file {self.path}")
        with self._locked():
            tokens = dict(self.read())
            token = tokens.pop(identifier, None)
            if token is None:
                raise NotFound(
                    f"the token {identifier!r} does not exist in {self.path}; `hark token list` shows all tokens"
                )
            self._write(list(tokens.values()))
            return token

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Allow one writer at a time; otherwise concurrent writers could lose a token."""
        with _refusal(self.path):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield
        finally:
            os.close(directory)

    def _write(self, tokens: Sequence[Token]) -> None:
        """Replace the file by a synced file that only its owner can read."""
        content = msgspec.json.format(msgspec.json.encode(_Content(version=_VERSION, tokens=list(tokens))), indent=2)
        with _refusal(self.path):
            descriptor, name = tempfile.mkstemp(prefix=".tokens-", dir=self.path.parent)  # Its mode is 0600.
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).replace(self.path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
            directory = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)  # A revoked token must not reappear after a crash.
            finally:
                os.close(directory)


def _decode(data: bytes, path: Path) -> Mapping[str, Token]:
    try:
        content = msgspec.json.decode(data, type=_Content)
        tokens = {token.id: token for token in content.tokens}
        for token in content.tokens:
            check_subject(token.name, "name")
            check_queues(token.queues)
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidInput) as error:
        raise StoreUnusable(
            f"the token file {path} is damaged: {error}; repair it, or move it away and create new tokens"
        ) from error
    if content.version != _VERSION or len(tokens) != len(content.tokens):
        why = "it has the same id twice" if content.version == _VERSION else f"its version is {content.version}"
        raise StoreUnusable(f"the token file {path} is invalid: {why}; expected version {_VERSION} and unique ids")
    return tokens


@contextmanager
def _refusal(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnusable(
            f"cannot write the token file {path}: {error.strerror}; check the permissions of its directory"
        ) from error
