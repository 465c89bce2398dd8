"""Connecting: the place that chooses a transport for what a user wants to connect to."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from hark.client.calling import CallPolicy
from hark.client.client import Client
from hark.client.transport.api import Transport
from hark.client.transport.failover import FailoverTransport
from hark.client.transport.http import HttpTransport
from hark.client.transport.inprocess import AsgiApp, AsgiTransport
from hark.clock import Clock, SystemClock
from hark.errors import InvalidInput
from hark.polling import PollingStrategy
from hark.settings import Settings

if TYPE_CHECKING:
    from hark.engine.api import Engine

Target: TypeAlias = "str | Sequence[str] | AsgiApp | Engine | Transport"
"""What there is to connect to."""

DEFAULT_URL = "http://127.0.0.1:6632"
_OVER_HTTP = {"ws": "http", "wss": "https"}
_ENGINE_VERBS = ("start", "push", "pop", "settle", "transact", "close")
_TRANSPORT_VERBS = ("send", "fork", "close")


def connect(
    target: str | Sequence[str] | AsgiApp | Engine | Transport | None = None,
    *,
    retry: CallPolicy | None = None,
    polling: PollingStrategy | None = None,
    headers: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
) -> Client:
    """A client of a server; close it when you are done, or use it as an async context manager.

    `target` is a URL (`http://`, `https://`; with `ws://` and `wss://` messages come over a WebSocket), several
    URLs of equal servers (a list, or a text with commas), an ASGI application, or an engine, which then gets a server
    with `settings` and `clock` in this process. By default it is HARK_URL, else http://127.0.0.1:6632.
    """
    if target is None:
        target = os.environ.get("HARK_URL") or DEFAULT_URL
    if not _is_engine(target) and (settings is not None or clock is not None):
        name = "settings" if settings is not None else "clock"
        raise InvalidInput(f"{name}: only for an engine in this process; a server has its own")
    if retry is not None and not isinstance(retry, CallPolicy):  # Tasks have a policy too, which says something else.
        raise InvalidInput(f"retry: expected a hark.CallPolicy, got {type(retry).__name__}")
    if polling is not None and not isinstance(polling, PollingStrategy):
        raise InvalidInput(f"polling: expected a hark.PollingStrategy, got {type(polling).__name__}")
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidInput(f"headers: expected texts, got {value!r} for {name!r}")
    transport, sockets = _transport(target, headers or {}, settings, clock)
    on_open = transport.open if isinstance(transport, AsgiTransport) else None
    return Client(transport, retry=retry, polling=polling, sockets=sockets, headers=headers, on_open=on_open)


def _transport(
    target: str | Sequence[str] | AsgiApp | Engine | Transport,
    headers: Mapping[str, str],
    settings: Settings | None,
    clock: Clock | None,
) -> tuple[Transport, bool]:
    """The way to a target, and whether messages are delivered over WebSockets."""
    if isinstance(target, str):
        target = target.split(",")
    if isinstance(target, Sequence) and not isinstance(target, bytes):
        return _over_http(target, dict(headers))
    if headers:
        raise InvalidInput("headers: only for servers with a URL")
    if _is_engine(target):
        return in_process(target, settings, clock), False
    if _is_transport(target):
        return target, False
    if callable(target):
        return AsgiTransport(target), False
    raise InvalidInput(
        f"target: expected a URL, a list of URLs, an ASGI application or an engine, got {type(target).__name__}"
    )


def _over_http(given: Sequence[str], headers: dict[str, str]) -> tuple[Transport, bool]:
    urls: list[str] = []
    kinds: set[bool] = set()
    for url in given:
        if not isinstance(url, str):
            raise InvalidInput(f"target: expected URLs, got {type(url).__name__}")
        if not url.strip():
            continue  # A comma at the end.
        scheme, colon, rest = url.strip().partition(":")
        kinds.add(scheme in _OVER_HTTP)
        urls.append(_OVER_HTTP.get(scheme, scheme) + colon + rest)
    if not urls:
        raise InvalidInput(f"target: expected the URL of a server, such as {DEFAULT_URL}, got none")
    if len(kinds) > 1:
        raise InvalidInput("target: expected either ws:// or http:// for all of several servers, got both")
    if len(urls) == 1:
        return HttpTransport(urls[0], headers), kinds.pop()
    return FailoverTransport(urls, make=lambda url: HttpTransport(url, headers)), kinds.pop()


def in_process(engine: Engine, settings: Settings | None = None, clock: Clock | None = None) -> AsgiTransport:
    """A server around an engine, without a socket; it starts with the first request and closes with the transport."""
    # Not needed to talk to a server elsewhere, and slow to import.
    from hark.broker import Broker
    from hark.http.app import App

    settings = settings or Settings()
    broker = Broker(engine, settings, clock or SystemClock())
    return AsgiTransport(App(broker, settings), on_open=broker.start, on_close=broker.close)


def _is_engine(target: object) -> TypeGuard[Engine]:
    return all(hasattr(target, verb) for verb in _ENGINE_VERBS)


def _is_transport(target: object) -> TypeGuard[Transport]:
    return all(hasattr(target, verb) for verb in _TRANSPORT_VERBS)
