"""Every operation of the HTTP API: method, path, role, the queues that it concerns, and its answer.

The server binds its endpoints to them, with parameters, body and errors; the client and the commands call them. Paths,
roles and types are said here only. A type is loaded when it is used, so that a command loads only what it shows.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from hark.api import types

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

WEBSOCKET = "WEBSOCKET"
"""The method of requests that open a WebSocket."""
_NAME = re.compile(r"\{\w+(:path)?\}")


class Role(enum.IntEnum):
    """Roles. Each role includes the permissions of the roles before it."""

    READ_ONLY = 1
    """It changes nothing."""
    READ_WRITE = 2
    """For producers and consumers."""
    ADMIN = 3
    """For what cannot be undone, or concerns the whole server."""

    @property
    def text(self) -> str:
        """The name of the role, such as `read-write`."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def of(cls, text: str) -> Role | None:
        """Return the role with this name, or None."""
        return _BY_TEXT.get(text)


_BY_TEXT = {role.text: role for role in Role}


class Reach(enum.Enum):
    """The queues of an operation, and how they are checked against the queues of a restricted token."""

    NOTHING = enum.auto()
    """The operation concerns no queue."""
    PATH = enum.auto()
    """The queue `{queue}` in the path, checked before the endpoint is called."""
    QUERY = enum.auto()
    """The queue in the parameter `queue`, checked before the endpoint is called. Restricted tokens must name it."""
    ITEMS = enum.auto()
    """The queues that the body or an id names; the endpoint checks each of them."""
    LISTED = enum.auto()
    """All queues that the caller may use; the endpoint leaves out the others."""
    SERVER = enum.auto()
    """All queues; restricted tokens are rejected."""


class Operation(msgspec.Struct, Generic[T_co], frozen=True):
    """One method of one path."""

    method: str
    path: str
    """`{name}` is one segment; `{name:path}` at the end is one or more."""
    role: Role | None
    """The lowest role that may call the operation; None: public, no token required."""
    reach: Reach
    answer: Callable[[], type[T_co]]
    """The type of a successful answer; `str`: text or a stream."""

    def at(self, *names: str) -> str:
        """Return the path with these names in it, percent-encoded. `{name:path}` takes all that are left."""
        rest = [quote(name, safe="") for name in names]
        return _NAME.sub(lambda found: "/".join(rest) if found[1] else rest.pop(0), self.path)


def _public(method: str, path: str, answer: Callable[[], type[T]]) -> Operation[T]:
    return Operation(method, path, None, Reach.NOTHING, answer)


def _read(method: str, path: str, reach: Reach, answer: Callable[[], type[T]]) -> Operation[T]:
    return Operation(method, path, Role.READ_ONLY, reach, answer)


def _write(method: str, path: str, reach: Reach, answer: Callable[[], type[T]]) -> Operation[T]:
    return Operation(method, path, Role.READ_WRITE, reach, answer)


def _admin(method: str, path: str, reach: Reach, answer: Callable[[], type[T]]) -> Operation[T]:
    return Operation(method, path, Role.ADMIN, reach, answer)


_MESSAGE = "/api/v1/messages/{partition_id}/{transaction_id}"
_QUEUE = "/api/v1/resources/queues/{queue}"
_FLOW = "/api/v1/flows/{queue}/{flow_id}"
_GROUP = "/api/v1/consumer-groups/{group}"
_GROUP_OF_QUEUE = _GROUP + "/queues/{queue}"
_SCHEDULE = "/api/v1/schedules/{schedule}"

# Pages -------------------------------------------------------------------------------------------------------

SHOW_DASHBOARD = _public("GET", "/", lambda: str)
SHOW_ASSET = _public("GET", "/assets/{path:path}", lambda: str)

# Server ------------------------------------------------------------------------------------------------------

NEXT = _write("POST", "/api/v1/next", Reach.QUERY, lambda: str)
WATCH = _read("GET", "/api/v1/events", Reach.LISTED, lambda: str)
HEALTH = _public("GET", "/health", lambda: types.server.Health)
LIVE = _public("GET", "/health/live", lambda: types.server.Ready)
READY = _public("GET", "/health/ready", lambda: types.server.Ready)
METRICS = _read("GET", "/api/v1/system/metrics", Reach.SERVER, lambda: types.server.SystemMetrics)
SHOW_MAINTENANCE = _admin("GET", "/api/v1/system/maintenance", Reach.SERVER, lambda: types.server.Maintenance)
SET_MAINTENANCE = _admin("POST", "/api/v1/system/maintenance", Reach.SERVER, lambda: types.server.PushMaintenance)
SHOW_POP_MAINTENANCE = _admin(
    "GET", "/api/v1/system/maintenance/pop", Reach.SERVER, lambda: types.server.PopMaintenance
)
SET_POP_MAINTENANCE = _admin(
    "POST", "/api/v1/system/maintenance/pop", Reach.SERVER, lambda: types.server.PopMaintenance
)
SHOW_OPENAPI = _public("GET", "/openapi.json", lambda: dict[str, Any])
SHOW_SESSION = _public("GET", "/api/v1/session", lambda: types.server.Session)
LOG_IN = _public("POST", "/api/v1/session", lambda: types.server.Session)
LOG_OUT = _public("DELETE", "/api/v1/session", lambda: types.server.Session)
LIST_AUDIT = _admin("GET", "/api/v1/system/audit", Reach.SERVER, lambda: types.server.AuditRecords)
SCRAPE_METRICS = _read("GET", "/metrics", Reach.SERVER, lambda: str)
SCRAPE_PROMETHEUS = _read("GET", "/metrics/prometheus", Reach.SERVER, lambda: str)
REFRESH_STATS = _admin("POST", "/api/v1/stats/refresh", Reach.SERVER, lambda: types.queues.Refreshed)
SHOW_STATUS = _read("GET", "/api/v1/status", Reach.SERVER, lambda: types.server.Status)
LIST_STATUS_QUEUES = _read("GET", "/api/v1/status/queues", Reach.LISTED, lambda: types.queues.QueuePage)
SHOW_STATUS_QUEUE = _read("GET", "/api/v1/status/queues/{queue}", Reach.PATH, lambda: types.server.StatusOfQueue)
LIST_STATUS_MESSAGES = _read(
    "GET", "/api/v1/status/queues/{queue}/messages", Reach.PATH, lambda: list[types.server.StatusMessage]
)
SHOW_ANALYTICS = _read("GET", "/api/v1/status/analytics", Reach.SERVER, lambda: types.server.Analytics)
SHOW_BUFFERS = _read("GET", "/api/v1/status/buffers", Reach.NOTHING, lambda: types.server.Buffers)
SHOW_HISTORY = _read("GET", "/api/v1/status/history", Reach.SERVER, lambda: types.server.History)
SHOW_SETTINGS = _admin("GET", "/api/v1/system/settings", Reach.SERVER, lambda: types.server.ShownSettings)

# Messages ----------------------------------------------------------------------------------------------------

PUSH = _write("POST", "/api/v1/push", Reach.ITEMS, lambda: list[types.delivery.PushAnswer])
ACK = _write("POST", "/api/v1/ack", Reach.ITEMS, lambda: list[types.delivery.AckAnswer])
ACK_BATCH = _write("POST", "/api/v1/ack/batch", Reach.ITEMS, lambda: list[types.delivery.AckAnswer])
EXTEND = _write("POST", "/api/v1/lease/{lease_id}/extend", Reach.ITEMS, lambda: types.messages.ExtendedLease)
POP = _write("GET", "/api/v1/pop", Reach.QUERY, lambda: types.delivery.PopReply)
POP_OF_QUEUE = _write("GET", "/api/v1/pop/queue/{queue}", Reach.PATH, lambda: types.delivery.PopReply)
POP_OF_QUEUE_PARTITION = _write(
    "GET", "/api/v1/pop/queue/{queue}/partition/{partition}", Reach.PATH, lambda: types.delivery.PopReply
)
LISTEN = _read("GET", "/api/v1/listen", Reach.QUERY, lambda: str)
LISTEN_OF_QUEUE = _read("GET", "/api/v1/listen/queue/{queue}", Reach.PATH, lambda: str)
LISTEN_OF_QUEUE_PARTITION = _read("GET", "/api/v1/listen/queue/{queue}/partition/{partition}", Reach.PATH, lambda: str)
CONSUME = _read("WEBSOCKET", "/api/v1/consume", Reach.ITEMS, lambda: str)
LIST_MESSAGES = _read("GET", "/api/v1/messages", Reach.QUERY, lambda: types.messages.MessagePage)
DELETE_MESSAGE_BY_ID = _write("DELETE", "/api/v1/messages/{id}", Reach.ITEMS, lambda: types.messages.RemovedMessage)
CANCEL_MESSAGE = _write("POST", "/api/v1/messages/{id}/cancel", Reach.ITEMS, lambda: types.messages.RemovedMessage)
SHOW_MESSAGE = _read("GET", _MESSAGE, Reach.ITEMS, lambda: types.messages.ShownMessage)
DELETE_MESSAGE = _write("DELETE", _MESSAGE, Reach.ITEMS, lambda: types.messages.DeletedMessage)
SHOW_TASK = _read("GET", _MESSAGE + "/task", Reach.ITEMS, lambda: types.tasks.TaskStatus)
REPORT_PROGRESS = _write("POST", _MESSAGE + "/progress", Reach.ITEMS, lambda: types.Success)
PUSH_FLOW = _write("POST", "/api/v1/flows", Reach.ITEMS, lambda: types.tasks.PushedFlow)
SHOW_FLOW = _read("GET", _FLOW, Reach.PATH, lambda: types.tasks.FlowStatus)
CANCEL_FLOW = _write("POST", _FLOW + "/cancel", Reach.PATH, lambda: types.Success)
EXPLAIN_MESSAGE = _read("GET", "/api/v1/explain/{id}", Reach.ITEMS, lambda: types.messages.ExplainedMessage)
LIST_LEASES = _read("GET", "/api/v1/leases", Reach.QUERY, lambda: types.messages.LeasePage)
TRANSACT = _write("POST", "/api/v1/transaction", Reach.ITEMS, lambda: types.messages.TransactionAnswer)
EXTEND_MANY = _write("POST", "/api/v1/lease/extend", Reach.ITEMS, lambda: types.messages.ExtendedLeases)

# Queues ------------------------------------------------------------------------------------------------------

CONFIGURE = _write("POST", "/api/v1/configure", Reach.ITEMS, lambda: types.queues.ConfiguredQueue)
LIST_QUEUES = _read("GET", "/api/v1/resources/queues", Reach.LISTED, lambda: types.queues.QueuePage)
SHOW_QUEUE = _read("GET", _QUEUE, Reach.PATH, lambda: types.queues.ShownQueue)
DELETE_QUEUE = _admin("DELETE", _QUEUE, Reach.PATH, lambda: types.queues.DeletedQueue)
SHOW_DEPTH = _read("GET", _QUEUE + "/depth", Reach.PATH, lambda: types.queues.Depth)
PAUSE_QUEUE = _write("POST", _QUEUE + "/pause", Reach.PATH, lambda: types.queues.Paused)
RESUME_QUEUE = _write("POST", _QUEUE + "/resume", Reach.PATH, lambda: types.queues.Paused)
PURGE_QUEUE = _admin("POST", _QUEUE + "/purge", Reach.PATH, lambda: types.queues.Purged)
EXPORT_QUEUE = _read("GET", _QUEUE + "/export", Reach.PATH, lambda: str)
LIST_NAMESPACES = _read("GET", "/api/v1/resources/namespaces", Reach.LISTED, lambda: types.queues.Namespaces)
LIST_TASKS = _read("GET", "/api/v1/resources/tasks", Reach.LISTED, lambda: types.queues.Tasks)
SHOW_OVERVIEW = _read("GET", "/api/v1/resources/overview", Reach.LISTED, lambda: types.queues.Overview)
PAUSE_GROUP = _write("POST", _QUEUE + "/groups/{group}/pause", Reach.PATH, lambda: types.queues.Paused)
RESUME_GROUP = _write("POST", _QUEUE + "/groups/{group}/resume", Reach.PATH, lambda: types.queues.Paused)
PURGE_GROUP = _write("POST", _QUEUE + "/groups/{group}/purge", Reach.PATH, lambda: types.queues.Purged)

# Groups ------------------------------------------------------------------------------------------------------

LIST_GROUPS = _read("GET", "/api/v1/consumer-groups", Reach.LISTED, lambda: list[types.groups.ListedGroup])
LIST_LAGGING = _read("GET", "/api/v1/consumer-groups/lagging", Reach.LISTED, lambda: list[types.groups.LaggingPosition])
SHOW_GROUP = _read("GET", _GROUP, Reach.LISTED, lambda: dict[str, types.groups.ShownPositions])
DELETE_GROUP = _admin("DELETE", _GROUP, Reach.SERVER, lambda: types.groups.DeletedGroup)
RESUBSCRIBE = _write("POST", _GROUP + "/subscription", Reach.SERVER, lambda: types.groups.Resubscribed)
DELETE_GROUP_OF_QUEUE = _admin("DELETE", _GROUP_OF_QUEUE, Reach.PATH, lambda: types.groups.DeletedGroup)
SHOW_LIMITS = _read("GET", _GROUP_OF_QUEUE + "/limits", Reach.PATH, lambda: types.groups.ShownLimits)
LIMIT_GROUP = _write("PUT", _GROUP_OF_QUEUE + "/limits", Reach.PATH, lambda: types.groups.ShownLimits)
LIST_CONSUMERS = _read("GET", "/api/v1/consumers", Reach.LISTED, lambda: types.groups.Consumers)
SEEK_QUEUE = _write("POST", _GROUP_OF_QUEUE + "/seek", Reach.PATH, lambda: types.groups.SoughtQueue)
SEEK_PARTITION = _write(
    "POST", _GROUP_OF_QUEUE + "/partitions/{partition}/seek", Reach.PATH, lambda: types.groups.SoughtPartition
)

# Schedules ---------------------------------------------------------------------------------------------------

LIST_SCHEDULES = _read("GET", "/api/v1/schedules", Reach.LISTED, lambda: types.tasks.SchedulePage)
PUT_SCHEDULE = _write("PUT", _SCHEDULE, Reach.ITEMS, lambda: types.tasks.ShownSchedule)
SHOW_SCHEDULE = _read("GET", _SCHEDULE, Reach.ITEMS, lambda: types.tasks.ShownSchedule)
PAUSE_SCHEDULE = _write("POST", _SCHEDULE + "/pause", Reach.ITEMS, lambda: types.tasks.ShownSchedule)
RESUME_SCHEDULE = _write("POST", _SCHEDULE + "/resume", Reach.ITEMS, lambda: types.tasks.ShownSchedule)
RUN_SCHEDULE = _write("POST", _SCHEDULE + "/run", Reach.ITEMS, lambda: types.tasks.ScheduleRun)
DELETE_SCHEDULE = _write("DELETE", _SCHEDULE, Reach.ITEMS, lambda: types.tasks.DeletedSchedule)

# Dead letters ------------------------------------------------------------------------------------------------

LIST_DEAD_LETTERS = _read("GET", "/api/v1/dlq", Reach.QUERY, lambda: types.dead_letters.DeadLetterPage)
PURGE_DEAD_LETTERS = _admin("DELETE", "/api/v1/dlq", Reach.QUERY, lambda: types.dead_letters.PurgedDeadLetters)
REQUEUE_MANY = _write("POST", "/api/v1/dlq/requeue", Reach.ITEMS, lambda: types.dead_letters.RequeuedDeadLetters)
IMPORT_DEAD_LETTERS = _write("POST", "/api/v1/dlq/import", Reach.QUERY, lambda: types.dead_letters.ImportedDeadLetters)
DELETE_MANY = _write("POST", "/api/v1/dlq/delete", Reach.ITEMS, lambda: types.dead_letters.DeletedDeadLetters)
DELETE_DEAD_LETTER = _write("DELETE", "/api/v1/dlq/{id}", Reach.ITEMS, lambda: types.dead_letters.DeletedDeadLetter)
REQUEUE = _write("POST", "/api/v1/dlq/{id}/requeue", Reach.ITEMS, lambda: types.dead_letters.RequeuedDeadLetter)

# Traces ------------------------------------------------------------------------------------------------------

RECORD = _write("POST", "/api/v1/traces", Reach.ITEMS, lambda: types.messages.RecordedTrace)
LIST_NAMES = _read("GET", "/api/v1/traces/names", Reach.SERVER, lambda: types.messages.TraceNames)
LIST_BY_NAME = _read("GET", "/api/v1/traces/by-name/{name}", Reach.SERVER, lambda: types.messages.NamedTraces)
LIST_OF_MESSAGE = _read(
    "GET", "/api/v1/traces/{partition_id}/{transaction_id}", Reach.ITEMS, lambda: types.messages.TracesOfMessage
)

# Work queues -------------------------------------------------------------------------------------------------

KEYVAL_ENQUEUE = _write("POST", "/keyval/api/queue/enqueue", Reach.QUERY, lambda: types.keys.Enqueued)
KEYVAL_POLL = _write("GET", "/keyval/api/queue/poll", Reach.QUERY, lambda: types.keys.Polled)
KEYVAL_ACK = _write("POST", "/keyval/api/queue/ack", Reach.ITEMS, lambda: types.keys.Settled)
KEYVAL_NACK = _write("POST", "/keyval/api/queue/nack", Reach.ITEMS, lambda: types.keys.Settled)
KEYVAL_CANCEL = _write("POST", "/keyval/api/queue/cancel", Reach.ITEMS, lambda: types.keys.Cancelled)
KEYVAL_LISTEN = _write("GET", "/keyval/api/queue/listen", Reach.QUERY, lambda: str)
KEYVAL_SHOW_STATS = _read("GET", "/keyval/api/queue/stats", Reach.QUERY, lambda: types.keys.WorkStats)
KEYVAL_SHOW_SETTINGS = _read("GET", "/keyval/api/queue/settings", Reach.QUERY, lambda: types.keys.WorkSettings)
KEYVAL_CHANGE_SETTINGS = _write("PUT", "/keyval/api/queue/settings", Reach.QUERY, lambda: types.keys.WorkSettings)
KEYVAL_LIST_DEAD_LETTERS = _read("GET", "/keyval/api/queue/dlq", Reach.QUERY, lambda: list[types.keys.WorkDeadLetter])
KEYVAL_PURGE_DEAD_LETTERS = _admin("DELETE", "/keyval/api/queue/dlq", Reach.QUERY, lambda: types.keys.Deleted)
KEYVAL_GET_DEAD_LETTER = _read("GET", "/keyval/api/queue/dlq/{id}", Reach.ITEMS, lambda: types.keys.WorkDeadLetter)
KEYVAL_DELETE_DEAD_LETTER = _write("DELETE", "/keyval/api/queue/dlq/{id}", Reach.ITEMS, lambda: types.keys.Ok)
KEYVAL_REQUEUE = _write("POST", "/keyval/api/queue/dlq/{id}/requeue", Reach.ITEMS, lambda: types.keys.Requeued)

# Keys --------------------------------------------------------------------------------------------------------

KEYVAL_WATCH_KEYS = _read("GET", "/keyval/api/watch", Reach.SERVER, lambda: str)
KEYVAL_POLL_KEYS = _read("GET", "/keyval/api/watch/poll", Reach.SERVER, lambda: types.keys.PolledKeys)
KEYVAL_WATCH_PREFIX = _read("GET", "/keyval/api/watch/prefix", Reach.SERVER, lambda: str)
KEYVAL_POLL_PREFIX = _read("GET", "/keyval/api/watch/prefix/poll", Reach.SERVER, lambda: types.keys.PolledPrefix)
KEYVAL_LIST_KEYS = _read("GET", "/keyval/api/keys", Reach.SERVER, lambda: list[types.keys.WireEntry])
KEYVAL_COUNT_KEYS = _read("GET", "/keyval/api/keys/count", Reach.SERVER, lambda: types.keys.KeyCount)
KEYVAL_PAGINATE_KEYS = _read("GET", "/keyval/api/keys/paginate", Reach.SERVER, lambda: types.keys.EntryPage)
KEYVAL_GET_BATCH = _read("POST", "/keyval/api/keys/batch", Reach.SERVER, lambda: list[types.keys.WireEntry])
KEYVAL_DELETE_BATCH = _write("POST", "/keyval/api/keys/delete-batch", Reach.SERVER, lambda: types.keys.Deleted)
KEYVAL_LIST_EXACTLY = _read("POST", "/keyval/api/keys/list", Reach.SERVER, lambda: list[types.keys.WireEntry])
KEYVAL_GET_KEY = _read("GET", "/keyval/api/keys/{key:path}", Reach.SERVER, lambda: types.keys.WireEntry)
KEYVAL_PUT_KEY = _write("PUT", "/keyval/api/keys/{key:path}", Reach.SERVER, lambda: types.keys.Written)
KEYVAL_DELETE_KEY = _write("DELETE", "/keyval/api/keys/{key:path}", Reach.SERVER, lambda: types.keys.Deleted)
KEYVAL_COMMIT = _write("POST", "/keyval/api/atomic", Reach.SERVER, lambda: types.keys.AtomicResult)
KEYVAL_METRICS = _read("GET", "/keyval/api/metrics", Reach.SERVER, lambda: types.keys.KeyvalMetrics)
KEYVAL_PROMETHEUS = _read("GET", "/keyval/api/metrics/prometheus", Reach.SERVER, lambda: str)
