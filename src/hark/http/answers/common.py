"""Parts of responses that several topics share."""

from __future__ import annotations

from typing import TypedDict


class Pagination(TypedDict):
    """The page of a list."""

    limit: int
    offset: int


class Counts(TypedDict):
    """Message counts of a queue or partition, by state."""

    total: int
    pending: int
    processing: int
    completed: int
    failed: int
    deadLetter: int


class Success(TypedDict):
    """A successful operation."""

    success: bool


class ErrorAnswer(TypedDict):
    """An error: a text for people, and a stable code for programs."""

    error: str
    code: str
