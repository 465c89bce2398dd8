"""Who asks: from files that change while the server runs, and with a memory that forgets in time."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from unittest.mock import patch

import jwt
import pytest

from hark.access import authenticator as module
from hark.access import tokens
from hark.access.authenticator import Authenticator, Open, credential_of
from hark.access.jwts import verify
from hark.access.tokens import UNRESTRICTED, TokenFile, look_at, make_token, tokens_path
from hark.api.operations import Role
from hark.clock import SECOND, FakeClock
from hark.errors import Forbidden, InvalidSetting, StoreUnusable, Unauthorized
from hark.settings import Auth, Settings

SECRET = "0123456789abcdef0123456789abcdef"
JWT = Auth(jwt_enabled=True, jwt_secret=SECRET)


class TokenStore:
    """A directory of tokens, a clock, and who is let in."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock(time.time_ns() // 1000)
        self.settings = Settings(data=str(directory))
        self.file = TokenFile(tokens_path(self.settings))

    def create(self, name: str = "app", role: Role = Role.READ_WRITE, seconds: float | None = None) -> str:
        """A new token, as `hark token create` makes it."""
        expires_at = None if seconds is None else self.clock.now() + round(seconds * SECOND)
        token, text = make_token(name, role, ("*",), now=self.clock.now(), expires_at=expires_at)
        self.file.add(lambda _tokens: token)
        return text

    def revoke(self, text: str) -> None:
        """Take a token back, as `hark token revoke` does."""
        self.file.remove(text[5:13])

    def authenticator(self, auth: Auth | None = None) -> Authenticator:
        """What a server has."""
        settings = Settings(data=self.settings.data, auth=auth or Auth())
        return Authenticator(settings, self.clock)


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    """An empty one."""
    return TokenStore(tmp_path)


def why_not(authenticator: Authenticator, credential: str | None) -> str:
    """Why somebody is not let in; never with what they sent."""
    with pytest.raises(Unauthorized) as refused:
        authenticator.identify(credential)
    assert credential is None or credential not in refused.value.text
    return refused.value.text


# Whether anybody is asked ------------------------------------------------------------------------------------


def test_without_tokens_and_jwt_anyone_is_let_in(store: TokenStore) -> None:
    authenticator = store.authenticator()
    assert not authenticator.enabled
    assert authenticator.identify(None) is UNRESTRICTED
    assert authenticator.identify("whatever") is UNRESTRICTED
    assert Open().identify("whatever") is UNRESTRICTED
    assert not Open().enabled


def test_with_tokens_only_those_who_have_one_are_let_in(store: TokenStore) -> None:
    text = store.create("app", Role.READ_ONLY)
    authenticator = store.authenticator()
    assert authenticator.enabled
    identity = authenticator.identify(text)
    assert (identity.subject, identity.role) == ("app", Role.READ_ONLY)
    assert "requires a token" in why_not(authenticator, None)


def test_a_file_without_tokens_lets_no_one_in(store: TokenStore, caplog: pytest.LogCaptureFixture) -> None:
    text = store.create()
    store.revoke(text)
    authenticator = store.authenticator()
    assert authenticator.enabled
    assert "unknown" in why_not(authenticator, text)
    assert "all requests are rejected" in caplog.text


@pytest.mark.parametrize("auth", [Auth(required=True), Auth(tokens_file="tokens.json")], ids=["required", "named"])
def test_what_is_required_is_requested_before_there_are_tokens(
    store: TokenStore, auth: Auth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.settings.data)
    authenticator = store.authenticator(auth)
    assert authenticator.enabled
    why_not(authenticator, None)
    text = store.create()
    store.clock.advance(1)
    assert authenticator.identify(text).subject == "app"


def test_damaged_tokens_unreadable_keys_and_a_missing_library_keep_the_server_from_starting(store: TokenStore) -> None:
    with pytest.raises(InvalidSetting, match="cannot read nothing"):
        store.authenticator(Auth(jwt_enabled=True, jwt_secret_file="nothing"))
    with patch.dict("sys.modules", {"jwt": None}), pytest.raises(InvalidSetting, match=r"pip install 'hark-mq\[jwt\]'"):
        store.authenticator(JWT)
    store.create()
    store.file.path.write_text("{")
    with pytest.raises(StoreUnusable, match="damaged"):
        store.authenticator()


# Changes while it runs ---------------------------------------------------------------------------------------


def test_the_first_token_turns_authentication_on_within_a_second(
    store: TokenStore, caplog: pytest.LogCaptureFixture
) -> None:
    authenticator = store.authenticator()
    text = store.create()
    store.clock.advance(1)
    assert authenticator.enabled
    assert "authentication is now on" in caplog.text
    why_not(authenticator, None)
    assert authenticator.identify(text).subject == "app"


def test_a_new_token_is_known_within_a_second(store: TokenStore) -> None:
    store.create()
    authenticator = store.authenticator()
    text = store.create("new")
    store.clock.advance(0.5)
    why_not(authenticator, text)
    store.clock.advance(0.5)
    assert authenticator.identify(text).subject == "new"


def test_a_revoked_token_is_refused_within_a_second_even_if_it_was_just_used(store: TokenStore) -> None:
    text, other = store.create(), store.create("other")
    authenticator = store.authenticator()
    assert authenticator.identify(text).subject == "app"
    store.revoke(text)
    store.clock.advance(1)
    assert "revoked" in why_not(authenticator, text)
    assert authenticator.identify(other).subject == "other"


@pytest.mark.parametrize("damage", ["vanished", "empty", "broken"])
def test_authentication_stays_on_when_the_file_is_lost(
    store: TokenStore, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = store.create()
    authenticator = store.authenticator()
    assert authenticator.identify(text).subject == "app"
    content = store.file.path.read_bytes()
    if damage == "vanished":
        store.file.path.unlink()
    else:
        store.file.path.write_bytes(b"" if damage == "empty" else content[:-10])
        store.clock.advance(1)
        assert authenticator.enabled
        assert "all API tokens are rejected" in caplog.text
    store.clock.advance(1)
    assert authenticator.enabled
    why_not(authenticator, text)
    why_not(authenticator, None)
    store.file.path.write_bytes(content)
    store.clock.advance(1)
    assert authenticator.identify(text).subject == "app"


def test_the_file_is_looked_at_once_a_second_and_read_only_when_it_changed(store: TokenStore) -> None:
    text = store.create()
    authenticator = store.authenticator()
    with (
        patch.object(tokens, "look_at", wraps=look_at) as looks,
        patch.object(TokenFile, "read", autospec=True, side_effect=TokenFile.read) as reads,
    ):
        for _ in range(10):
            authenticator.identify(text)
        assert looks.call_count == 0
        store.clock.advance(1)
        for _ in range(10):
            authenticator.identify(text)
        assert (looks.call_count, reads.call_count) == (1, 0)
        store.create("other")
        reads.reset_mock()
        store.clock.advance(1)
        authenticator.identify(text)
        assert (looks.call_count, reads.call_count) == (2, 1)


# Tokens ------------------------------------------------------------------------------------------------------


def test_a_token_is_refused_from_the_moment_of_its_expiry(store: TokenStore) -> None:
    text = store.create(seconds=100)
    authenticator = store.authenticator()
    assert authenticator.identify(text).subject == "app"
    store.clock.advance(99.9)
    assert authenticator.identify(text).subject == "app"
    store.clock.advance(0.1)
    assert "has expired" in why_not(authenticator, text)
    assert "unknown" in why_not(authenticator, text[:14] + "a" * 43), "only those who have it are told so"


def test_a_wrong_secret_an_unknown_id_and_half_a_token_are_refused(store: TokenStore) -> None:
    text = store.create()
    authenticator = store.authenticator()
    other = "a" if text[-1] != "a" else "b"
    assert "unknown" in why_not(authenticator, text[:-1] + other)
    assert "unknown" in why_not(authenticator, "hark_zzzzzzzz" + text[13:])
    assert "incomplete" in why_not(authenticator, text[:-1])
    assert "accepts only API tokens" in why_not(authenticator, "eyJhbGciOiJIUzI1NiJ9.e30.e30")


def test_unknown_ids_are_compared_as_known_ones_are(store: TokenStore) -> None:
    text = store.create()
    authenticator = store.authenticator()
    with patch("hark.access.tokens.hmac.compare_digest", return_value=False) as compare:
        why_not(authenticator, text)
        why_not(authenticator, "hark_zzzzzzzz" + text[13:])
    assert compare.call_count == 2


def test_what_was_verified_is_not_verified_again(store: TokenStore) -> None:
    text = store.create()
    authenticator = store.authenticator()
    first = authenticator.identify(text)
    with patch.object(tokens, "matches") as verified:
        assert authenticator.identify(text) is first
    assert verified.call_count == 0


def test_only_so_many_credentials_are_remembered(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_REMEMBERED", 3)
    texts = [store.create(f"app{number}") for number in range(5)]
    authenticator = store.authenticator()
    assert [authenticator.identify(text).subject for text in texts] == [f"app{number}" for number in range(5)]
    assert len(authenticator._known) <= 3


# JWT ---------------------------------------------------------------------------------------------------------


def signed(store: TokenStore, secret: str = SECRET, seconds: float = 3600, role: str = "admin") -> str:
    """A JWT that ends so many seconds from now."""
    claims = {"sub": "alice", "role": role, "exp": store.clock.now() // SECOND + seconds}
    return jwt.encode(claims, secret, algorithm="HS256")


def test_api_tokens_and_jwt_are_accepted_side_by_side(store: TokenStore) -> None:
    text = store.create()
    authenticator = store.authenticator(JWT)
    assert authenticator.identify(text).subject == "app"
    assert authenticator.identify(signed(store)).subject == "alice"
    assert "signature" in why_not(authenticator, signed(store, SECRET[::-1]))


def test_with_jwt_alone_authentication_is_on_and_one_without_a_role_is_forbidden_everything(store: TokenStore) -> None:
    authenticator = store.authenticator(JWT)
    assert authenticator.enabled
    why_not(authenticator, None)
    with pytest.raises(Forbidden):
        authenticator.identify(signed(store, role="root"))


def test_a_jwt_is_verified_again_after_a_minute_and_at_its_end(store: TokenStore) -> None:
    authenticator = store.authenticator(JWT)
    long, short = signed(store), signed(store, seconds=10)
    authenticator.identify(long)
    authenticator.identify(short)
    with patch.object(module, "verify", wraps=verify) as verified:
        store.clock.advance(39)  # 10 seconds and the leeway of 30.
        authenticator.identify(long)
        authenticator.identify(short)
        assert verified.call_count == 0
        store.clock.advance(1)
        authenticator.identify(short)
        assert verified.call_count == 1
        authenticator.identify(long)
        assert verified.call_count == 1
        store.clock.advance(20)
        authenticator.identify(long)
        assert verified.call_count == 2


def test_a_key_file_that_changes_counts_within_a_second(
    store: TokenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(0o600)
    authenticator = store.authenticator(Auth(jwt_enabled=True, jwt_secret_file=str(file)))
    before, after = signed(store), signed(store, SECRET[::-1])
    assert authenticator.identify(before).subject == "alice"
    file.write_text(SECRET[::-1] + "\n")
    store.clock.advance(1)
    why_not(authenticator, before)
    assert authenticator.identify(after).subject == "alice"
    with caplog.at_level(logging.ERROR):
        file.unlink()
        store.clock.advance(1)
        why_not(authenticator, after)
    assert "all JWTs are rejected" in caplog.text
    assert authenticator.enabled


# What is sent ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "credential"),
    [
        (None, None),
        ("", None),
        ("Bearer abc", "abc"),
        ("bearer abc", "abc"),
        ("Bearer  abc ", "abc"),
        ("Bearer ", None),
        ("abc", "abc"),
    ],
    ids=["absent", "empty", "bearer", "small", "spaces", "nothing", "bare"],
)
def test_a_credential_comes_as_a_bearer_token_or_bare(header: str | None, credential: str | None) -> None:
    assert credential_of(header) == credential


def test_another_scheme_is_refused() -> None:
    with pytest.raises(Unauthorized, match="another scheme") as refused:
        credential_of("Basic c2VjcmV0")
    assert "c2VjcmV0" not in refused.value.text
