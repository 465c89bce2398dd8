"""The worker: runs functions as tasks, with typed arguments, retries, time limits and a graceful shutdown."""

from hark.client.handle import ResultMissing, SyncTaskHandle, TaskCancelled, TaskFailed, TaskHandle
from hark.worker.flow import Flow, FlowHandle, SyncFlowHandle, chain, group
from hark.worker.middleware import (
    CallNext,
    LoggingContext,
    MetricsMiddleware,
    Middleware,
    Outgoing,
    TaskContext,
    current,
)
from hark.worker.retrying import Discard, Retry, RetryPolicy
from hark.worker.stats import Counts, QueueState, Snapshot, Summary, TaskEvent
from hark.worker.task import Task, WrongArguments
from hark.worker.worker import Worker, WorkerRunOptions

__all__ = [
    "CallNext",
    "Counts",
    "Discard",
    "Flow",
    "FlowHandle",
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
    "SyncFlowHandle",
    "SyncTaskHandle",
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
