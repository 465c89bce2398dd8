"""Calls are tried again as long as that is safe, and at another server; `connect` finds the way to its target."""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from hark.client.calling import Caller, CallPolicy
from hark.client.pushing import Pusher, new_message
from hark.client.transport.api import Answer, ConnectionFailed, Request, Transport
from hark.client.transport.http import FailoverTransport, HttpTransport
from hark.client.transport.inprocess import AsgiTransport
from hark.clock import FakeClock, SystemClock
from hark.connecting import connect
from hark.engine.sqlite import SqliteEngine
from hark.errors import Conflict, EngineFailure, HarkError, InvalidInput, NotFound, Overloaded, Unavailable
from hark.settings import Settings
from tests.client.transports import Pauses, Proxy, Script, path, problem
from tests.crash.server import Server, running

OK = Answer(200, b'{"fine":true}')
UNSENT = ConnectionFailed("no server", sent=False)
LOST = ConnectionFailed("the reply was lost", sent=True)


def make(script: Script, pauses: Pauses | None = None, retry: CallPolicy | None = None) -> Caller:
    pauses = pauses or Pauses()
    return Caller(script, retry, pauses.sleep, pauses.monotonic, lambda: 1.0)


async def test_a_call_is_sent_as_it_was_stated_and_its_answer_handed_on_or_decoded() -> None:
    assert path("pop", "queue", "a/b ü?", "..") == "/api/v1/pop/queue/a%2Fb%20%C3%BC%3F/.."
    script = Script(OK)
    assert await make(script).call("POST", "/x", body={"a": 1}, query={"b": None}, seconds=3.0) is OK
    [request] = script.requests
    assert (request.method, request.path, request.body, request.timeout) == ("POST", "/x", b'{"a":1}', 3.0)
    assert await make(script).read(dict[str, bool], "GET", "/x") == {"fine": True}
    with pytest.raises(HarkError) as refused:
        await make(script).read(dict[str, int], "GET", "/x")
    assert refused.value.code == "not_hark"


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


@pytest.mark.parametrize(
    "second",
    [
        UNSENT,
        problem(429, "overloaded"),
        problem(503, "maintenance"),
        HarkError("the client is closed", code="client_closed"),
    ],
    ids=["no connection", "overloaded", "maintenance", "closed"],
)
@pytest.mark.parametrize("first", [LOST, problem(503, "outcome_unknown")], ids=["lost reply", "outcome unknown"])
async def test_a_lost_reply_is_not_forgotten_when_a_later_attempt_had_no_effect(
    first: Answer | Exception, second: Answer | Exception
) -> None:
    with pytest.raises((ConnectionFailed, EngineFailure)) as failed:
        await make(Script(first, UNSENT, second)).call("POST", "/x", safe=True)
    error = failed.value
    assert error.sent if isinstance(error, ConnectionFailed) else error.code == "outcome_unknown"


async def test_a_final_refusal_after_a_lost_reply_is_the_answer() -> None:
    with pytest.raises(Conflict):
        await make(Script(LOST, problem(409, "conflict"))).call("POST", "/x", safe=True)


async def test_pauses_double_up_to_the_longest_and_half_of_each_is_by_chance() -> None:
    script, pauses = Script(UNSENT), Pauses()
    with pytest.raises(ConnectionFailed):
        await make(script, pauses, CallPolicy(attempts=6, first_delay=0.1, max_delay=0.5)).call("GET", "/x")
    assert pauses.seconds == [0.1, 0.2, 0.4, 0.5, 0.5]
    assert len(script.requests) == 6
    policy = CallPolicy(first_delay=1.0)
    assert (policy.delay(1, lambda: 0.0), policy.delay(1, lambda: 1.0)) == (0.5, 1.0)
    assert policy.delay(10_000, lambda: 1.0) == policy.max_delay


async def test_the_server_may_ask_for_a_longer_pause_but_one_that_would_take_too_long_is_not_made() -> None:
    pauses = Pauses()
    await make(Script(problem(503, "disk_full", retry_after=10), OK), pauses).call("GET", "/x")
    assert pauses.seconds == [10]
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


def test_an_error_for_someone_else_is_equal_but_not_the_same() -> None:
    cause = OSError("cable")
    try:
        raise LOST from cause
    except ConnectionFailed as error:
        other = error.again()
    assert (type(other), other.text, other.sent, other.code) == (ConnectionFailed, LOST.text, True, LOST.code)
    assert str(other) == str(LOST)
    assert other.__cause__ is cause
    assert other.__traceback__ is None


# Several servers -----------------------------------------------------------------------------------------------


ASK = Request("GET", "/health")


def several(scripts: Mapping[str, Script], clock: Callable[[], float] = lambda: 0.0) -> FailoverTransport:
    return FailoverTransport(list(scripts), pause=5.0, monotonic=clock, make=scripts.__getitem__)


def requests(scripts: Mapping[str, Script]) -> list[int]:
    return [len(script.requests) for script in scripts.values()]


def failed(text: str) -> ConnectionFailed:
    """A server that can't be reached."""
    return ConnectionFailed(text, sent=False)


STOPPING = problem(503, "stopping", retry_after=1)
Scripted = list[Answer | Exception]

FAILOVER: dict[str, tuple[list[Scripted], list[float], list[object], list[int]]] = {
    # What the servers answer, when they are asked, what comes of each request, and how often each was asked.
    "the first one is used as long as it works": ([[OK], [OK]], [0, 0, 0], [OK, OK, OK], [3, 0]),
    "one that can't be reached is not gone back to": ([[UNSENT, OK], [OK]], [0, 100], [OK, OK], [1, 2]),
    "one that is stopping is left": ([[STOPPING], [OK]], [0, 0], [OK, OK], [1, 2]),
    "one whose store fails is left": ([[problem(503, "engine_failure")], [OK]], [0, 0], [OK, OK], [1, 2]),
    "a reply that was lost is not asked for elsewhere": ([[LOST], [OK]], [0], [LOST], [1, 0]),
    "but the next request goes there": ([[LOST], [OK]], [0, 0], [LOST, OK], [1, 1]),
    "one that failed lately is the last choice": (
        [[UNSENT, OK], [OK, UNSENT], [OK]], [0, 4], [OK, OK], [1, 2, 1],
    ),
    "one that failed is tried again after its pause": ([[UNSENT, OK], [OK, UNSENT]], [0, 6], [OK, OK], [2, 2]),
    "all are away, and the next request tries again": (
        [[failed("no a"), OK], [failed("no b")]], [0, 0],
        ["none of 2 servers can be reached: no a; no b", OK], [2, 2],
    ),
    "all are away or stopping": ([[UNSENT], [STOPPING]], [0], [STOPPING], [1, 1]),
}  # fmt: skip
for code, status in {"maintenance": 503, "overloaded": 429, "invalid_input": 400}.items():
    others_would = problem(status, code)
    FAILOVER[f"{code} is an answer"] = ([[others_would], [OK]], [0, 0], [others_would, others_would], [2, 0])
for unknown in (problem(503, "outcome_unknown"), Answer(502, b"<html>")):
    FAILOVER[f"{unknown.status} of unknown outcome is an answer"] = ([[unknown], [OK]], [0], [unknown], [1, 0])


@pytest.mark.parametrize("case", FAILOVER)
async def test_which_server_is_requested(case: str) -> None:
    answers, times, expected, counts = FAILOVER[case]
    scripts = {f"http://{number}": Script(*given) for number, given in enumerate(answers)}
    now = 0.0
    transport = several(scripts, lambda: now)
    for now, wanted in zip(times, expected, strict=True):  # noqa: B007  # The clock reads it.
        if isinstance(wanted, Answer):
            assert await transport.send(ASK) is wanted
        else:
            with pytest.raises(ConnectionFailed) as caught:
                await transport.send(ASK)
            assert caught.value.text == (wanted if isinstance(wanted, str) else LOST.text)
            assert caught.value.sent is not isinstance(wanted, str)
    assert requests(scripts) == counts


async def test_a_late_answer_of_a_server_that_was_left_does_not_bring_it_back() -> None:
    late: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    class Slow(Script):
        async def send(self, request: Request) -> Answer:
            self.requests.append(request)
            if len(self.requests) == 1:
                return await late
            raise UNSENT

    scripts = {"a": Slow(OK), "b": Script(OK)}
    transport = several(scripts)
    slow = asyncio.create_task(transport.send(ASK))
    await asyncio.sleep(0)
    await transport.send(ASK)
    late.set_result(OK)
    assert await slow is OK
    await transport.send(ASK)
    assert requests(scripts) == [2, 2]


def test_a_fork_knows_the_same_servers() -> None:
    transport = FailoverTransport(["http://a:1", "http://b:2", "http://a:1"])
    assert transport.fork().urls == transport.urls == ("http://a:1", "http://b:2")
    with pytest.raises(InvalidInput, match="at least one"):
        FailoverTransport([])


# With servers ----------------------------------------------------------------------------------------------


async def contents(caller: Caller, queue: str) -> list[object]:
    """Everything that a queue has."""
    found: list[object] = []
    query = {"batch": 10_000, "partitions": 1000, "autoAck": True}
    while (answer := await caller.call("GET", path("pop", "queue", queue), query=query)).status != 204:
        found += [message["data"] for message in msgspec.json.decode(answer.body)["messages"]]
    return found


async def test_replies_that_are_lost_on_the_way_double_nothing_at_the_next_address(url: str, queue: str) -> None:
    async with Proxy(url) as proxy:
        transport = FailoverTransport([proxy.url, url])
        caller = Caller(transport, CallPolicy(first_delay=0.0))
        proxy.lose_replies(1)
        pusher = Pusher(caller, max_items=10)
        await pusher.push_many([new_message(queue, i) for i in range(100)])
        assert proxy.lost_replies == 1
        assert transport.url == url
        assert await contents(caller, queue) == list(range(100))
        await transport.close()


async def test_killing_a_server_in_the_middle_of_pushes_loses_and_doubles_nothing(postgres_url: str) -> None:
    queue = f"queue-{uuid.uuid4().hex[:12]}"
    first, second = (Server(settings={"HARK_ENGINE": postgres_url}) for _ in range(2))
    async with running(first, second):
        transport = FailoverTransport([first.url, second.url])
        caller = Caller(transport)
        pusher = Pusher(caller, max_items=5)
        half = asyncio.Event()
        pushed: list[int] = []

        async def produce(start: int) -> None:
            for number in range(start, start + 40):
                await pusher.push(new_message(queue, number, partition=f"p{start}"))
                pushed.append(number)
                if len(pushed) == 400:
                    half.set()

        producing = asyncio.gather(*(produce(40 * index) for index in range(20)))
        await half.wait()
        await first.end(signal.SIGKILL)
        await producing
        assert transport.url == second.url
        found = await contents(caller, queue)
        assert sorted(map(str, found)) == sorted(map(str, range(800)))
        await transport.close()


# Connecting ----------------------------------------------------------------------------------------------------


def way(target: object, **options: object) -> Transport:
    return connect(target, **options).caller.transport  # type: ignore[arg-type]  # Some are wrong on purpose.


@pytest.mark.parametrize(
    ("target", "kind", "urls"),
    [
        ("http://127.0.0.1:6632/", HttpTransport, ("http://127.0.0.1:6632",)),
        ("ws://a:1", HttpTransport, ("http://a:1",)),
        ("wss://a:1", HttpTransport, ("https://a:1",)),
        ("http://a:1,http://b:2", FailoverTransport, ("http://a:1", "http://b:2")),
        ("http://a:1, http://b:2,", FailoverTransport, ("http://a:1", "http://b:2")),
        (["http://a:1", "http://b:2"], FailoverTransport, ("http://a:1", "http://b:2")),
        (("http://a:1", "http://b:2"), FailoverTransport, ("http://a:1", "http://b:2")),
        (Script(), Script, ("a script",)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Script) else str(value),
)
def test_a_target_says_which_way_there_is(target: object, kind: type, urls: tuple[str, ...]) -> None:
    transport = way(target)
    assert type(transport) is kind
    assert (transport.urls if isinstance(transport, FailoverTransport) else (transport.url,)) == urls
    assert kind is not Script or transport is target


def test_without_a_target_the_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARK_URL", raising=False)
    assert way(None).url == "http://127.0.0.1:6632"
    monkeypatch.setenv("HARK_URL", "http://queue.example:1,http://queue.example:2")
    assert isinstance(way(None), FailoverTransport)


async def test_an_engine_gets_a_server_that_starts_and_closes_with_the_client(tmp_path: Path, queue: str) -> None:
    file = str(tmp_path / "hark.db")
    for expected in (201, 200):
        async with connect(SqliteEngine(file, clock=SystemClock())) as client:
            assert isinstance(client.caller.transport, AsgiTransport)
            if expected == 201:
                answer = await client.caller.call("POST", path("push"), body={"items": [{"queue": queue}]})
            else:
                answer = await client.caller.call("GET", path("pop", "queue", queue))
            assert answer.status == expected


async def test_an_engine_lives_by_the_clock_and_the_settings_that_are_given(queue: str) -> None:
    clock = FakeClock()
    engine = SqliteEngine(":memory:", clock=clock)
    async with connect(engine, clock=clock, settings=Settings(max_body_bytes=1000)) as client:
        item = {"queue": queue, "payload": 1, "delay": 60_000}
        await client.caller.call("POST", path("push"), body={"items": [item]})
        assert (await client.caller.call("GET", path("pop", "queue", queue))).status == 204
        clock.advance(61)
        assert (await client.caller.call("GET", path("pop", "queue", queue))).status == 200
        with pytest.raises(InvalidInput, match="1000 bytes"):
            await client.caller.call("POST", path("push"), body={"items": [{"queue": queue, "payload": "x" * 1000}]})
