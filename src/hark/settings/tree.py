"""What settings there are: each field with its default, its bounds, its meaning and its aliases.

This is the only place to add a setting, with s3.py for the S3 engine, security.py for who may use a server, and
worker.py for workers: the names in hark.toml and in the environment, the checks, the texts of errors,
`--show-settings` and the table in docs/settings.md follow from it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from hark.settings.describing import Count, Milliseconds, Part, about
from hark.settings.s3 import S3
from hark.settings.security import Audit, Auth, Cors, Tls
from hark.settings.worker import Worker

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "text", "json"]
DefaultSubscription = Literal["all", "new"]

Key = Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}\Z")]


class Batching(Part, frozen=True):
    """How requests that wait at the same moment share one commit."""

    max_items: Annotated[
        Count, about("Items of one verb that share one commit at most.", "SIDECAR_MAX_ITEMS_PER_TX")
    ] = 1000
    max_wait_ms: Annotated[
        float,
        Meta(ge=0, le=10_000),
        about(
            "Milliseconds that an item waits at most for others to share its commit.",
            "SIDECAR_MICRO_BATCH_WAIT_MS",
        ),
    ] = 5.0


class Limits(Part, frozen=True):
    """What the server takes on before it refuses."""

    max_batch: Annotated[Count, about("Items in one push, pop or ack at most; more is a 400.")] = 10_000
    max_pending: Annotated[Count, about("Items of one verb that wait for a commit at most; more is a 429.")] = 20_000
    max_waiting: Annotated[Count, about("Pops that wait for messages at most; more is a 429.")] = 20_000
    max_streams: Annotated[
        Count, about("SSE and WebSocket connections that take messages at most, and as many browsers; more is a 429.")
    ] = 10_000
    stalled_seconds: Annotated[
        float,
        Meta(ge=0.01, le=86_400),
        about("Seconds that a streaming client may read nothing of what is written to it; then it is cut off."),
    ] = 30.0
    max_connections: Annotated[
        Count, about("Connections that a server process has open at most, waiting ones too; more is a 503.")
    ] = 20_000
    header_timeout_seconds: Annotated[
        float,
        Meta(ge=0.01, le=86_400),
        about("Seconds that the head of a request may take to arrive; then it is a 408."),
    ] = 10.0
    body_timeout_seconds: Annotated[
        float,
        Meta(ge=0.01, le=86_400),
        about(
            "Seconds within which a body has to be complete, or else has to bring 1 KiB for each of them; then it is "
            "a 408."
        ),
    ] = 30.0


class Pop(Part, frozen=True):
    """What a pop means that does not say."""

    default_batch: Annotated[
        Count, about("Messages that a pop gets at most, if it does not say.", "DEFAULT_BATCH_SIZE")
    ] = 1
    default_timeout_ms: Annotated[
        Milliseconds,
        about("Milliseconds that a waiting pop waits, if it does not say.", "DEFAULT_TIMEOUT"),
    ] = 30_000
    max_timeout_ms: Annotated[Milliseconds, about("Milliseconds that a waiting pop may ask for at most.")] = 600_000
    default_subscription: Annotated[
        DefaultSubscription,
        about(
            "Where a new group starts, if its pop does not say: `all` messages, or only `new` ones.",
            "DEFAULT_SUBSCRIPTION_MODE",
        ),
    ] = "all"


class Queue(Part, frozen=True):
    """The queues of the key-value API."""

    lock_duration: Annotated[
        int,
        Meta(ge=1, le=315_360_000_000),
        about(
            "Milliseconds that a consumer of the key-value API holds a message, if its queue does not say.",
            "queue.lockDuration",
        ),
    ] = 30_000
    cleanup_interval: Annotated[
        Milliseconds,
        about(
            "Milliseconds between two sweeps for locks and keys whose time is over; 0: none. They end in time anyway.",
            "queue.cleanupInterval",
        ),
    ] = 60_000
    prefetch: Annotated[
        int,
        Meta(ge=1, le=10_000),
        about("Messages that a listener of the key-value API holds unsettled at most, if it does not say."),
    ] = 10
    ping_interval_ms: Annotated[
        int,
        Meta(ge=10, le=86_400_000),
        about("Milliseconds without an event after which a listener of the key-value API gets a ping."),
    ] = 15_000


class Retention(Part, frozen=True):
    """How long the server keeps what nobody needs any more."""

    completed_seconds: Annotated[
        int,
        Meta(ge=0, le=3_153_600_000),
        about("Seconds that messages settled by every group are kept, if their queue does not say."),
    ] = 604_800
    idle_group_days: Annotated[
        int,
        Meta(ge=1, le=36_500),
        about("Days without a pop after which a group no longer holds messages back."),
    ] = 30
    interval_ms: Annotated[
        int,
        Meta(ge=100, le=86_400_000),
        about("Milliseconds between two rounds of retention.", "RETENTION_INTERVAL"),
    ] = 300_000


class Encryption(Part, frozen=True):
    """The keys for queues with `encryptionEnabled`."""

    key: Annotated[
        str,
        Meta(pattern=r"^([0-9a-fA-F]{64})?\Z"),
        about(
            "The key that payloads are encrypted with (AES-256-GCM); empty: encrypted queues are refused.",
            "QUEEN_ENCRYPTION_KEY",
            expected="64 hexadecimal digits (32 bytes; make one with: openssl rand -hex 32)",
            secret=True,
        ),
    ] = ""
    old_keys: Annotated[
        tuple[Key, ...],
        about(
            "Earlier keys, still used to read; in the environment separated by commas.",
            expected="a list of keys, each 64 hexadecimal digits",
            secret=True,
        ),
    ] = ()

    def __repr__(self) -> str:
        """Hide the keys: settings end up in logs and tracebacks."""
        return "Encryption(******)"


class Postgres(Part, frozen=True):
    """How a server talks to PostgreSQL."""

    pool_size: Annotated[
        int,
        Meta(ge=1, le=1000),
        about("Connections to PostgreSQL that each server process opens at most.", "SIDECAR_POOL_SIZE"),
    ] = 8
    statement_timeout_ms: Annotated[
        int,
        Meta(ge=100, le=86_400_000),
        about("Milliseconds after which PostgreSQL ends a call that takes too long."),
    ] = 30_000
    wait_ms: Annotated[
        Milliseconds,
        about("Milliseconds that a call waits while all connections are busy or the database is away, before a 503."),
    ] = 10_000
    prepared: Annotated[
        bool,
        about(
            "Use prepared statements and settings of the session; `false` behind a pooler that can't pass them on, "
            "such as pgbouncer in transaction mode."
        ),
    ] = True


class Otel(Part, frozen=True):
    """Traces by OpenTelemetry."""

    enabled: Annotated[
        bool,
        about(
            "Send spans of requests and of calls of the store by OTLP; where to is said by the standard `OTEL_*` "
            "variables. Needs `hark[otel]`."
        ),
    ] = False


class Fallback(Part, frozen=True):
    """How often waiting pops look for themselves, in case the hint that there is work was lost."""

    initial_ms: Annotated[
        int,
        Meta(ge=1, le=86_400_000),
        about(
            "Milliseconds between the first looks of a waiting pop.", "SIDECAR_POP_WAIT_INITIAL_MS", "POLL_DB_INTERVAL"
        ),
    ] = 100
    threshold: Annotated[
        int,
        Meta(ge=0, le=1_000_000),
        about(
            "Looks that found nothing before the time between them grows.",
            "SIDECAR_POP_WAIT_BACKOFF_THRESHOLD",
            "QUEUE_BACKOFF_THRESHOLD",
            "POLL_BACKOFF_THRESHOLD",
        ),
    ] = 3
    multiplier: Annotated[
        float,
        Meta(ge=1, le=1000),
        about(
            "What the time between two looks is multiplied by when it grows.",
            "SIDECAR_POP_WAIT_BACKOFF_MULTIPLIER",
            "QUEUE_BACKOFF_MULTIPLIER",
        ),
    ] = 3.0
    max_ms: Annotated[
        int,
        Meta(ge=1, le=86_400_000),
        about(
            "Milliseconds between two looks at most.",
            "SIDECAR_POP_WAIT_MAX_MS",
            "QUEUE_MAX_POLL_INTERVAL",
            "POLL_MAX_INTERVAL",
        ),
    ] = 5000
    jitter: Annotated[
        float,
        Meta(ge=0, le=0.9),
        about("The share by which the time between two looks is more or less at random."),
    ] = 0.1
    # Half of the first interval: keys that began at any moment look in at most 20 shared calls a second, and what is
    # found without a hint is found 25 ms later on average.
    tick_ms: Annotated[
        int,
        Meta(ge=1, le=60_000),
        about("Looks come at multiples of so many milliseconds, to share calls of the engine.", "POLL_WORKER_INTERVAL"),
    ] = 50
    concurrency: Annotated[
        Count,
        about("Pairs of a queue and a group that are looked at in the same moment at most.", "POLL_WORKER_COUNT"),
    ] = 32
    cleanup_seconds: Annotated[
        int,
        Meta(ge=0, le=31_536_000),
        about(
            "Seconds that the time between two looks is remembered when nobody waits any more.",
            "QUEUE_BACKOFF_CLEANUP_THRESHOLD",
        ),
    ] = 3600


class Peer(Part, frozen=True):
    """How servers on one store tell each other that there may be work."""

    port: Annotated[
        int,
        Meta(ge=0, le=65_535),
        about(
            "The UDP port at which this server hears its peers; worker processes take this one and those after it. "
            "0: 6633 if there are `peers`, else none.",
            "QUEEN_UDP_NOTIFY_PORT",
        ),
    ] = 0
    host: Annotated[
        str,
        about("The address of that port; empty: that of `host`.", expected="a host name or an address"),
    ] = ""
    secret: Annotated[
        str,
        Meta(pattern=r"^(.{16,})?\Z"),
        about(
            "What peers sign their datagrams with, the same for all; empty: one that the store keeps for them.",
            expected="at least 16 characters (make them with: openssl rand -hex 32)",
            secret=True,
        ),
    ] = ""
    linger_ms: Annotated[
        float,
        Meta(ge=0, le=10_000),
        about("Milliseconds that a hint to the peers waits for others to share its datagram."),
    ] = 2.0

    def __repr__(self) -> str:
        """Hide the secret: settings end up in logs and tracebacks."""
        return f"Peer(port={self.port}, host={self.host!r}, linger_ms={self.linger_ms}, secret=******)"


class Settings(Part, frozen=True):
    """Everything that a server or a worker can be told."""

    host: Annotated[
        str,
        Meta(min_length=1),
        about("The address to listen on.", expected="a host name or an address"),
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535), about("The port to listen on; 0 takes a free one.", "PORT")] = 6632
    insecure_bind: Annotated[
        bool,
        about("Listen where others can connect (`host`) even without authentication; else that is refused."),
    ] = False
    engine: Annotated[
        str,
        about(
            "Where messages are kept: `sqlite:///file.db`, `postgresql://user:password@host:port/database`, "
            "`s3://bucket/prefix` or `memory`; empty: `hark.db` under `data`.",
            expected="the URL of an engine",
        ),
    ] = ""
    data: Annotated[
        str,
        Meta(min_length=1),
        about("The directory for what is kept.", expected="the path of a directory"),
    ] = "./hark-data"
    workers: Annotated[int, Meta(ge=1, le=1024), about("Server processes.", "NUM_WORKERS")] = 1
    log_level: Annotated[LogLevel, about("The least important that is logged.")] = "info"
    log_format: Annotated[
        LogFormat,
        about("How lines of the log look: `text` for people, `json`, or `auto`: text on a terminal, else JSON."),
    ] = "auto"
    access_log: Annotated[bool, about("Log a line for every request, at level `info`.")] = False
    max_body_bytes: Annotated[
        int, Meta(ge=1, le=2_147_483_647), about("Bytes in one request body at most; more is a 413.")
    ] = 10_485_760
    stop_seconds: Annotated[
        float,
        Meta(ge=0.1, le=3600),
        about(
            "Seconds from being told to stop until the process ends: requests that run and the store finish in them, "
            "the store in at least one."
        ),
    ] = 10.0
    peers: Annotated[
        tuple[str, ...],
        about(
            "Other servers on the same store, to be told by UDP where there is work: `host:port`, or `host:first-last` "
            "for all processes of one; in the environment separated by commas.",
            "QUEEN_UDP_PEERS",
            expected="a list of host:port or host:first-last, with ports from 1 to 65535",
        ),
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        about(
            "Names that the server may be reached by without authentication, beside `localhost` and its addresses; in "
            "the environment separated by commas.",
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
    queue: Queue = Queue()
    retention: Retention = Retention()
    encryption: Encryption = Encryption()
    postgres: Postgres = Postgres()
    s3: S3 = S3()
    fallback: Fallback = Fallback()
    peer: Peer = Peer()
    worker: Worker = Worker()
