"""Ids say where a message is, and only those of this store do."""

from __future__ import annotations

import pytest

from hark.ids import MAX_OFFSET, MAX_PARTITION, IdCodec, partition_id_of

CODEC = IdCodec(123)


@pytest.mark.parametrize("offset", [0, 1, 17, (1 << 18) - 1, 1 << 18, MAX_OFFSET])
def test_an_id_of_a_partition_is_read_by_its_prefix_as_by_all_of_it(offset: int) -> None:
    text = CODEC.encode(7, offset)
    assert CODEC.decode(text) == (7, offset)
    assert CODEC.offset_in(CODEC.prefix(7), 7, text) == offset


@pytest.mark.parametrize(
    "text",
    [
        "",
        "order-17",
        CODEC.encode(8, 3),
        IdCodec(124).encode(7, 3),
        CODEC.encode(7, 3).upper().replace("8000", "800A"),
        CODEC.encode(7, 3)[:-1],
        CODEC.encode(7, 3) + "0",
        CODEC.prefix(7) + "8000-" + "0x1" + "0" * 9,
        CODEC.prefix(7) + "8000-" + "0_0" + CODEC.encode(7, 3)[-9:],
        CODEC.prefix(7) + "8000-" + "zzzzzzzzzzzz",
    ],
)
def test_what_is_no_id_of_the_partition_has_no_offset_there(text: str) -> None:
    assert CODEC.offset_in(CODEC.prefix(7), 7, text) is None


@pytest.mark.parametrize("partition", [1, 7, MAX_PARTITION])
@pytest.mark.parametrize("offset", [0, 1, 17, (1 << 18) - 1, 1 << 18, (1 << 32) + 5, MAX_OFFSET])
def test_the_id_of_a_message_says_the_id_of_its_partition_in_whatever_store(partition: int, offset: int) -> None:
    codec = IdCodec(MAX_OFFSET)
    assert partition_id_of(codec.encode(partition, offset)) == codec.encode(partition, 0)


@pytest.mark.parametrize("text", ["", "order-17", CODEC.encode(7, 3).upper(), "0196f3a0-0000-7000-8000-000000000000"])
def test_what_is_no_id_of_a_message_has_no_partition(text: str) -> None:
    assert partition_id_of(text) is None
