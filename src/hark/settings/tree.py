"""The definition of every setting: its default, limits, meaning and aliases.

Settings are added here, or in `sections.py` (S3, polling, workers, authentication, TLS, cross-origin requests, audit).
The names in hark.toml and in the environment, the checks, the error texts, `--show-settings` and the table in
docs/settings.md are derived from these definitions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from hark.settings.sections import S3, Audit, Auth, Cors, Count, Milliseconds, Part, Tls, Worker, about

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "text", "json"]
DefaultSubscription = Literal["all", "new"]

Key = Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}\Z")]

S3_SCHEME = "s3://"
_POSTGRES_SCHEMES = ("postgresql://", "postgres://")
_IN_MEMORY = ("memory", "memory://", "sqlite://:memory:", "sqlite:///:memory:")


class Batching(Part, frozen=True):
    """How concurrent requests share one commit."""

    max_items: Annotated[
        Count,
        about(
            "Maximum number of items of one call; on PostgreSQL, a call is a transaction.", "SIDECAR_MAX_ITEMS_PER_TX"
        ),
    ] = 1000
    max_wait_ms: Annotated[
        float,
        Meta(ge=0, le=10_000),
        about(
            "Maximum wait for others to share a call, in milliseconds. Without a call in flight, there is no wait.",
            "SIDECAR_MICRO_BATCH_WAIT_MS",
        ),
    ] = 5.0


class Limits(Part, frozen=True):
    """Limits above which the server rejects requests."""

    max_batch: Annotated[Count, about("Maximum number of items in one push, pop or ack. More: 400.")] = 10_000
    max_pending: Annotated[
        Count, about("Maximum number of items of one operation that wait for a commit. More: 429.")
    ] = 20_000
    max_waiting: Annotated[Count, about("Maximum number of waiting pops. More: 429.")] = 20_000
    max_streams: Annotated[Count, about("Maximum number of streams; also of queue browsers. More: 429.")] = 10_000
    stalled_seconds: Annotated[
        float,
        Meta(ge=0.01, le=86_400),
        about("Seconds until the server disconnects a streaming client that reads nothing."),
    ] = 30.0
    max_connections: Annotated[Count, about("Maximum number of open connections per server process. More: 503.")] = (
        20_000
    )
    max_bytes_in_flight: Annotated[
        int,
        Meta(ge=1, le=2**50),
        about("Bytes of bodies and unread answers over 64 KiB in a server process. More: 503."),
    ] = 536_870_912
    max_bytes_in_flight_per_identity: Annotated[
        int, Meta(ge=1, le=2**50), about("The same for one token. More: 429.")
    ] = 268_435_456
    header_timeout_seconds: Annotated[
        float, Meta(ge=0.01, le=86_400), about("Time limit for request headers, in seconds. Later: 408.")
    ] = 10.0
    body_timeout_seconds: Annotated[
        float,
        Meta(ge=0.01, le=86_400),
        about("Time limit for a request body, in seconds; bodies that average 1 KiB/s get longer. Later: 408."),
    ] = 30.0
    min_free_bytes: Annotated[
        int,
        Meta(ge=-1, le=1_125_899_906_842_624),
        about("SQLite: free disk space below which pushes get 507. -1: 256 MiB, at most 2 % of the disk. 0: off."),
    ] = -1


class Pop(Part, frozen=True):
    """Defaults and limits of pops."""

    default_batch: Annotated[
        Count, about("Maximum number of messages of a pop without `batch`.", "DEFAULT_BATCH_SIZE")
    ] = 1
    default_timeout_ms: Annotated[
        Milliseconds, about("Wait of a waiting pop without `timeout`, in milliseconds.", "DEFAULT_TIMEOUT")
    ] = 30_000
    max_timeout_ms: Annotated[Milliseconds, about("Maximum `timeout` of a waiting pop, in milliseconds.")] = 600_000
    default_subscription: Annotated[
        DefaultSubscription,
        about(
            "Start of a new consumer group without a subscription option: `all` messages, or only `new` ones.",
            "DEFAULT_SUBSCRIPTION_MODE",
        ),
    ] = "all"


class Delivery(Part, frozen=True):
    """Deliveries to streams."""

    disconnect_grace_ms: Annotated[
        Milliseconds, about("Maximum lease of delivered messages after their stream was disconnected, in milliseconds.")
    ] = 30_000


class Queue(Part, frozen=True):
    """The queues of the key-value API."""

    lock_duration: Annotated[
        int,
        Meta(ge=1, le=315_360_000_000),
        about("Default lease in the key-value API, in milliseconds.", "queue.lockDuration"),
    ] = 30_000
    cleanup_interval: Annotated[
        Milliseconds,
        about(
            "Milliseconds between removals of expired locks and keys. 0: never; they still expire on time.",
            "queue.cleanupInterval",
        ),
    ] = 60_000
    prefetch: Annotated[
        int, Meta(ge=1, le=10_000), about("Default number of unsettled messages per key-value listener.")
    ] = 10
    ping_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000), about("Milliseconds between pings to an idle key-value listener.")
    ] = 15_000


class Retention(Part, frozen=True):
    """How long the server keeps completed messages."""

    completed_seconds: Annotated[
        int,
        Meta(ge=0, le=3_153_600_000),
        about("Default retention of messages that every group has settled, in seconds."),
    ] = 604_800
    idle_group_days: Annotated[
        int, Meta(ge=1, le=36_500), about("Days without a pop after which a group no longer delays retention.")
    ] = 30
    interval_ms: Annotated[
        int, Meta(ge=100, le=86_400_000), about("Time between retention runs, in milliseconds.", "RETENTION_INTERVAL")
    ] = 300_000


class Encryption(Part, frozen=True):
    """The keys for queues with `encryptionEnabled`."""

    key: Annotated[
        str,
        Meta(pattern=r"^([0-9a-fA-F]{64})?\Z"),
        about(
            "AES-256-GCM key for payloads, 64 hexadecimal digits. Empty: encrypted queues are rejected.",
            "QUEEN_ENCRYPTION_KEY",
            expected="64 hexadecimal digits (32 bytes; make one with: openssl rand -hex 32)",
            secret=True,
        ),
    ] = ""
    old_keys: Annotated[
        tuple[Key, ...],
        about(
            "Earlier keys, used only to decrypt.", expected="a list of keys, each 64 hexadecimal digits", secret=True
        ),
    ] = ()


class Postgres(Part, frozen=True):
    """Connections to PostgreSQL."""

    pool_size: Annotated[
        int,
        Meta(ge=1, le=1000),
        about(
            "Maximum number of PostgreSQL connections per server process, besides one that listens.",
            "SIDECAR_POOL_SIZE",
        ),
    ] = 8
    statement_timeout_ms: Annotated[
        int, Meta(ge=100, le=86_400_000), about("Time limit of one PostgreSQL call, in milliseconds.")
    ] = 30_000
    wait_ms: Annotated[Milliseconds, about("Wait for a free connection before a 503, in milliseconds.")] = 10_000
    prepared: Annotated[
        bool, about("Use prepared statements and session settings. `false` for pgbouncer in transaction mode.")
    ] = True


class Otel(Part, frozen=True):
    """OpenTelemetry traces."""

    enabled: Annotated[
        bool, about("Export OpenTelemetry traces by OTLP. Needs `hark-mq[otel]` and the `OTEL_*` variables.")
    ] = False


class Fallback(Part, frozen=True):
    """How often waiting pops poll the store, in case a notification was lost."""

    initial_ms: Annotated[
        int,
        Meta(ge=1, le=86_400_000),
        about(
            "Initial interval between fallback polls of a waiting pop, in milliseconds.",
            "SIDECAR_POP_WAIT_INITIAL_MS",
            "POLL_DB_INTERVAL",
        ),
    ] = 100
    threshold: Annotated[
        int,
        Meta(ge=0, le=1_000_000),
        about(
            "Empty fallback polls before the interval grows.",
            "SIDECAR_POP_WAIT_BACKOFF_THRESHOLD",
            "QUEUE_BACKOFF_THRESHOLD",
            "POLL_BACKOFF_THRESHOLD",
        ),
    ] = 3
    multiplier: Annotated[
        float,
        Meta(ge=1, le=1000),
        about("Growth factor of the interval.", "SIDECAR_POP_WAIT_BACKOFF_MULTIPLIER", "QUEUE_BACKOFF_MULTIPLIER"),
    ] = 3.0
    max_ms: Annotated[
        int,
        Meta(ge=1, le=86_400_000),
        about(
            "Maximum interval, in milliseconds.",
            "SIDECAR_POP_WAIT_MAX_MS",
            "QUEUE_MAX_POLL_INTERVAL",
            "POLL_MAX_INTERVAL",
        ),
    ] = 5000
    jitter: Annotated[float, Meta(ge=0, le=0.9), about("Random variation of the interval, as a fraction.")] = 0.1
    # Half of the initial interval: keys poll in at most 20 shared calls a second, and a message without a hint is
    # found 25 ms later on average.
    tick_ms: Annotated[
        int,
        Meta(ge=1, le=60_000),
        about(
            "Granularity of fallback polls, in milliseconds. Polls of one tick share engine calls.",
            "POLL_WORKER_INTERVAL",
        ),
    ] = 50
    concurrency: Annotated[
        Count, about("Maximum number of queue and group pairs polled concurrently.", "POLL_WORKER_COUNT")
    ] = 32
    cleanup_seconds: Annotated[
        int,
        Meta(ge=0, le=31_536_000),
        about("Seconds to remember the interval after the last waiting pop.", "QUEUE_BACKOFF_CLEANUP_THRESHOLD"),
    ] = 3600


class Peer(Part, frozen=True):
    """Notifications between servers on the same store."""

    port: Annotated[
        int,
        Meta(ge=0, le=65_535),
        about(
            "UDP port for notifications from peers; further server processes use the next ports. 0: 6633 "
            "with `peers`, otherwise none.",
            "QUEEN_UDP_NOTIFY_PORT",
        ),
    ] = 0
    host: Annotated[
        str, about("Address of that port. Empty: the value of `host`.", expected="a host name or an address")
    ] = ""
    secret: Annotated[
        str,
        Meta(pattern=r"^(.{16,})?\Z"),
        about(
            "Shared secret that signs datagrams. Empty: a secret from the store.",
            expected="at least 16 characters (make them with: openssl rand -hex 32)",
            secret=True,
        ),
    ] = ""
    linger_ms: Annotated[
        float, Meta(ge=0, le=10_000), about("Wait of a notification for a shared datagram, in milliseconds.")
    ] = 2.0


class Settings(Part, frozen=True):
    """All settings of a server or a worker."""

    host: Annotated[str, Meta(min_length=1), about("Address to listen on.", expected="a host name or an address")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Meta(ge=0, le=65_535), about("Port to listen on. 0 selects a free port.", "PORT")] = 6632
    insecure_bind: Annotated[bool, about("Allow a `host` that other machines can reach without authentication.")] = (
        False
    )
    engine: Annotated[
        str,
        about(
            "Store: `sqlite:///file.db`, `postgresql://user:password@host:port/database`, "
            "`s3://bucket/prefix` or `memory`. Empty: `hark.db` in `data`.",
            expected="the URL of an engine",
        ),
    ] = ""
    data: Annotated[
        str,
        Meta(min_length=1),
        about("Directory of the default SQLite file and token file.", expected="the path of a directory"),
    ] = "./hark-data"
    workers: Annotated[
        int, Meta(ge=1, le=1024), about("Number of server processes. SQLite allows only 1.", "NUM_WORKERS")
    ] = 1
    log_level: Annotated[LogLevel, about("Lowest level that is logged.")] = "info"
    log_format: Annotated[
        LogFormat, about("Log format: `text`, `json`, or `auto` (text on a terminal, otherwise JSON).")
    ] = "auto"
    access_log: Annotated[bool, about("Log every request at level `info`.")] = False
    max_body_bytes: Annotated[
        int, Meta(ge=1, le=2_147_483_647), about("Maximum size of a request body, in bytes. Larger: 413.")
    ] = 10_485_760
    stop_seconds: Annotated[
        float,
        Meta(ge=0.1, le=3600),
        about("Time limit of a graceful shutdown, in seconds. The store always gets at least 1."),
    ] = 10.0
    peers: Annotated[
        tuple[str, ...],
        about(
            "Peers to notify of new work by UDP: `host:port` or `host:first-last`.",
            "QUEEN_UDP_PEERS",
            expected="a list of host:port or host:first-last, with ports from 1 to 65535",
        ),
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        about(
            "Accepted `Host` names besides `localhost` and `host`, without authentication. See docs/security.md.",
            expected="a list of host names",
        ),
    ] = ()
    auth: Auth = Auth()
    tls: Tls = Tls()
    cors: Cors = Cors()
    audit: Audit = Audit()
    otel: Otel = Otel()
    batching: Batching = Batching()
    limits: Limits = Limits()
    pop: Pop = Pop()
    delivery: Delivery = Delivery()
    queue: Queue = Queue()
    retention: Retention = Retention()
    encryption: Encryption = Encryption()
    postgres: Postgres = Postgres()
    s3: S3 = S3()
    fallback: Fallback = Fallback()
    peer: Peer = Peer()
    worker: Worker = Worker()

    @property
    def on_postgres(self) -> bool:
        """Whether the store is a PostgreSQL database."""
        return self.engine.startswith(_POSTGRES_SCHEMES)

    @property
    def on_s3(self) -> bool:
        """Whether the store is a bucket."""
        return self.engine.startswith(S3_SCHEME)

    @property
    def sqlite_path(self) -> str | None:
        """The path of the SQLite file, `:memory:`, or None if the store is another one."""
        if not self.engine:
            return f"{Path(self.data) / 'hark.db'}"
        if self.engine in _IN_MEMORY:
            return ":memory:"
        return self.engine.removeprefix("sqlite:///") if self.engine.startswith("sqlite:///") else None
