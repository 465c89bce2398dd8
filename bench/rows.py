"""The rows of the benchmark: what each sends, and how."""

from __future__ import annotations

import msgspec

from bench.stores import EngineName
from hark.cli.bench import Load

QUEUE = "bench"
PARTITIONS = 1000
SIZE = 256


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table: a load at a server."""

    name: str
    load: Load
    floor: bool = False
    """Also measured at the floor."""
    guess: float = 1
    """For pops: the throughput in units of L that the first backlog is made for."""

    @property
    def title(self) -> str:
        """The row in words."""
        load = self.load
        if load.kind == "push":
            verb = f"push {load.batch}" + (" with transaction ids" if load.transaction_ids else "")
            spread = f", {min(load.batch, load.partitions)} partitions a request" if load.spread else ""
        else:
            verb = f"pop {load.batch} " + ("auto-ack" if load.auto_ack else "+ ack")
            verb += " in a shared group" if load.shared else ""
            spread = ""
        return f"{verb}, {_many(load.connections, 'connection')}, {_many(load.partitions, 'partition')}{spread}"


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _push(
    name: str,
    batch: int,
    connections: int,
    partitions: int = PARTITIONS,
    *,
    spread: bool = False,
    ids: bool = False,
) -> Row:
    load = Load(
        kind="push",
        queue=QUEUE,
        connections=connections,
        batch=batch,
        partitions=partitions,
        size=SIZE,
        spread=spread,
        transaction_ids=ids,
    )
    # The floor knows no transaction ids, so there it would be another row.
    return Row(name=name, load=load, floor=not ids)


def _pop(
    name: str,
    batch: int,
    connections: int,
    partitions: int = PARTITIONS,
    *,
    auto_ack: bool = False,
    guess: float,
) -> Row:
    load = Load(
        kind="pop",
        queue=QUEUE,
        # A partition is leased to one consumer at a time: connections beyond that would only pop nothing.
        connections=min(connections, partitions),
        batch=batch,
        partitions=partitions,
        size=SIZE,
        auto_ack=auto_ack,
    )
    return Row(name=name, load=load, guess=guess)


PUSHES = (
    _push("push1", 1, 64),
    _push("push1c256", 1, 256),
    _push("push10", 10, 32),
    _push("push10s", 10, 32, spread=True),
    _push("push100", 100, 32),
    _push("push100s", 100, 32, spread=True),
    _push("push1tx", 1, 64, ids=True),
    _push("push100tx", 100, 32, ids=True),
    _push("push1p1", 1, 64, 1),
    _push("push1p10", 1, 64, 10),
    _push("push10p1", 10, 32, 1),
    _push("push10p10", 10, 32, 10),
    _push("push100p1", 100, 32, 1),
    _push("push100p10", 100, 32, 10),
)
POPS = (
    _pop("pop1", 1, 64, guess=0.2),
    _pop("pop100", 100, 32, guess=1.2),
    _pop("pop100auto", 100, 32, auto_ack=True, guess=1.8),
    _pop("pop1p1", 1, 64, 1, guess=0.08),
    _pop("pop1p10", 1, 64, 10, guess=0.16),
    _pop("pop100p1", 100, 32, 1, guess=0.6),
    _pop("pop100p10", 100, 32, 10, guess=0.9),
)
BARE_ROW = msgspec.structs.replace(PUSHES[0], name="L")
"""What L is measured with: pushes of one message, at the bare protocol."""
ROWS = {row.name: row for row in (*PUSHES, *POPS)}
BACKLOG = tuple(ROWS[name] for name in ("pop100", "pop1", "push1", "push100s"))
"""Measured on an empty store and on one with a long history; pops first, as pushes leave messages behind."""
DEEP = frozenset({"pop100", "pop100auto"})
"""On PostgreSQL these find a million messages, unless the run is a quick one."""
DEEP_BACKLOG = 1_000_000
_QUICK = (
    "limits",
    "start",
    "idle",
    "lone",
    "end",
    "push1",
    "push100",
    "push100s",
    "pop1",
    "pop100",
    "pop100auto",
    "deliver",
    "calls",
    "due",
)
_WORK = ("shared", "due", "keys", "watch")
_OPERATE = ("auth", "scrape", "page", "lists", "steps", "schedules")
_CLIENT = ("client", "libraries", "tasks", "polling")
_DELIVERY = ("deliver", "waiting", "fair", "calls", "leaks", "hostile")
_ALL = ("limits", "start", "idle", "lone", "end", "mixed", *ROWS, "backlog", *_DELIVERY, *_WORK)
_POSTGRES = ("deliver2", "cost", "together", "pinned", "peers")
_S3 = ("single", "served", "brokerless", "lonely", "starting", "quiet")
QUICK: dict[EngineName, tuple[str, ...]] = {"sqlite": _QUICK, "postgres": (*_QUICK, *_POSTGRES), "s3": _S3}
ALL: dict[EngineName, tuple[str, ...]] = {
    "sqlite": (*_ALL, *_OPERATE, *_CLIENT),
    "postgres": (*_ALL, *_OPERATE, *_POSTGRES),
    "s3": _S3,
}
