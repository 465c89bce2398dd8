"""The checks of `hark doctor` for a bucket. They write a few bytes under `probe/` and remove them."""

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
"""How many times `snapshot_records` the log may be before the check warns that no snapshot is made."""
LATE_GRACES = 2
"""How many grace periods old data may stay before the check warns that it is not removed."""
MANY_DOLLARS = 1.0
"""Per month, for an idle worker."""
_BATCHES = 10_000
"""A million messages in batches of 100."""
_PUTS_PER_BATCH = _GETS_PER_BATCH = 2
"""One PUT for the pushes and one for the claims and the earlier acks; another process reads each of them."""


def bucket_checks(settings: Settings) -> list[Check]:
    """Check a bucket as a server or a worker would use it."""
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
    """Check an open bucket; `unique` is random, for keys that no other process uses."""
    from hark.engine.s3.bucket.api import BucketError
    from hark.engine.s3.bucket.probing import probe

    try:
        await probe(bucket, unique, pause=pause)
    except HarkError as error:
        return [_failed("bucket", error)]
    checks = [
        Check("bucket", "ok", f"{bucket.name} responds and supports conditional writes"),
        _clock(bucket),
    ]
    try:
        checks += await _store(bucket, settings.s3)
    except (HarkError, BucketError) as error:
        checks.append(_failed("store", error))
    return [*checks, _costs(bucket, settings)]


def _failed(name: str, error: Exception) -> Check:
    detail, _, advice = str(error).partition("; ")
    default = "correct it" if isinstance(error, InvalidSetting) else "check the bucket with the tools of its provider"
    return Check(name, "fail", detail, advice or default)


def _clock(bucket: Bucket) -> Check:
    """Compare the clocks, as far as whole seconds in responses allow."""
    if bucket.time.allowed() is None:
        detail = "the responses of the store have no valid Date header"
        return Check("store clock", "warn", detail, "compare the two clocks manually")
    seconds = bucket.time.offset() / SECOND
    if abs(seconds) <= CLOCK_SECONDS:
        return Check("store clock", "ok", f"differs from the store's by {abs(seconds):.1f} s")
    side = "behind" if seconds > 0 else "ahead of"
    detail = f"this machine's clock is {abs(seconds):.0f} s {side} the store's"
    return Check("store clock", "warn", detail, "run NTP on this machine: Hark corrects the difference only in part")


async def _store(bucket: Bucket, settings: S3) -> list[Check]:
    """Check the objects whose keys are known; this needs no LIST."""
    from hark.engine.s3.log import places
    from hark.engine.s3.log.meta import read_or_create
    from hark.engine.s3.log.pointer import Pointer, read_pointer

    read = await read_pointer(bucket)
    pointer = Pointer("") if read is None else read[0]
    head = await find_head(bucket, pointer.seq)
    if await bucket.get(places.META) is None:
        if head:
            advice = f"restore {places.META} from a backup or an older version, or use another prefix"
            return [Check("store", "fail", f"the log exists, but {places.META} is missing", advice)]
        return [Check("store", "ok", "does not exist yet", "the first server or worker creates it")]
    meta = await read_or_create(bucket, bucket.time.now())  # It exists, so this creates nothing.
    return [
        Check("store", "ok", f"format {meta.format}, {head:,} log records written in total"),
        _snapshot(pointer, head, settings),
        _removal(pointer, bucket.time.now(), meta.grace_seconds),
    ]


async def find_head(bucket: Bucket, known: int) -> int:
    """Find the newest record, from a known one (0: none), with about 2 x log2(distance) GETs."""
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
    """Check how much a process reads when it starts."""
    tail = head - pointer.seq
    newest = f"newest at record {pointer.seq:,}" if pointer.seq else "none yet"
    detail = f"{newest}; a starting process reads {tail:,} {'later ' if pointer.seq else ''}records"
    if tail > LONG_TAIL * settings.snapshot_records:
        advice = (
            "check the log of a server or worker for the reason: "
            f"a snapshot is due after {settings.snapshot_records:,} records"
        )
        return Check("snapshot", "warn", detail, advice)
    return Check("snapshot", "ok", detail)


def _removal(pointer: Pointer, now: int, grace_seconds: int) -> Check:
    """Check that old records and snapshots are removed."""
    records = pointer.seq - pointer.removed
    snapshots = max(len(pointer.snapshots) - 1, 0) + len(pointer.announced)
    detail = f"up to {records:,} records and {snapshots:,} snapshots to remove"
    # Since that time the second snapshot is sufficient: the first one and older records should be removed.
    since = pointer.snapshots[1].since if len(pointer.snapshots) > 1 else 0
    if since and now - since > LATE_GRACES * grace_seconds * SECOND:
        advice = "run a server or worker, which removes data older than s3.grace_seconds, or check its log"
        return Check("removal", "warn", f"{detail}, due since {(now - since) // SECOND:,} s", advice)
    return Check("removal", "ok", detail)


def _costs(bucket: Bucket, settings: Settings) -> Check:
    """Estimate the price of requests to the store."""
    price = Price(
        name="settings",
        get_per_thousand=settings.s3.get_dollars / 1000,
        put_per_thousand=settings.s3.put_dollars / 1000,
    )
    idle = estimate(strategy_from(settings), price=price).dollars_per_month
    million = _BATCHES / 1000 * (_PUTS_PER_BATCH * price.put_per_thousand + _GETS_PER_BATCH * price.get_per_thousand)
    detail = (
        f"${idle:.2f} per month for an idle process; ${million:.2f} per million messages in batches of 100; "
        f"${bucket.requests.dollars():.6f} for these checks"
    )
    if idle > MANY_DOLLARS:
        return Check("costs", "ok", detail, "poll less often; hark polling shows the cost of the polling settings")
    return Check("costs", "ok", detail)
