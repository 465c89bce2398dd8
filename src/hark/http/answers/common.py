"""Parts that answers of several themes have."""

from __future__ import annotations

from typing import TypedDict


class Pagination(TypedDict):
    """Which part of a list this is."""

    limit: int
    offset: int


class Counts(TypedDict):
    """How many messages of a queue or partition are in which state."""

    total: int
    pending: int
    processing: int
    completed: int
    failed: int
    deadLetter: int


class Success(TypedDict):
    """It is done."""

    success: bool


class ErrorAnswer(TypedDict):
    """What went wrong: a text for people, and a stable code for programs."""

    error: str
    code: str
