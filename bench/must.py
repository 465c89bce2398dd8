"""What must hold: each figure that the project demands, and whether this run shows it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import msgspec

from bench.figures import Figure, Run
from bench.hostile.attacks import ATTACKS
from bench.rows import BACKLOG, PUSHES
from bench.stores import EngineName


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, its bound, and what was measured (None: not in this run)."""

    text: str
    bound: float
    unit: str
    at_most: bool
    actual: float | None
    note: str = ""
    """What speaks against the measurement."""

    @property
    def holds(self) -> bool | None:
        """Whether it holds; None when it was not measured."""
        if self.actual is None:
            return None
        return self.actual <= self.bound if self.at_most else self.actual >= self.bound


class Bound(msgspec.Struct, frozen=True):
    """What a single figure of a run may be."""

    name: str
    text: str
    value: float
    unit: str
    at_most: bool = True


NO_FIGURE = Figure(row="", title="", server="hark", throughput=0)
FLOOR = 0.8
BACKLOG_COST = 1.5
BY_WRK = frozenset(
    {
        *(f"backlog_{row.name}" for row in BACKLOG),
        "together_p99",
        "together_left",
        *(f"shared{n}{d}" for n in (1, 100) for d in ("", "_delayed")),
        "auth_push1",
        "auth_push100",
    }
)
"""Single figures that depend on the generator."""
AT_LEAST_L: dict[EngineName, tuple[tuple[str, str, float], ...]] = {
    "sqlite": (
        ("push1", "push 1, 64 connections", 0.12),
        ("push1c256", "push 1, 256 connections", 0.12),
        ("push100", "push 100, one partition a request", 1.5),
        ("push100s", "push 100, 100 partitions a request", 0.7),
        ("pop100", "pop 100 + ack", 0.73),
        ("pop100auto", "pop 100 auto-ack", 1.0),
        ("pop1", "pop 1 + ack, 64 connections", 0.052),
    ),
    "postgres": (
        ("push1", "push 1, 64 connections", 0.1),
        ("push1c256", "push 1, 256 connections", 0.12),
        ("push100", "push 100, one partition a request", 1.2),
        ("push100s", "push 100, 100 partitions a request", 0.75),
        ("pop100", "pop 100 + ack", 0.58),
        ("pop100auto", "pop 100 auto-ack", 0.93),
        ("pop1", "pop 1 + ack, 64 connections", 0.046),
    ),
    "s3": (),
}
"""Messages per second. They were demanded in units of an empty ASGI app under uvicorn, which were 0.29 L each."""
CPU_L: dict[EngineName, tuple[tuple[str, str, float], ...]] = {
    "sqlite": (),
    "postgres": (
        ("push1", "push 1, 64 connections: CPU of the server's process a message", 5.0),
        ("push1c256", "push 1, 256 connections: CPU of the server's process a message", 5.0),
    ),
    "s3": (),
}
"""Upper bound of the CPU of a request, in CPU of the bare protocol."""
HOSTILE = tuple(
    bound
    for attack in ATTACKS
    for bound in (
        Bound(f"hostile_{attack.name}_p99", f"{attack.title}: p99 of /health/live", 200.0, "ms"),
        Bound(f"hostile_{attack.name}_mb", f"{attack.title}: memory", attack.memory, "MB more"),
    )
)
"""What attackers without a token may do to others."""
DELIVERY = (
    Bound("deliver_p50", "push to delivery at a waiting client: p50", 5.0, "ms"),
    Bound("deliver_p99", "push to delivery at a waiting client: p99", 20.0, "ms"),
    Bound("deliver_lost", "push to delivery at a waiting client: not delivered", 0, "messages"),
    Bound("end_lost", "push to handler by Hark's client at 500/s: not delivered", 0, "messages"),
    Bound("waiting_cpu", "10,000 waiting pops: idle server", 0.5, "% of a core"),
    Bound("waiting_kb", "10,000 waiting pops: memory of each", 6.0, "KB"),
    Bound("waiting_p99", "10,000 waiting pops: push to delivery, p99", 30.0, "ms"),
    Bound("waiting_lost", "10,000 waiting pops: not delivered", 0, "messages"),
    Bound("fair_sockets", "1,000 WebSockets, 10,000 messages: most - least", 1, "messages"),
    Bound("fair_polls", "1,000 long polls, ten rounds: most - least", 0, "messages"),
    Bound("calls_parked", "100 pops wait, 100 messages come: pops in a call", 20.0, "pops", at_most=False),
    Bound("calls_arriving", "100 messages wait, 100 pops come: pops in a call", 20.0, "pops", at_most=False),
    Bound("leaks_left", "misbehaving clients: waiting pops, streams and subscriptions left", 0, "left"),
    Bound("leaks_leases", "misbehaving clients: leases that nobody holds", 0, "leases"),
    Bound("leaks_lost", "misbehaving clients: messages that nobody could settle", 0, "messages"),
    Bound("leaks_files", "misbehaving clients: open files, last quarter over the first", 8, "more"),
    Bound("leaks_growth", "misbehaving clients: memory, last quarter over the first", 5.0, "MB more"),
)
"""What both engines must do for those who wait."""
WORK = (
    Bound("shared1", "shared group, one partition, 64 consumers: push 1, pop 1, ack", 0.5, "x ordered", at_most=False),
    Bound("shared100", "shared group, one partition: push 100, pop 100, ack", 0.4, "x ordered", at_most=False),
    Bound("shared1_delayed", "the first of them beside a million delayed messages", 1.3, "x the cost"),
    Bound("shared100_delayed", "the second of them beside a million delayed messages", 1.3, "x the cost"),
    Bound("due_p99", "a message due at T reaches a waiting consumer: p99 behind T", 20.0, "ms"),
    Bound("due_early", "a message due at T: delivered before T", 0, "messages"),
    Bound("due_lost", "a message due at T: not delivered", 0, "messages"),
    Bound("keys_p99", "list of 100 keys below a prefix among a million: p99", 5.0, "ms"),
    Bound("watch_p99", "a write to a watcher: p99", 20.0, "ms"),
    Bound("watch_lost", "writes that a watcher was not told of", 0, "writes"),
)
"""What both engines must do for work queues and keys."""
CLIENT = (
    Bound("client_push", "single pushes of one client process", 3.0, "x the official client", at_most=False),
    Bound("client_consume", "consume + ack in batches of 100", 2.0, "x the official client", at_most=False),
    Bound("client_consume_many", "the same over 10 partitions", 2.0, "x the official client", at_most=False),
    Bound("tasks_celery", "tasks that do nothing, per worker process", 5.0, "x Celery", at_most=False),
    Bound("tasks_procrastinate", "tasks that do nothing, per worker process", 5.0, "x procrastinate", at_most=False),
    Bound("tasks_p50", "push to the start of its handler, idle worker: p50", 10.0, "ms"),
)
"""What the Python client and the worker must do."""
OPERATE = (
    Bound("auth_push1", "push 1 with a token", 0.9, "x without", at_most=False),
    Bound("auth_push100", "push 100 with a token", 0.9, "x without", at_most=False),
    Bound("scrape_ms", "a scrape of the metrics, 10,000 queues: p50", 50.0, "ms"),
    Bound("scrape_series", "series of a scrape, 10,000 queues", 4000, "series"),
    Bound("lists_ms", "the slowest list, 100,000 partitions, a million messages: p50", 500.0, "ms"),
    Bound("page_paint_ms", "first paint of the dashboard, 10,000 queues, 100,000 partitions: p50", 300.0, "ms"),
    Bound("page_kilobytes", "first page of the dashboard: transferred", 100.0, "KB"),
    Bound("steps_stored", "a task with a stored result: CPU of worker and server", 1.3, "x a plain task"),
    Bound("steps_chains", "a step of a chain that the one before pushes: CPU of both", 1.3, "x a plain task"),
    Bound("schedules_cpu", "10,000 schedules: idle server, with its database", 1.0, "% of a core"),
    Bound("page_per_second", "requests of one address by the open page", 1, "a second"),
)
"""What looking after a server may cost."""
BUCKET = (
    Bound("s3_served", "push 100 and pop 100 + ack through one server", 5000, "messages/s", at_most=False),
    Bound("s3_brokerless", "push 100, pop 100, ack in 4 processes without a server", 1000, "messages/s", at_most=False),
    Bound("s3_brokerless_share", "of them the one that got the least pushed", 0.5, "x its share", at_most=False),
    Bound("s3_single", "push 1 on an idle server: p50", 1.5, "x a bare PUT"),
    Bound("s3_single_brokerless", "push 1 in an idle process without a server: p50", 1.5, "x a bare PUT"),
    Bound("s3_served_requests", "batches of 100 through one server, under load", 0.05, "requests a message"),
    Bound("s3_served_dollars", "batches of 100 through one server, under load", 0.15, "$ a million"),
    Bound("s3_lonely_served_requests", "one producer, one consumer, through a server", 0.05, "requests a message"),
    Bound("s3_lonely_served_dollars", "one producer, one consumer, through a server", 0.15, "$ a million"),
    Bound("s3_lonely_dollars", "one producer, one consumer, without a server", 0.15, "$ a million"),
    Bound("s3_quiet_gets", "a process that waits for messages: GETs", 12.5, "a minute"),
    Bound("s3_quiet_lists", "processes that wait for messages: LISTs", 0, "requests"),
    Bound("s3_quiet_puts", "processes that wait for messages: PUTs", 0, "requests"),
)
"""What a bucket must do, and what it may be asked for."""
SINGLE: dict[EngineName, tuple[Bound, ...]] = {
    "sqlite": (
        Bound("idle", "p99 of a single push on an idle server", 3.0, "x p99 of fdatasync"),
        *(
            Bound(f"backlog_{row.name}", f"{row.name} with a long history", BACKLOG_COST, "x empty store")
            for row in BACKLOG
        ),
        Bound("rss", "memory of an idle server", 80.0, "MB"),
        Bound("start", "start to first answer, empty store", 1.0, "s"),
        Bound("start_backlog", "start to first answer, long history", 1.0, "s"),
        *DELIVERY,
        *HOSTILE,
        *WORK,
        *OPERATE,
        *CLIENT,
        # All that happens is heard here: nobody may be told for nothing.
        Bound("empty_polls", "1,000 long polls, ten rounds: told for nothing", 0, "times"),
    ),
    "postgres": (
        Bound("cost_1000", "CPU of PostgreSQL, push 1000 over 1000 partitions", 3.0, "x COPY"),
        Bound("cost_10", "CPU of PostgreSQL, push 1000 over 10 partitions", 1.8, "x COPY"),
        Bound("cost_1000_tx", "the same with transaction ids, 1000 partitions", 3.0, "x COPY"),
        Bound("cost_10_tx", "the same with transaction ids, 10 partitions", 1.8, "x COPY"),
        Bound("together_left", "pushes beside consumers: left unread of what was pushed", 0.02, "of it"),
        Bound("together_p99", "pushes beside consumers: p99 of a push", 100.0, "ms"),
        Bound("pinned", "a transaction held open: last part", 0.5, "x the first", at_most=False),
        Bound("pinned_after", "a while after it ended", 0.9, "x the first", at_most=False),
        Bound("peer_pgqueuer", "enqueue to settled, each at its best", 5.0, "x pgqueuer", at_most=False),
        Bound("peer_procrastinate", "enqueue to settled, each at its best", 10.0, "x procrastinate", at_most=False),
        *DELIVERY,
        *HOSTILE,
        *WORK,
        *OPERATE,
        Bound("deliver2_p50", "pushed here, delivered there, by UDP: p50", 10.0, "ms"),
        Bound("deliver2_blocked", "pushed here, delivered there, UDP blocked: the longest", 5.5, "s"),
        Bound("deliver2_lost", "pushed here, delivered there: not delivered", 0, "messages"),
    ),
    "s3": BUCKET,
}
ENGINES: dict[str, EngineName] = {"sqlite": "sqlite", "postgres": "postgres", "s3": "s3"}


def demands(run: Run) -> Iterator[Demand]:
    """All demands, measured or not."""
    engine = ENGINES.get(run.machine.get("engine", ""), "sqlite")
    # A generator that is itself Python slows what is fast and so flatters every ratio: such a run judges none.
    is_comparable = run.machine.get("generator") == "wrk"
    at_hark = {figure.row: figure for figure in run.figures if is_comparable and figure.server == "hark"}

    def single(name: str) -> float | None:
        values = run.values.get(name) if is_comparable or name not in BY_WRK else None
        return median(values) if values else None

    for row in PUSHES:
        if row.floor and engine != "s3":  # There the floor would be a bare PUT, and is.
            figure = at_hark.get(row.name, NO_FIGURE)
            value, note = figure.ratio_floor, figure.note
            yield Demand(text=row.title, bound=FLOOR, unit="x floor", at_most=False, actual=value, note=note)
    for name, text, bound in AT_LEAST_L[engine]:
        figure = at_hark.get(name, NO_FIGURE)
        value, note = figure.ratio_l, figure.note
        yield Demand(text=text, bound=bound, unit="L", at_most=False, actual=value, note=note)
    for name, text, bound in CPU_L[engine]:
        figure = at_hark.get(name, NO_FIGURE)
        yield Demand(text=text, bound=bound, unit="L", at_most=True, actual=figure.cpu_l, note=figure.note)
    for each in SINGLE[engine]:
        value = single(each.name)
        yield Demand(text=each.text, bound=each.value, unit=each.unit, at_most=each.at_most, actual=value)
