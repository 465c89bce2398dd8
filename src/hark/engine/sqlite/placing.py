"""Messages whose payloads go somewhere else: what is written of them is where."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hark.engine.sqlite.rows import Elsewhere, decode_extra, encode_extra
from hark.engine.sqlite.store import Value
from hark.model import NULL_PAYLOAD

Place = Callable[[bytes], tuple[int, int, int] | None]
"""Puts a payload away and answers its record, offset and length; None: it stays in its row."""

_COLUMNS = 8
_EXTRA, _PAYLOAD = 6, 7


def place_payloads(flat: list[Value], place: Place) -> None:
    """Move payloads away from rows that are about to be inserted, given as for `insert_messages`.

    Two kinds of rows keep theirs: those that `place` does not want, and those with `keysIfUndelivered`, whose payload
    may have to become a value by SQL alone. Every line of the loop is paid for by every message.
    """
    for start in range(0, len(flat), _COLUMNS):
        text, payload = flat[start + _EXTRA], flat[start + _PAYLOAD]
        assert isinstance(payload, bytes)
        if text is None:
            placed = place(payload)
            if placed is None:
                continue
            record, offset, length = placed
            flat[start + _EXTRA] = f'{{"r":[{record},{offset},{length}]}}'
        else:
            extra = decode_extra(str(text))
            if extra.k or extra.r is not None:
                continue
            placed = place(payload)
            if placed is None:
                continue
            flat[start + _EXTRA] = encode_extra(msgspec.structs.replace(extra, r=Elsewhere(*placed))).decode()
        flat[start + _PAYLOAD] = NULL_PAYLOAD
