"""`hark token`: tokens in a file, without a server; the text of a token is printed once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .conftest import Run, runner

TOKEN = re.compile(r"hark_[a-z0-9]{8}_[A-Za-z0-9_-]{43}")


@pytest.fixture
def hark() -> Run:
    """The command line, without any server."""
    return runner()


def create(hark: Run, *args: str) -> str:
    """Make a token; its text."""
    result = hark("token", "create", *args)
    assert result.exit_code == 0, result.output
    assert TOKEN.fullmatch(result.stdout.rstrip("\n"))
    return result.stdout.rstrip("\n")


def listed(hark: Run, *args: str) -> list[dict[str, object]]:
    """What `hark token list --json` says."""
    result = hark("token", "list", "--json", *args)
    assert result.exit_code == 0
    found: list[dict[str, object]] = json.loads(result.stdout)["tokens"]
    return found


def test_a_new_token_is_the_only_thing_on_stdout(hark: Run) -> None:
    result = hark("token", "create", "billing")
    assert TOKEN.fullmatch(result.stdout.rstrip("\n"))
    assert "for billing (read-write, all queues, never expires)" in result.stderr
    assert "cannot be shown again" in result.stderr
    assert not TOKEN.search(result.stderr)
    quiet = hark("token", "create", "ci", "--quiet")
    assert TOKEN.fullmatch(quiet.stdout.rstrip("\n"))
    assert quiet.stderr == ""
    made = json.loads(hark("token", "create", "ci", "--json").stdout)
    assert TOKEN.fullmatch(made["token"])
    assert made["token"][5:13] == made["id"]
    assert made["role"] == "read-write"


def test_its_role_its_queues_and_its_end_are_kept_but_not_its_secret(hark: Run, tmp_path: Path) -> None:
    flags = "--role read-only --queues orders.* --queues mail --expires 90d"
    text = create(hark, "billing", *flags.split())
    [token] = listed(hark)
    assert (token["id"], token["name"], token["role"]) == (text[5:13], "billing", "read-only")
    assert (token["queues"], token["expired"]) == (["orders.*", "mail"], False)
    assert token["expiresAt"] is not None
    file = tmp_path / "hark-data" / "tokens.json"
    assert text[14:] not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_tokens_are_listed_for_people(hark: Run) -> None:
    assert hark("token", "list").stdout == (
        "no tokens in hark-data/tokens.json; create one with: hark token create NAME\n"
    )
    first = create(hark, "billing", "--queues", "orders.*")
    create(hark, "ops", "--role", "admin")
    shown = hark("token", "list").stdout
    for word in (first[5:13], "billing", "orders.*", "ops", "admin", "never"):
        assert word in shown
    assert first[14:] not in shown


def test_a_token_is_revoked_when_it_is_meant(hark: Run) -> None:
    text, other = create(hark, "one"), create(hark, "two")
    refused = hark("token", "revoke", text[5:13])
    assert (refused.exit_code, "--yes" in refused.stderr) == (2, True)
    unknown = hark("token", "revoke", "abcdefgh", "--yes")
    assert (unknown.exit_code, "the token 'abcdefgh' does not exist" in unknown.stderr) == (1, True)
    assert len(listed(hark)) == 2
    assert hark("token", "revoke", text[5:13], "--yes").exit_code == 0
    assert [token["id"] for token in listed(hark)] == [other[5:13]]


def test_the_directory_and_the_settings_say_which_file_it_is(
    hark: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(hark, "one", "--data", "elsewhere")
    assert (tmp_path / "elsewhere" / "tokens.json").exists()
    (tmp_path / "my.toml").write_text('[auth]\ntokens_file = "keys/my.json"')
    create(hark, "two", "--config", "my.toml")
    assert (tmp_path / "keys" / "my.json").exists()
    monkeypatch.setenv("HARK_DATA", "elsewhere")
    assert [token["name"] for token in listed(hark)] == ["one"]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("x", "--role", "root"), "--role"),
        (("x", "--expires", "soon"), "--expires"),
        (("x", "--expires", "0d"), "--expires"),
        (("x", "--expires", "999999999w"), "--expires"),
        (("x", "--queues", ""), "queues"),
        ((" x",), "name"),
        (("a\nb",), "name"),
    ],
    ids=["role", "no-time", "no-days", "too-long", "pattern", "spaces", "lines"],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_made(hark: Run, args: tuple[str, ...], named: str) -> None:
    result = hark("token", "create", *args)
    assert result.exit_code in (1, 2)
    assert named in result.stderr
    assert result.stdout == ""
    assert listed(hark) == []


def test_a_damaged_file_is_neither_listed_nor_overwritten(hark: Run, tmp_path: Path) -> None:
    create(hark, "one")
    file = tmp_path / "hark-data" / "tokens.json"
    file.write_text("{")
    for args in (("list",), ("create", "two"), ("revoke", "abcdefgh", "--yes")):
        result = hark("token", *args)
        assert result.exit_code == 1
        assert "damaged" in result.stderr
    assert file.read_text() == "{"
