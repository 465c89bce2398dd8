"""Calls are tried again as long as that is safe, and no longer than the policy says."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from hark.client.calling import Caller, CallPolicy, decode, path
from hark.client.transport.api import Answer, ConnectionFailed
from hark.errors import Conflict, EngineFailure, HarkError, InvalidInput, NotFound, Overloaded, Unavailable
from tests.client.transports import Script, problem

OK = Answer(200, b'{"fine":true}')
UNSENT = ConnectionFailed("no server", sent=False)
LOST = ConnectionFailed("the reply was lost", sent=True)


class Pauses:
    """A sleep that remembers and does not, and the clock that goes with it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)

    def monotonic(self) -> float:
        return sum(self.seconds)


def make(script: Script, pauses: Pauses | None = None, retry: CallPolicy | None = None) -> Caller:
    pauses = pauses or Pauses()
    return Caller(script, retry, pauses.sleep, pauses.monotonic, lambda: 1.0)


def test_segments_of_a_path_are_encoded_each_on_its_own() -> None:
    assert path("pop", "queue", "a/b ü?") == "/api/v1/pop/queue/a%2Fb%20%C3%BC%3F"


async def test_an_answer_is_handed_on() -> None:
    script = Script(OK)
    assert await make(script).call("POST", "/x", body={"a": 1}, query={"b": None}, seconds=3.0) is OK
    [request] = script.requests
    assert (request.method, request.path, request.body, request.timeout) == ("POST", "/x", b'{"a":1}', 3.0)


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (problem(400, "invalid_json"), InvalidInput, "invalid_json"),
        (problem(404, "queue_not_found"), NotFound, "queue_not_found"),
        (problem(409, "ambiguous"), Conflict, "ambiguous"),
        (problem(500, "internal"), HarkError, "internal"),
        (Answer(301, b""), HarkError, "not_hark"),
        (Answer(404, b"<html>"), NotFound, "not_hark"),
        (Answer(500, b"{}"), HarkError, "not_hark"),
    ],
    ids=["400", "404", "409", "500", "redirect", "another server's 404", "another server's 500"],
)
async def test_a_refusal_that_does_not_pass_is_raised_at_once(answer: Answer, kind: type[HarkError], code: str) -> None:
    script = Script(answer)
    with pytest.raises(kind) as refused:
        await make(script).call("GET", "/x")
    assert refused.value.code == code
    assert len(script.requests) == 1


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "failure",
    [problem(429, "overloaded"), problem(503, "stopping"), problem(503, "engine_failure"), UNSENT],
    ids=["overloaded", "stopping", "engine failure", "no connection"],
)
async def test_what_passes_and_had_no_effect_is_tried_again(method: str, failure: Answer | Exception) -> None:
    script = Script(failure, failure, OK)
    assert await make(script).call(method, "/x") is OK
    assert len(script.requests) == 3


@pytest.mark.parametrize(
    "failure",
    [LOST, problem(503, "outcome_unknown"), Answer(502, b"<html>"), Answer(504, b"")],
    ids=["lost reply", "outcome unknown", "bad gateway", "gateway timeout"],
)
@pytest.mark.parametrize(
    ("method", "safe", "again"),
    [("GET", None, True), ("POST", None, False), ("POST", True, True), ("GET", False, False)],
    ids=["GET", "POST", "safe POST", "unsafe GET"],
)
async def test_what_may_have_had_its_effect_is_tried_again_only_if_that_is_safe(
    failure: Answer | Exception, method: str, safe: bool | None, again: bool
) -> None:
    script = Script(failure, OK)
    if again:
        assert await make(script).call(method, "/x", safe=safe) is OK
    else:
        with pytest.raises((ConnectionFailed, EngineFailure)):
            await make(script).call(method, "/x", safe=safe)
    assert len(script.requests) == 1 + again


async def test_pauses_double_up_to_the_longest() -> None:
    script, pauses = Script(UNSENT), Pauses()
    with pytest.raises(ConnectionFailed):
        await make(script, pauses, CallPolicy(attempts=6, first_delay=0.1, max_delay=0.5)).call("GET", "/x")
    assert pauses.seconds == [0.1, 0.2, 0.4, 0.5, 0.5]
    assert len(script.requests) == 6


def test_half_of_a_pause_is_by_chance() -> None:
    policy = CallPolicy(first_delay=1.0)
    assert (policy.delay(1, lambda: 0.0), policy.delay(1, lambda: 1.0)) == (0.5, 1.0)
    assert policy.delay(10_000, lambda: 1.0) == policy.max_delay


async def test_the_server_may_ask_for_a_longer_pause() -> None:
    pauses = Pauses()
    await make(Script(problem(503, "disk_full", retry_after=10), OK), pauses).call("GET", "/x")
    assert pauses.seconds == [10]


async def test_a_pause_that_would_take_too_long_is_not_made() -> None:
    script, pauses = Script(problem(503, "maintenance", "closed", retry_after=20)), Pauses()
    with pytest.raises(Unavailable) as refused:
        await make(script, pauses, CallPolicy(give_up_after=50)).call("POST", "/x")
    assert pauses.seconds == [20, 20]
    assert (refused.value.code, refused.value.retry_after) == ("maintenance", 20)


async def test_codes_that_the_caller_calls_final_are_not_waited_out() -> None:
    script = Script(problem(429, "queue_full"))
    with pytest.raises(Overloaded):
        await make(script).call("POST", "/x", final=frozenset({"queue_full"}))
    assert len(script.requests) == 1


async def test_a_call_that_is_cancelled_in_its_pause_ends_at_once() -> None:
    paused = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        paused.set()
        await asyncio.Event().wait()

    script = Script(UNSENT)
    call = asyncio.create_task(Caller(script, sleep=sleep).call("GET", "/x"))
    await paused.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert len(script.requests) == 1


async def test_an_answer_is_decoded_into_its_shape() -> None:
    class Fine(msgspec.Struct):
        fine: bool

    assert await make(Script(OK)).read(Fine, "GET", "/x") == Fine(True)


def test_an_answer_of_another_shape_is_not_harks() -> None:
    with pytest.raises(HarkError) as refused:
        decode(b"[1]", dict[str, int])
    assert refused.value.code == "not_hark"


def test_an_error_for_somebody_else_is_equal_but_not_the_same() -> None:
    cause = OSError("cable")
    try:
        raise LOST from cause
    except ConnectionFailed as error:
        other = error.again()
    assert (type(other), other.text, other.sent, other.code) == (ConnectionFailed, LOST.text, True, LOST.code)
    assert str(other) == str(LOST)
    assert other.__cause__ is cause
    assert other.__traceback__ is None
