"""The parts of the benchmark's rows about delivery that can be looked at without a server."""

from __future__ import annotations

import msgspec
import pytest
from bench import must
from bench.__main__ import chosen
from bench.delivery.apart import apart
from bench.delivery.fair import Shares, told_for_nothing
from bench.delivery.leaks import RELEASED, growth, queues
from bench.delivery.pair import free_udp_ports, peer_settings
from bench.delivery.sockets import TEXT, Frames, frame, upgrade
from bench.delivery.states import WAYS, Ledger, Wish
from bench.delivery.waiters import decode_popped, item, items, waiting_pop
from bench.delivery.wires import Metrics, Waiting
from bench.figures import Run


def served(payload: bytes) -> bytes:
    """A server's frame: that of a client without its mask."""
    sent = frame(payload)
    start = len(sent) - len(payload)
    return bytes((sent[0], sent[1] & 0x7F)) + sent[2 : start - 4] + payload


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_frames_are_cut_out_of_what_comes_in_any_pieces(size: int) -> None:
    stream = served(b"x" * size) + served(b"next")
    frames = Frames()
    pieces = [stream[: size // 2 + 1], stream[size // 2 + 1 : -1], stream[-1:]]
    got = [each for piece in pieces for each in frames.feed(piece)]
    assert got == [(TEXT, b"x" * size), (TEXT, b"next")]


def test_a_client_frame_says_that_it_is_masked_and_how_long_it_is() -> None:
    assert frame(b"ab") == b"\x81\x82\0\0\0\0ab"
    assert frame(b"a" * 300)[:4] == b"\x81\xfe\x01\x2c"
    assert upgrade(b"/x").startswith(b"GET /x HTTP/1.1\r\n")


def test_a_push_is_json_with_the_number_of_each_message_in_its_payload() -> None:
    [first, second] = msgspec.json.decode(items([item("q", 3, 7), item("q", 4, 8)]))["items"]
    assert (first["queue"], first["partition"], first["payload"]["n"]) == ("q", "p3", 7)
    assert len(msgspec.json.encode(second["payload"])) == pytest.approx(256, abs=5)
    answer = msgspec.json.encode({"messages": [{"data": first["payload"], "id": "m"}]})
    assert [message.data.n for message in decode_popped(answer).messages] == [7]
    assert waiting_pop("q", 500) == b"/api/v1/pop/queue/q?wait=true&timeout=500"


def test_the_subscription_of_a_socket_names_a_partition_only_if_it_wants_one() -> None:
    assert msgspec.json.decode(msgspec.json.encode(Wish("q"))) == {
        "type": "subscribe",
        "queue": "q",
        "batch": 1,
        "id": "s",
    }
    assert msgspec.json.decode(msgspec.json.encode(Wish("q", "p1")))["partition"] == "p1"


def waiting(**empty: int) -> Metrics:
    return Metrics(Waiting(1, 2, 3, 4, empty), {})


def test_what_is_left_is_everything_that_has_a_client() -> None:
    assert waiting().delivery.left == 10


def test_only_wakes_since_the_first_look_were_for_nothing() -> None:
    assert told_for_nothing(waiting(push=3, poll=1), waiting(push=5, poll=1, timer=2)) == {"push": 2, "timer": 2}


def test_the_spread_is_between_the_most_and_the_least_served() -> None:
    shares = Shares(counts=[10, 9, 11], seconds=1, empty_wakes={"push": 2, "poll": 1})
    assert (shares.spread, shares.all_empty) == (2, 3)


def test_growth_is_from_the_middle_of_the_first_quarter_to_that_of_the_last() -> None:
    assert growth([100, 101, 102, 90, 150, 150, 150, 150, 150, 110, 111, 112]) == 10
    assert growth([5]) == 0


def test_the_ledger_knows_what_nobody_settled_and_refuses_a_second_settlement() -> None:
    ledger = Ledger()
    first, _ = ledger.push("q"), ledger.push("q")
    ledger.settle("q", first)
    assert (ledger.pushed, ledger.settled, ledger.lost) == (2, 1, 1)
    with pytest.raises(KeyError):
        ledger.settle("q", first)


def test_clients_of_each_state_have_a_queue_of_their_own() -> None:
    names = queues()
    assert len(set(names)) == len(names)
    assert sum(name.endswith(RELEASED) for name in names) == 2 * len(WAYS) - 1


def test_two_servers_are_told_of_each_others_ports() -> None:
    first, second = free_udp_ports(2)
    assert first != second
    assert peer_settings(first, second) == {"HARK_PEER_PORT": str(first), "HARK_PEERS": f"127.0.0.1:{second}"}


async def doubled(number: int) -> int:
    return number * 2


async def failing(why: str) -> None:
    raise ExceptionGroup("several", [ValueError(why)])


def test_a_client_apart_answers_or_says_what_went_wrong() -> None:
    assert apart(doubled, 21) == 42
    with pytest.raises(RuntimeError, match="why not"):
        apart(failing, "why not")


def test_two_servers_need_a_shared_store() -> None:
    assert "deliver2" in chosen("postgres", None, quick=False)
    assert "deliver2" not in chosen("sqlite", None, quick=False)


def test_nobody_may_be_lost_on_the_way_and_none_is_too_few() -> None:
    run = Run(machine={}, values={"deliver_lost": [0.0], "waiting_lost": [1.0], "deliver_p50": [4.0]})
    verdicts = {demand.text: demand.holds for demand in must.demands(run) if demand.measured is not None}
    assert verdicts == {
        "push to delivery at a waiting client: not delivered": True,
        "10,000 waiting pops: not delivered": False,
        "push to delivery at a waiting client: p50": True,
    }
