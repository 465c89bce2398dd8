"""The checks of `hark doctor` for PostgreSQL and S3. Those of S3 write a few bytes under `probe/`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from hark.cli.doctor import Check, compare_clocks
from hark.clock import SECOND, SystemClock
from hark.errors import HarkError, InvalidSetting
from hark.polling import Price, estimate, strategy_from
from hark.settings import Settings
from hark.settings.sections import S3

if TYPE_CHECKING:
    from hark.engine.postgres.pool import Pool
    from hark.engine.s3.bucket import Bucket
    from hark.engine.s3.objects import Pointer


_POSTGRES, _BUCKET = "the log of PostgreSQL", "the bucket with the tools of its provider"
OLD_TRANSACTION_SECONDS = 600
OLD_INBOX_SECONDS = 60
MANY_DEAD, DEAD_PER_LIVE = 10_000, 10


async def database_checks(settings: Settings) -> list[Check]:
    """Check a database as a server would use it; changes nothing."""
    try:
        from hark.engine.postgres.pool import Pool, shown

        about = settings.postgres
        pool = Pool(settings.engine, size=1, wait_ms=about.wait_ms, prepared=about.prepared)
        await pool.open()
    except HarkError as error:
        return [_failed("database", error, _POSTGRES)]
    try:
        version = await pool.fetchval("select current_setting('server_version')")
        return [
            Check("database", "ok", f"connected to {shown(settings.engine)}, PostgreSQL {version}"),
            await _guarded("schema", _schema, pool),
            await _guarded("connections", lambda pool: _connections(pool, settings), pool),
            await _guarded("transactions", _transactions, pool),
            await _guarded("dead rows", _dead_rows, pool),
            await _guarded("inbox", _inbox, pool),
        ]
    except HarkError as error:
        return [_failed("database", error, _POSTGRES)]
    finally:
        await pool.close()


async def _guarded(name: str, check: Callable[[Pool], Awaitable[Check]], pool: Pool) -> Check:
    try:
        return await check(pool)
    except HarkError as error:
        return _failed(name, error, _POSTGRES)


def _failed(name: str, error: Exception, store: str) -> Check:
    detail, _, advice = str(error).partition("; ")
    default = "correct it" if isinstance(error, InvalidSetting) else f"check {store}"
    return Check(name, "fail", detail, advice or default)


async def _schema(pool: Pool) -> Check:
    """Compare the schema with the one that this version of Hark needs."""
    from hark.engine.postgres.migrate import all_steps, missing_steps

    missing = await missing_steps(pool, post=True)
    needed = [step for step in missing if step.phase == "pre"]
    if needed:
        advice = "run hark migrate, or start a server, which applies it"
        return Check("schema", "warn", f"migration {needed[0]} is not applied", advice)
    detail = f"version {max(step.number for step in all_steps())}"
    if missing:
        advice = "once no server of an older version is running, run hark migrate --post"
        return Check("schema", "ok", f"{detail}; migration {missing[0]} is not applied yet", advice)
    return Check("schema", "ok", detail)


async def _connections(pool: Pool, settings: Settings) -> Check:
    """Check that PostgreSQL allows enough connections for all server processes."""
    row: Any = await pool.fetchrow(
        "select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,"
        " (select count(*) from pg_stat_activity where backend_type = 'client backend' and application_name <> 'hark')"
    )
    allowed, others = row
    listening = settings.postgres.prepared  # One more connection hears of the messages of hark.send.
    wanted = settings.workers * (settings.postgres.pool_size + listening)
    detail = f"one hark serve uses up to {wanted}; {allowed} allowed, {others} used by other programs"
    advice = "raise max_connections, or lower postgres.pool_size or workers"
    return Check.warn_if(wanted + others > allowed, "connections", detail, advice)


async def _transactions(pool: Pool) -> Check:
    """Check for old transactions, which keep PostgreSQL from removing dead rows."""
    row: Any = await pool.fetchrow(
        "select coalesce(extract(epoch from max(now() - xact_start)), 0)::bigint,"
        " coalesce(max(age(backend_xmin)), 0)::bigint from pg_stat_activity where pid <> pg_backend_pid()"
    )
    seconds, behind = row
    detail = f"oldest transaction {seconds} s; oldest snapshot {behind} transactions behind"
    advice = (
        "end the old transaction, because the database grows until then; to find it: "
        "select * from pg_stat_activity order by xact_start"
    )
    return Check.warn_if(seconds >= OLD_TRANSACTION_SECONDS, "transactions", detail, advice)


async def _dead_rows(pool: Pool) -> Check:
    row: Any = await pool.fetchrow(
        "select coalesce(sum(n_dead_tup), 0)::bigint, coalesce(sum(n_live_tup), 0)::bigint"
        " from pg_stat_user_tables where schemaname = 'hark' and relname in ('partitions', 'positions')"
    )
    dead, live = row
    detail = f"{dead:,} dead and {live:,} live rows in the tables that Hark updates in place"
    advice = "end old transactions (see the check above), then check that autovacuum runs"
    return Check.warn_if(dead > MANY_DEAD and dead > DEAD_PER_LIVE * live, "dead rows", detail, advice)


async def _inbox(pool: Pool) -> Check:
    """Check that servers move the messages of `hark.send`, and that none was refused."""
    if await pool.fetchval("select to_regclass('hark.inbox') is null"):
        return Check("inbox", "ok", "not there yet; a server or hark migrate makes it")
    row: Any = await pool.fetchrow("select * from hark.inbox_numbers_v1()")
    waiting, seconds, refused = row
    if refused:
        error = await pool.fetchval("select error from hark.inbox where error is not null order by id limit 1")
        advice = "see hark.inbox where error is not null; delete these rows, or set error to null to retry"
        return Check(
            "inbox", "warn", f"messages of hark.send that cannot be stored: {refused:,}; the first: {error}", advice
        )
    detail = f"messages of hark.send that wait: {waiting:,}, the first for {seconds:.0f} s"
    advice = "check that a server runs, that pushes are not stopped for maintenance, and that the queue is not full"
    return Check.warn_if(seconds >= OLD_INBOX_SECONDS, "inbox", detail, advice)


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


async def bucket_checks(settings: Settings) -> list[Check]:
    """Check a bucket as a server or a worker would use it."""
    from hark.engine.s3.bucket import Address, BucketError
    from hark.engine.s3.bucket_client import S3Bucket

    try:
        bucket = S3Bucket(Address.parse(settings.engine), SystemClock(), settings.s3)
        await bucket.open()
    except (HarkError, BucketError) as error:
        return [_failed("bucket", error, _BUCKET)]
    try:
        return await examine(bucket, settings, secrets.token_hex(8))
    finally:
        await bucket.close()


async def examine(
    bucket: Bucket, settings: Settings, unique: str, pause: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> list[Check]:
    """Check an open bucket; `unique` is random, for keys that no other process uses."""
    from hark.engine.s3.bucket import BucketError
    from hark.engine.s3.bucket_client import probe

    try:
        await probe(bucket, unique, pause=pause)
    except HarkError as error:
        return [_failed("bucket", error, _BUCKET)]
    checks = [Check("bucket", "ok", f"{bucket.name} responds and supports conditional writes"), _clock(bucket)]
    try:
        checks += await _store(bucket, settings.s3)
    except (HarkError, BucketError) as error:
        checks.append(_failed("store", error, _BUCKET))
    return [*checks, _costs(bucket, settings)]


def _clock(bucket: Bucket) -> Check:
    """Compare the clocks, as far as whole seconds in responses allow."""
    if bucket.time.allowed() is None:
        detail = "the responses of the store have no valid Date header"
        return Check("store clock", "warn", detail, "compare the two clocks manually")
    advice = "run NTP on this machine: Hark corrects the difference only in part"
    return compare_clocks("store clock", "this machine's", "the store's", -bucket.time.offset() / SECOND, advice)


async def _store(bucket: Bucket, settings: S3) -> list[Check]:
    """Check the objects whose keys are known; this needs no LIST."""
    from hark.engine.s3 import objects
    from hark.engine.s3.objects import Pointer, read_or_create, read_pointer

    read = await read_pointer(bucket)
    pointer = Pointer("") if read is None else read[0]
    head = await find_head(bucket, pointer.seq)
    if await bucket.get(objects.META) is None:
        if head:
            advice = f"restore {objects.META} from a backup or an older version, or use another prefix"
            return [Check("store", "fail", f"the log exists, but {objects.META} is missing", advice)]
        return [Check("store", "ok", "does not exist yet", "the first server or worker creates it")]
    meta = await read_or_create(bucket, bucket.time.now())  # It exists, so this creates nothing.
    return [
        Check("store", "ok", f"format {meta.format}, {head:,} log records written in total"),
        _snapshot(pointer, head, settings),
        _removal(pointer, bucket.time.now(), meta.grace_seconds),
    ]


async def find_head(bucket: Bucket, known: int) -> int:
    """Find the newest record, from a known one (0: none), with about 2 x log2(distance) GETs."""
    from hark.engine.s3 import objects

    async def is_there(seq: int) -> bool:
        return await bucket.get_range(objects.record(seq), 0, 1) is not None

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
    due = f"a snapshot is due after {settings.snapshot_records:,} records"
    advice = f"check the log of a server or worker for the reason: {due}"
    return Check.warn_if(tail > LONG_TAIL * settings.snapshot_records, "snapshot", detail, advice)


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
    get, put = settings.s3.get_dollars / 1000, settings.s3.put_dollars / 1000
    price = Price(name="settings", get_per_thousand=get, put_per_thousand=put)
    idle = estimate(strategy_from(settings), price=price).dollars_per_month
    million = _BATCHES / 1000 * (_PUTS_PER_BATCH * put + _GETS_PER_BATCH * get)
    detail = (
        f"${idle:.2f} per month for an idle process; ${million:.2f} per million messages in batches of 100; "
        f"${bucket.requests.dollars():.6f} for these checks"
    )
    advice = "poll less often; hark polling shows the cost of the polling settings" if idle > MANY_DOLLARS else ""
    return Check("costs", "ok", detail, advice)
