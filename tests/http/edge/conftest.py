"""Servers behind the edge."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.http.edge.app_client import AppClient, Off, serving


@pytest.fixture
async def ask() -> AsyncIterator[AppClient]:
    """A server that knows the tokens."""
    async with serving() as app_client:
        yield app_client


@pytest.fixture
async def ask_open() -> AsyncIterator[AppClient]:
    """A server without authentication."""
    async with serving(authenticator=Off()) as app_client:
        yield app_client
