"""Keys, versions and cursors as text: whatever goes out comes back as it was."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from hark.broker.watching.watcher import Shown
from hark.http.checks import query_params
from hark.http.keyval.entries import cursor_of, key_at, known_of_text, known_text
from hark.http.keyval.paths import keys_in_path
from hark.keys import encode_key
from hark.model import Key, KeyPart

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_number = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False, width=32)
_part: st.SearchStrategy[KeyPart] = _text | _number | st.booleans() | st.sampled_from(["17", "-0", "007", "~x", "[1]"])
_keys = st.lists(_part, min_size=1, max_size=4).map(tuple)


@given(key=_keys)
def test_a_cursor_means_its_key_and_needs_no_encoding(key: Key) -> None:
    cursor = cursor_of(key)
    assert quote(cursor, safe="") == cursor
    assert encode_key(key_at(cursor, "cursor")) == encode_key(key)


@given(keys=st.lists(_keys, max_size=10), encoded=st.booleans())
def test_what_a_client_was_told_it_can_send_back_encoded_or_not(keys: Sequence[Key], encoded: bool) -> None:
    below: list[Key] = [("p", *key) for key in keys]
    shown = {encode_key(key): Shown(key, version) for version, key in enumerate(below)}
    text = known_text(shown)
    sent = f"versionstamps={quote(text, safe='') if encoded else text}"
    known = known_of_text(query_params(sent.encode()).get("versionstamps", ""), ("p",), "versionstamps")
    assert {identity: one.version for identity, one in known.items()} == {
        identity: one.version for identity, one in shown.items()
    }


@given(parts=st.lists(_text.filter(bool), min_size=2, max_size=5))
def test_a_path_can_always_mean_its_text(parts: list[str]) -> None:
    assert keys_in_path(parts, {"strings": "true"}) == [tuple(parts)]
    forms = keys_in_path(parts, {})
    assert tuple(map(str, forms[-1])) == tuple(parts)
    assert len(forms) == (2 if forms[0] != tuple(parts) else 1)
