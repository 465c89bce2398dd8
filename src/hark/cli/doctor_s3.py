"""What `hark doctor` looks at in a bucket. It writes a few bytes under `probe/` and removes them; nothing else."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hark.cli.check import Check
from hark.clock import SECOND, SystemClock
from hark.errors import HarkError, InvalidSetting
from hark.polling import strategy_from
from hark.polling.cost import Price, estimate
from hark.settings import Settings
from hark.settings.s3 import S3

if TYPE_CHECKING:
    from hark.engine.s3.bucket.api import Bucket
    from hark.engine.s3.log.pointer import Pointer

CLOCK_SECONDS = 5.0
LONG_TAIL = 10
"""Times as many records as a snapshot is made after: then something keeps snapshots from being made."""
LATE_GRACES = 2
"""Times the grace period: then something keeps old records from being removed."""
MANY_DOLLARS = 1.0
"""A month, for a worker that does nothing."""
_BATCHES = 10_000
"""A million messages, a hundred at a time."""
_PUTS_PER_BATCH = _GETS_PER_BATCH = 2
"""One PUT with the pushes and one with the claims and the acks before them; each is read by somebody else."""


def bucket_checks(settings: Settings) -> list[Check]:
    """Look at a bucket as a server or a worker would use it."""
    return asyncio.run(_checks(settings))


async def _checks(settings: Settings) -> list[Check]:
    from hark.engine.s3.bucket.address import Address
    from hark.engine.s3.bucket.api import BucketError
    from hark.engine.s3.bucket.client import S3Bucket

    try:
        bucket = S3Bucket(Address.parse(settings.engine), SystemClock(), settings.s3)
        await bucket.open()
    except (HarkError, BucketError) as error:
        return [_failed("bucket", error)]
    try:
        return await examine(bucket, settings, secrets.token_hex(8))
    finally:
        await bucket.close()


async def examine(
    bucket: Bucket, settings: Settings, unique: str, pause: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> list[Check]:
    """Look at an open bucket; `unique` is random, for keys that nobody else uses."""
    from hark.engine.s3.bucket.api import BucketError
    from hark.engine.s3.bucket.probing import probe

    try:
        await probe(bucket, unique, pause=pause)
    except HarkError as error:
        return [_failed("bucket", error)]
    checks = [
        Check("bucket", "ok", f"{bucket.name} answers, and keeps the conditions of writes"),
        _clock(bucket),
    ]
    try:
        checks += await _store(bucket, settings.s3)
    except (HarkError, BucketError) as error:
        checks.append(_failed("store", error))
    return [*checks, _costs(bucket, settings)]


def _failed(name: str, error: Exception) -> Check:
    detail, _, advice = str(error).partition("; ")
    default = "correct it" if isinstance(error, InvalidSetting) else "look at the bucket with the tools of its provider"
    return Check(name, "fail", detail, advice or default)


def _clock(bucket: Bucket) -> Check:
    """Compare the clocks, as far as whole seconds in answers allow."""
    if bucket.time.allowed() is None:
        return Check("store clock", "warn", "the store does not tell its time", "compare the clocks by hand")
    seconds = bucket.time.offset() / SECOND
    if abs(seconds) <= CLOCK_SECONDS:
        return Check("store clock", "ok", f"this machine agrees with the store to {abs(seconds):.1f} s")
    side = "behind" if seconds > 0 else "ahead of"
    detail = f"this machine is {abs(seconds):.0f} s {side} the store"
    return Check("store clock", "warn", detail, "run a time service (NTP) here: Hark only corrects what it can see")


async def _store(bucket: Bucket, settings: S3) -> list[Check]:
    """Look at the objects whose keys are known: no LIST is needed."""
    from hark.engine.s3.log import places
    from hark.engine.s3.log.meta import read_or_create
    from hark.engine.s3.log.pointer import Pointer, read_pointer

    read = await read_pointer(bucket)
    pointer = Pointer("") if read is None else read[0]
    head = await find_head(bucket, pointer.seq)
    if await bucket.get(places.META) is None:
        if head:
            advice = "restore it from a backup or an older version of it, or choose another prefix"
            return [Check("store", "fail", f"there is a log, but {places.META} was removed", advice)]
        return [Check("store", "ok", "nothing here yet", "the first server or worker makes it")]
    meta = await read_or_create(bucket, bucket.time.now())  # It is there, so that nothing is created.
    return [
        Check("store", "ok", f"format {meta.format}, {head:,} records were ever written"),
        _snapshot(pointer, head, settings),
        _removal(pointer, bucket.time.now(), meta.grace_seconds),
    ]


async def find_head(bucket: Bucket, known: int) -> int:
    """The number of the newest record, from one that is known (0: none): in about 2 x log2 GETs of the distance."""
    from hark.engine.s3.log import places

    async def is_there(seq: int) -> bool:
        return await bucket.get_range(places.record(seq), 0, 1) is not None

    step = 1
    while await is_there(known + step):
        known, step = known + step, step * 2
    above = known + step
    while above - known > 1:
        middle = (known + above) // 2
        if await is_there(middle):
            known = middle
        else:
            above = middle
    return known


def _snapshot(pointer: Pointer, head: int, settings: S3) -> Check:
    """Look how much a start has to read."""
    tail = head - pointer.seq
    newest = (
        f"the newest is of record {pointer.seq:,}; a start reads it and" if pointer.seq else "none yet; a start reads"
    )
    detail = f"{newest} {tail:,} records"
    if tail > LONG_TAIL * settings.snapshot_records:
        advice = f"one should be made after {settings.snapshot_records:,}: the log of a server or worker says why not"
        return Check("snapshot", "warn", detail, advice)
    return Check("snapshot", "ok", detail)


def _removal(pointer: Pointer, now: int, grace_seconds: int) -> Check:
    """Look at what nobody needs any more."""
    records = pointer.seq - pointer.removed
    snapshots = max(len(pointer.snapshots) - 1, 0) + len(pointer.announced)
    detail = f"{records:,} records at most and {snapshots:,} snapshots wait for it"
    # The second snapshot has been enough for so long: the first one, and what is below it, should be gone.
    since = pointer.snapshots[1].since if len(pointer.snapshots) > 1 else 0
    if since and now - since > LATE_GRACES * grace_seconds * SECOND:
        advice = "servers and workers remove what is older than s3.grace_seconds: run one, or look at its log"
        return Check("removal", "warn", f"{detail}, for {(now - since) // SECOND:,} s", advice)
    return Check("removal", "ok", detail)


def _costs(bucket: Bucket, settings: Settings) -> Check:
    """Estimate what the store takes for requests."""
    price = Price(
        name="settings",
        get_per_thousand=settings.s3.get_dollars / 1000,
        put_per_thousand=settings.s3.put_dollars / 1000,
    )
    idle = estimate(strategy_from(settings), price=price).dollars_per_month
    million = _BATCHES / 1000 * (_PUTS_PER_BATCH * price.put_per_thousand + _GETS_PER_BATCH * price.get_per_thousand)
    detail = (
        f"an idle process ${idle:.2f} a month; a million messages, 100 at a time, ${million:.2f}; "
        f"this look at it ${bucket.requests.dollars():.6f}"
    )
    if idle > MANY_DOLLARS:
        return Check("costs", "ok", detail, "poll less often: hark polling shows what the settings come to")
    return Check("costs", "ok", detail)
