"""The cache of payloads: what it gives, and what it forgets."""

from __future__ import annotations

import random
import threading

import pytest

from hark.engine.s3.payloads.cache import PayloadCache
from hark.engine.s3.payloads.place import Place
from tests.s3.bodies import body

LETTERS = bytes(range(97, 123))


def test_a_place_within_what_was_put_is_found_and_another_is_not() -> None:
    cache = PayloadCache(1000)
    cache.put_record(7, 100, LETTERS)
    assert cache.get(Place(7, 100, 26)) == LETTERS
    assert cache.get(Place(7, 102, 3)) == b"cde"
    for outside in (Place(7, 99, 2), Place(7, 125, 2), Place(7, 130, 1), Place(8, 100, 1)):
        assert cache.get(outside) is None


def test_what_was_used_least_recently_is_forgotten_first() -> None:
    cache = PayloadCache(104)
    for seq in (1, 2, 3, 4):
        cache.put_record(seq, 0, LETTERS)
    assert cache.get(Place(1, 0, 1)) == b"a"
    cache.put_record(5, 0, LETTERS)
    assert [seq for seq in range(1, 6) if cache.get(Place(seq, 0, 26))] == [1, 3, 4, 5]


def test_what_is_too_large_is_not_kept_and_drives_nothing_out() -> None:
    cache = PayloadCache(104)
    cache.put_record(1, 0, LETTERS)
    cache.put_record(2, 0, LETTERS + b"!")
    assert cache.get(Place(1, 0, 26)) == LETTERS
    assert cache.get(Place(2, 0, 1)) is None


def test_without_capacity_nothing_is_kept() -> None:
    cache = PayloadCache(0)
    cache.put_record(1, 0, b"a")
    assert cache.get(Place(1, 0, 1)) is None


def test_a_larger_piece_takes_the_place_of_those_within_it() -> None:
    cache = PayloadCache(1000)
    cache.put_record(1, 5, LETTERS[5:8])
    cache.put_record(1, 10, LETTERS[10:12])
    cache.put_record(1, 0, LETTERS)
    cache.put_record(1, 3, LETTERS[3:9])
    assert cache.get(Place(1, 4, 20)) == LETTERS[4:24]
    numbers = cache.as_metrics()
    assert (numbers["s3_cache_pieces"], numbers["s3_cache_bytes"]) == (1, 26)


@pytest.mark.parametrize("seed", range(20))
def test_what_the_cache_gives_is_what_the_record_has_and_never_more_than_it_may_hold(seed: int) -> None:
    rng = random.Random(seed)
    cache = PayloadCache(400)
    found = 0
    for _ in range(400):
        seq, first, length = rng.randrange(3), rng.randrange(200), rng.randrange(1, 120)
        if rng.random() < 0.5:
            cache.put_record(seq, first, body(seq)[first : first + length])
            if length <= 100:
                assert cache.get(Place(seq, first, length)) == body(seq)[first : first + length]
        elif (data := cache.get(Place(seq, first, length))) is not None:
            assert data == body(seq)[first : first + length]
            found += 1
        assert cache.as_metrics()["s3_cache_bytes"] <= 400
    assert found


def test_hits_and_misses_are_counted() -> None:
    cache = PayloadCache(1000)
    cache.put_record(1, 0, LETTERS)
    for offset in (0, 1, 90):
        cache.get(Place(1, offset, 1))
    numbers = cache.as_metrics()
    assert (numbers["s3_cache_hits"], numbers["s3_cache_misses"]) == (2, 1)


def test_threads_may_share_a_cache() -> None:
    cache = PayloadCache(300)
    wrong: list[object] = []

    def use(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(2000):
                seq, first = rng.randrange(4), rng.randrange(100)
                cache.put_record(seq, first, body(seq)[first : first + 50])
                data = cache.get(Place(seq, first + 10, 20))
                if data is not None and data != body(seq)[first + 10 : first + 30]:
                    wrong.append((seq, first))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
