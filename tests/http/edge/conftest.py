"""Servers behind the edge."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.http.edge.asking import Asking, Off, serving


@pytest.fixture
async def ask() -> AsyncIterator[Asking]:
    """A server that knows the tokens."""
    async with serving() as asking:
        yield asking


@pytest.fixture
async def ask_open() -> AsyncIterator[Asking]:
    """A server without authentication."""
    async with serving(authenticator=Off()) as asking:
        yield asking
