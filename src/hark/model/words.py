"""Constants and types that the model shares."""

from __future__ import annotations

from typing import Literal

QUEUE_MODE = "__QUEUE_MODE__"
"""The default group: that of consumers which name none."""
DEFAULT_PARTITION = "Default"
NULL_PAYLOAD = b"null"

GroupMode = Literal["ordered", "shared"]
SubscriptionMode = Literal["all", "new", "timestamp"]
Status = Literal["completed", "failed", "retry", "dlq"]
MessageState = Literal["pending", "processing", "completed", "dead_letter"]

KeyPart = str | float | bool
Key = tuple[KeyPart, ...]
"""A key of the key-value store: 1 to 20 parts, ordered by type (string, number, boolean), then by value (rule 25)."""
