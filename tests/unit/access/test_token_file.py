"""The file of tokens: only hashes in it, whole at every moment, and never taken for no file."""

from __future__ import annotations

import hashlib
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from hark.access.tokens import Token, TokenFile, check_queues, check_subject, make_token, matches, split, tokens_path
from hark.api.operations import Role
from hark.clock import SECOND
from hark.errors import InvalidInput, NotFound, StoreUnusable
from hark.settings import Auth, Settings

NOW = 1_700_000_000 * SECOND + 123_456


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    """A place for tokens; its directory is made when it is needed."""
    return TokenFile(tmp_path / "data" / "tokens.json")


def add(file: TokenFile, name: str = "app", role: Role = Role.READ_WRITE, *queues: str) -> tuple[Token, str]:
    """A new token in the file, and its text."""
    token, text = make_token(name, role, queues or ("*",), now=NOW)
    file.add(lambda _tokens: token)
    return token, text


def test_a_token_has_an_id_and_a_secret_of_32_random_bytes() -> None:
    token, text = make_token("app", Role.ADMIN, ("*",), now=NOW)
    assert re.fullmatch(r"hark_[a-z0-9]{8}_[A-Za-z0-9_-]{43}", text)
    assert split(text) == (token.id, text[14:])
    assert make_token("app", Role.ADMIN, ("*",), now=NOW)[1] != text


def test_the_secret_is_not_in_the_file_but_its_hash_is(file: TokenFile) -> None:
    one, text = add(file, "one", Role.READ_ONLY, "orders.*", "mail")
    two, _ = add(file, "two")
    secret = text[14:]
    content = file.path.read_text()
    assert secret not in content
    assert hashlib.sha256(secret.encode()).hexdigest() in content
    assert one.sha256 not in repr(one)
    assert file.read() == {one.id: one, two.id: two}
    assert one.identity.subject == "one"
    assert (one.identity.role, one.identity.queues) == (Role.READ_ONLY, ("orders.*", "mail"))
    assert file.path.stat().st_mode & 0o777 == 0o600, "only its owner can read it"
    assert [path.name for path in file.path.parent.iterdir()] == ["tokens.json"]


def test_a_file_that_others_can_read_is_used_with_a_warning(file: TokenFile, caplog: pytest.LogCaptureFixture) -> None:
    add(file)
    with caplog.at_level(logging.WARNING):
        file.read()
        assert caplog.messages == []
        file.path.chmod(0o640)
        assert len(file.read()) == 1
    assert "mode 640" in caplog.text
    assert "chmod 600" in caplog.text


def test_writers_at_the_same_time_lose_nothing(file: TokenFile) -> None:
    with ThreadPoolExecutor(8) as pool:
        added = [token.id for token, _ in pool.map(lambda number: add(file, f"app{number}"), range(24))]
    assert sorted(file.read()) == sorted(added)


def test_a_removed_token_is_gone_and_what_is_not_there_can_not_be_removed(file: TokenFile) -> None:
    with pytest.raises(NotFound, match="there is no file"):
        file.remove("abcdefgh")
    assert not file.path.parent.exists()
    token, _ = add(file)
    with pytest.raises(NotFound, match="the token 'abcdefgh' does not exist in"):
        file.remove("abcdefgh")
    assert file.remove(token.id) == token
    assert file.read() == {}
    assert file.path.exists(), "a file without tokens lets nobody in"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"version": 1, "tokens": [{}]}',
        b'{"version": 2, "tokens": []}',
        b'{"version": 1, "tokens": [ONE, ONE]}',
        b'{"version": 1, "tokens": [{"role": "root", "id": "abcdefgh"}]}',
        b'{"version": 1, "tokens": [FORGED]}',
    ],
    ids=["empty", "nothing", "no-text", "no-token", "newer", "twice", "wrong-role", "forges-a-line-of-a-log"],
)
def test_a_damaged_file_is_an_error_and_never_no_tokens(file: TokenFile, content: bytes) -> None:
    token, _ = add(file)
    good = msgspec.json.encode(token)
    forged = good.replace(b'"app"', b'"a\\nb"')
    assert forged != good
    file.path.write_bytes(content.replace(b"ONE", good).replace(b"FORGED", forged))
    with pytest.raises(StoreUnusable, match=r"tokens\.json.*(damaged|invalid)"):
        file.read()


def test_a_file_that_can_not_be_read_or_written_is_an_error(file: TokenFile, tmp_path: Path) -> None:
    file.path.mkdir(parents=True)
    with pytest.raises(StoreUnusable, match="cannot read the token file"):
        file.read()
    (tmp_path / "taken").write_text("a file where the directory should be")
    with pytest.raises(StoreUnusable, match="cannot write the token file"):
        add(TokenFile(tmp_path / "taken" / "tokens.json"))


def test_a_secret_matches_its_own_token_only() -> None:
    one, text = make_token("one", Role.ADMIN, ("*",), now=NOW)
    other, _ = make_token("other", Role.ADMIN, ("*",), now=NOW)
    assert matches(one, text[14:])
    assert not matches(other, text[14:])
    assert not matches(one, text[14:-1] + ("a" if text[-1] != "a" else "b"))
    assert not matches(None, text[14:])
    assert not matches(None, "")


@pytest.mark.parametrize(
    "text",
    ["", "hark_", "hark_abcdefgh", "hark_abcdefgh_short", "HARK_abcdefgh_" + "a" * 43, "hark_abcdefgh_" + "a" * 44],
)
def test_what_has_not_the_form_of_a_token_is_none(text: str) -> None:
    assert split(text) is None


def test_an_id_that_is_taken_is_not_taken_again() -> None:
    refused: list[str] = []

    def taken(identifier: str) -> bool:
        refused.append(identifier)
        return len(refused) < 3

    token, _ = make_token("app", Role.ADMIN, ("*",), now=NOW, taken=taken)
    assert token.id == refused[-1]
    assert len(refused) == 3


@pytest.mark.parametrize("name", ["", " app", "a\nb", "a" * 256, "\x1b[31m"], ids=repr)
def test_names_that_would_not_fit_into_a_line_of_a_log_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="name"):
        check_subject(name, "name")


@pytest.mark.parametrize("queues", ["orders", [""], ["a" * 256], [1], ["a"] * 101, None], ids=lambda v: repr(v)[:20])
def test_what_is_no_list_of_patterns_is_refused(queues: object) -> None:
    with pytest.raises(InvalidInput, match="queues"):
        check_queues(queues)


def test_a_token_expires_at_its_moment() -> None:
    token, _ = make_token("app", Role.ADMIN, ("*",), now=NOW, expires_at=NOW + SECOND)
    assert not token.has_expired(NOW + SECOND - 1)
    assert token.has_expired(NOW + SECOND)


def test_tokens_are_kept_under_data_unless_the_settings_say_where() -> None:
    assert tokens_path(Settings(data="d")) == Path("d/tokens.json")
    assert tokens_path(Settings(data="d", auth=Auth(tokens_file="other.json"))) == Path("other.json")
