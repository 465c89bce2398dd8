"""The file of API tokens: read by servers, written by `hark token`."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from hark.access.files import read_secret
from hark.access.tokens import Token, check_queues, check_subject
from hark.errors import InvalidInput, NotFound, StoreUnusable
from hark.settings import Settings

_VERSION = 1


class _Content(msgspec.Struct, kw_only=True):
    """What the file says."""

    version: int
    tokens: list[Token]


def tokens_path(settings: Settings) -> Path:
    """Where the settings say that tokens are kept."""
    return Path(settings.auth.tokens_file) if settings.auth.tokens_file else Path(settings.data) / "tokens.json"


class TokenFile:
    """API tokens in a file that is whole at every moment, whoever reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Mapping[str, Token]:
        """The tokens by id; none if there is no file. Raises `StoreUnusable` when it is damaged."""
        try:
            data = read_secret(self.path)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StoreUnusable(f"the tokens in {self.path} can't be read: {error.strerror}") from error
        return _decode(data, self.path)

    def add(self, make: Callable[[Mapping[str, Token]], Token]) -> Token:
        """Keep one more, which is made with a look at those that there are."""
        with self._locked():
            tokens = self.read()
            token = make(tokens)
            self._write([*tokens.values(), token])
            return token

    def remove(self, identifier: str) -> Token:
        """Forget one; raises `NotFound`. The file stays, even empty: authentication outlives the last token."""
        if not self.path.exists():
            raise NotFound(f"there is no token {identifier!r}: there is no file {self.path}")
        with self._locked():
            tokens = dict(self.read())
            token = tokens.pop(identifier, None)
            if token is None:
                raise NotFound(f"there is no token {identifier!r} in {self.path}")
            self._write(list(tokens.values()))
            return token

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time: two that read, add and write would lose one of the tokens."""
        with _refusal(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield
        finally:
            os.close(directory)

    def _write(self, tokens: Sequence[Token]) -> None:
        """Replace the file by one that is on disk already, and that nobody else can read."""
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
            _sync(self.path.parent)


def _decode(data: bytes, path: Path) -> Mapping[str, Token]:
    try:
        content = msgspec.json.decode(data, type=_Content)
        tokens = {token.id: token for token in content.tokens}
        for token in content.tokens:
            check_subject(token.name, "name")
            check_queues(token.queues)
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidInput) as error:
        raise StoreUnusable(
            f"the file of tokens {path} is damaged: {error}; repair it, or move it away and create new tokens"
        ) from error
    if content.version != _VERSION or len(tokens) != len(content.tokens):
        why = "an id is in it twice" if content.version == _VERSION else f"its version is {content.version}"
        raise StoreUnusable(
            f"the file of tokens {path} can't be used: {why}, expected version {_VERSION} and each id once"
        )
    return tokens


def _sync(directory: Path) -> None:
    """Make the replacement last: a revoked token must not come back after a crash."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _refusal(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnusable(f"the tokens in {path} can't be written: {error.strerror}") from error
