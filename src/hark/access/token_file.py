"""The file of API tokens. Servers read it, and the command `hark token` writes it."""

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
        except FileNotFoundError:
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
            self.path.parent.mkdir(parents=True, exist_ok=True)
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
            f"the token file {path} is damaged: {error}; repair it, or move it away and create new tokens"
        ) from error
    if content.version != _VERSION or len(tokens) != len(content.tokens):
        why = "it has the same id twice" if content.version == _VERSION else f"its version is {content.version}"
        raise StoreUnusable(f"the token file {path} is invalid: {why}; expected version {_VERSION} and unique ids")
    return tokens


def _sync(directory: Path) -> None:
    """Sync the directory, so that a revoked token does not reappear after a crash."""
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
        raise StoreUnusable(
            f"cannot write the token file {path}: {error.strerror}; check the permissions of its directory"
        ) from error
