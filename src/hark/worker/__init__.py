"""The worker: runs functions as tasks, with typed arguments, retries, time limits and a graceful shutdown."""

from hark.worker.middleware import LoggingContext, MetricsMiddleware, Middleware, Outgoing, TaskContext, current
from hark.worker.retrying import Discard, Retry, RetryPolicy
from hark.worker.stats import Counts, Snapshot, Summary, TaskEvent
from hark.worker.task import Task, WrongArguments
from hark.worker.worker import Worker, WorkerRunOptions

__all__ = [
    "Counts",
    "Discard",
    "LoggingContext",
    "MetricsMiddleware",
    "Middleware",
    "Outgoing",
    "Retry",
    "RetryPolicy",
    "Snapshot",
    "Summary",
    "Task",
    "TaskContext",
    "TaskEvent",
    "Worker",
    "WorkerRunOptions",
    "WrongArguments",
    "current",
]
