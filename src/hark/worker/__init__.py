"""The worker: runs functions as tasks, with typed arguments, retries, time limits and a graceful shutdown."""

from hark.worker.handle import ResultMissing, TaskCancelled, TaskFailed, TaskHandle
from hark.worker.middleware import LoggingContext, MetricsMiddleware, Middleware, Outgoing, TaskContext, current
from hark.worker.retrying import Discard, Retry, RetryPolicy
from hark.worker.stats import Counts, QueueState, Snapshot, Summary, TaskEvent
from hark.worker.task import Task, WrongArguments
from hark.worker.worker import Worker, WorkerRunOptions

__all__ = [
    "Counts",
    "Discard",
    "LoggingContext",
    "MetricsMiddleware",
    "Middleware",
    "Outgoing",
    "QueueState",
    "ResultMissing",
    "Retry",
    "RetryPolicy",
    "Snapshot",
    "Summary",
    "Task",
    "TaskCancelled",
    "TaskContext",
    "TaskEvent",
    "TaskFailed",
    "TaskHandle",
    "Worker",
    "WorkerRunOptions",
    "WrongArguments",
    "current",
]
