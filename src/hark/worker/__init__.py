"""The worker: runs functions as tasks, with typed arguments, retries, time limits and a graceful shutdown."""

from hark.worker.flow import Flow, FlowHandle, chain, group
from hark.worker.handle import ResultMissing, TaskCancelled, TaskFailed, TaskHandle
from hark.worker.middleware import LoggingContext, MetricsMiddleware, Middleware, Outgoing, TaskContext, current
from hark.worker.retrying import Discard, Retry, RetryPolicy
from hark.worker.stats import Counts, Snapshot, Summary, TaskEvent
from hark.worker.task import Task, WrongArguments
from hark.worker.worker import Worker, WorkerRunOptions

__all__ = [
    "Counts",
    "Discard",
    "Flow",
    "FlowHandle",
    "LoggingContext",
    "MetricsMiddleware",
    "Middleware",
    "Outgoing",
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
    "chain",
    "current",
    "group",
]
