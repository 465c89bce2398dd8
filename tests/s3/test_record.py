"""Log records as objects: what was written is read again, and anything else is refused with what to do."""

from __future__ import annotations

import msgspec
import pytest

from hark.engine.s3.log import frame, places
from hark.engine.s3.log.record import KIND, PAYLOADS_AT, Record, decode, encode, nonce_of
from hark.errors import StoreUnusable

RECORD = Record(
    seq=17,
    epoch="e" * 32,
    time=1_700_000_000_000_000,
    writer="worker-1",
    nonce="n17",
    previous="n16",
    schema=1,
    changes=b"change " * 100,
    payloads=b"first payload" + b"second payload",
)


def with_header(body: bytes, **changes: object) -> bytes:
    """The same object with another header, and a checksum that is right."""
    payloads, changed, header = frame.unseal(KIND, body)
    fields = {**msgspec.json.decode(header), **changes}
    return frame.seal(KIND, bytes(payloads), bytes(changed), msgspec.json.encode(fields))


def test_keys_sort_as_their_numbers_do() -> None:
    assert places.record(17) == "log/00000000000000000017"
    assert places.snapshot(17) == "snap/00000000000000000017"
    assert places.record(9) < places.record(10) < places.record(10**19)


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(RECORD, id="plain"),
        pytest.param(msgspec.structs.replace(RECORD, payloads=b""), id="no payloads"),
        pytest.param(msgspec.structs.replace(RECORD, changes=b""), id="no changes"),
        pytest.param(msgspec.structs.replace(RECORD, changes=bytes(range(256))), id="changes that do not shrink"),
        pytest.param(msgspec.structs.replace(RECORD, seq=1, previous=""), id="the first"),
    ],
)
def test_what_was_encoded_is_decoded(record: Record) -> None:
    assert decode(encode(record), record.seq) == record


def test_a_payload_is_where_it_was_said_to_be_before_the_record_was_encoded() -> None:
    body = encode(RECORD)
    second_at = PAYLOADS_AT + len(b"first payload")
    assert body[second_at : second_at + len(b"second payload")] == b"second payload"


def test_changes_are_compressed_where_that_makes_them_smaller() -> None:
    shrinking, random = b"change " * 10_000, bytes(range(256))
    empty = len(encode(msgspec.structs.replace(RECORD, changes=b"")))
    assert len(encode(msgspec.structs.replace(RECORD, changes=shrinking))) < empty + 1_000
    assert len(encode(msgspec.structs.replace(RECORD, changes=random))) < empty + len(random) + 10


def test_the_nonce_is_read_without_the_rest() -> None:
    assert nonce_of(encode(RECORD), 17) == "n17"


def test_each_bit_that_is_wrong_is_found() -> None:
    body = encode(msgspec.structs.replace(RECORD, changes=b"c", payloads=b"p"))
    for place in range(len(body)):
        for bit in range(8):
            damaged = bytearray(body)
            damaged[place] ^= 1 << bit
            with pytest.raises(StoreUnusable):
                decode(bytes(damaged), 17)


def test_an_object_that_was_cut_off_anywhere_is_found() -> None:
    body = encode(msgspec.structs.replace(RECORD, changes=b"c", payloads=b"p"))
    for length in range(len(body)):
        with pytest.raises(StoreUnusable, match="damaged"):
            decode(body[:length], 17)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param(encode(RECORD)[:-1], "cut off", id="cut off"),
        pytest.param(b"", "does not begin", id="empty"),
        pytest.param(b"<Error>no such thing</Error>" * 3, "does not begin", id="something else"),
        pytest.param(encode(RECORD).replace(b"payload", b"paYload", 1), "checksum", id="changed"),
        pytest.param(encode(msgspec.structs.replace(RECORD, seq=18)), "record 18", id="another number"),
        pytest.param(with_header(encode(RECORD), plain_bytes=3), "another length", id="wrong length of changes"),
        pytest.param(with_header(encode(RECORD), nonce=3), "header", id="wrong header"),
        pytest.param(frame.seal(KIND, b"", b"no zlib", b"{}"), "header", id="empty header"),
    ],
)
def test_a_damaged_record_is_refused_with_its_number_its_store_and_what_to_do(body: bytes, why: str) -> None:
    with pytest.raises(StoreUnusable) as error:
        decode(body, 17, "s3://bucket/prefix")
    assert "log record 17 of s3://bucket/prefix is damaged" in error.value.text
    assert why in error.value.text
    assert "backup" in error.value.text


def test_changes_that_can_not_be_unpacked_are_damage() -> None:
    payloads, _, header = frame.unseal(KIND, encode(RECORD))
    with pytest.raises(StoreUnusable, match="can't be unpacked"):
        decode(frame.seal(KIND, bytes(payloads), b"no zlib", bytes(header)), 17)


def test_a_newer_format_is_refused_with_what_to_use() -> None:
    newer = KIND[:-1] + bytes([KIND[-1] + 1])
    with pytest.raises(StoreUnusable, match=r"log record 17 of s3://b has format 2.*use the newer Hark that wrote it"):
        decode(frame.seal(newer, b"", b"", b"{}"), 17, "s3://b")
