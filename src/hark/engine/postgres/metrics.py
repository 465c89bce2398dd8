"""Numbers about the store: what the database keeps for nothing, what makes it do so, and the connections to it."""

from __future__ import annotations

from hark.engine.postgres.pool import Pool

# What holds the oldest snapshot may be a session, a replica that is behind, or a prepared transaction. Of sessions of
# other roles PostgreSQL tells nothing to those who are not in pg_monitor. A snapshot of this call is always new.
_METRICS = """
with tables as (
    select coalesce(sum(n_dead_tup), 0) as dead, coalesce(sum(n_live_tup), 0) as live,
        coalesce(sum(n_dead_tup) filter (where relname = 'partitions'), 0) as dead_partitions,
        coalesce(sum(n_dead_tup) filter (where relname = 'tracks'), 0) as dead_tracks,
        coalesce(sum(pg_total_relation_size(relid)), 0) as bytes
    from pg_stat_user_tables where schemaname = 'hark'
), sessions as (
    select max(age(backend_xmin)) as transactions,
        max(clock_timestamp() - xact_start) filter (where backend_xmin is not null or backend_xid is not null) as time
    from pg_stat_activity
    where pid <> pg_backend_pid() and (datname is null or datname = current_database())
), prepared as (
    select max(age(transaction)) as transactions, max(clock_timestamp() - prepared) as time
    from pg_prepared_xacts where database = current_database()
), replicas as (
    select max(age(xmin)) as transactions from pg_replication_slots
)
select t.dead::float8 as dead_tuples, t.live::float8 as live_tuples,
    t.dead_partitions::float8 as partitions_dead_tuples, t.dead_tracks::float8 as tracks_dead_tuples,
    t.bytes::float8 as table_bytes,
    greatest(s.transactions, p.transactions, r.transactions, 0)::float8 as oldest_xmin_transactions,
    greatest(extract(epoch from greatest(s.time, p.time)), 0)::float8 as oldest_xmin_seconds,
    (select count(*) from hark.slots_v1('messages') where bytes > 0)::float8 as message_slots,
    (select count(*) from hark.slots_v1('leases') where bytes > 0)::float8 as lease_slots
from tables t, sessions s, prepared p, replicas r
"""


async def store_metrics(pool: Pool) -> dict[str, float]:
    """Numbers by name; counts of rows are PostgreSQL's estimates, and some seconds old."""
    row = await pool.fetchrow(_METRICS)
    assert row is not None
    return {
        **row,
        "pool_connections": pool.size,
        "pool_idle": pool.idle,
        "pool_waiting": pool.waiting,
        "pool_connects": pool.connects,
        "pool_failures": pool.failures,
    }
