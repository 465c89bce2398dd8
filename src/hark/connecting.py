"""Chooses the transport for the target that a user connects to."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

import msgspec

from hark.client.arguments import trusting, with_token
from hark.client.calling import CallPolicy, Transport
from hark.client.client import Client
from hark.client.http import FailoverTransport, HttpTransport
from hark.client.inprocess import AsgiApp, AsgiTransport, BesideTransport
from hark.clock import Clock, SystemClock
from hark.errors import InvalidInput, InvalidSetting
from hark.polling import PollingStrategy
from hark.settings import Settings, load
from hark.settings.tree import S3_SCHEME

if TYPE_CHECKING:
    from hark.engine.api import Engine

Target: TypeAlias = "str | Sequence[str] | AsgiApp | Engine | Transport"
"""Everything that `hark.connect` can connect to."""

DEFAULT_URL = "http://127.0.0.1:6632"
_OVER_HTTP = {"ws": "http", "wss": "https"}
_ENGINE_VERBS = ("start", "push", "pop", "settle", "transact", "close")
_TRANSPORT_VERBS = ("send", "fork", "close")


def connect(
    target: str | Sequence[str] | AsgiApp | Engine | Transport | None = None,
    *,
    token: str | None = None,
    ca_file: str | None = None,
    retry: CallPolicy | None = None,
    polling: PollingStrategy | None = None,
    headers: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
) -> Client:
    """Connect to a Hark server, or open a store in this process. Returns a client.

    Nothing is sent before the first call. Use the client as an async context manager, or call `close` at the end:

    ```python
    async with hark.connect("http://localhost:6632") as client:
        await client.queue("orders").push({"id": 1})
    ```

    Arguments:

    - `target`: a URL (`http://` or `https://`; with `ws://` or `wss://` messages are delivered over a WebSocket),
      several URLs of servers on the same store (a list, or a string with commas), a bucket (`s3://bucket/prefix`), an
      ASGI application, or an engine. A bucket or an engine is served in this process, without another server. The
      default is the environment variable HARK_URL, otherwise http://127.0.0.1:6632.
    - `token`: an API token or a JWT, for servers with a URL. The default is HARK_TOKEN, otherwise none.
    - `ca_file`: a PEM file with the certificate authorities to trust, for `https://` and `wss://`. The default is
      HARK_CA_FILE, otherwise the authorities that the system trusts.
    - `retry`: how failed calls are retried. The default is `CallPolicy()`: 7 attempts within 30 seconds.
    - `polling`: how consumers pause after an empty response. The default is `PollingStrategy.adaptive()`. For a bucket:
      how often the bucket is checked for changes by other processes.
    - `headers`: extra headers for every request, for example for a proxy. Only for servers with a URL.
    - `settings`, `clock`: the settings and the clock of a server in this process. Only for an engine or a bucket.

    Raises `InvalidInput` if an argument is invalid.
    """
    if target is None:
        target = os.environ.get("HARK_URL") or DEFAULT_URL
    listed = _listed(target)
    bucket = next((one for one in listed or () if isinstance(one, str) and one.startswith(S3_SCHEME)), None)
    if bucket is not None and listed != [bucket]:
        raise InvalidInput(
            f"target: {S3_SCHEME}... is a store and cannot be combined with other targets; "
            "give one bucket, or only URLs of servers"
        )
    if bucket is None and not _is_engine(target) and (settings is not None or clock is not None):
        name = "settings" if settings is not None else "clock"
        raise InvalidInput(f"{name}: only valid if the target is an engine or an s3:// bucket")
    if retry is not None and not isinstance(retry, CallPolicy):  # Tasks have a RetryPolicy, which is a different class.
        raise InvalidInput(f"retry: expected a hark.CallPolicy, got {type(retry).__name__}")
    if polling is not None and not isinstance(polling, PollingStrategy):
        raise InvalidInput(f"polling: expected a hark.PollingStrategy, got {type(polling).__name__}")
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidInput(f"headers: expected strings as names and values, got {value!r} for {name!r}")
    if bucket is None and listed is not None:
        headers = with_token(headers or {}, token, os.environ.get("HARK_TOKEN") or None)
        transport, sockets = _over_http(listed, headers, ca_file)
    elif given := [name for name, value in (("headers", headers), ("token", token), ("ca_file", ca_file)) if value]:
        raise InvalidInput(f"{given[0]}: only valid if the target is the URL of a server")
    elif bucket is None:
        transport, sockets = _in_this_process(target, settings, clock), False
    else:
        # The engine polls the bucket at the pace of `polling`. Consumers in this process wait for the engine, without
        # polls.
        transport, sockets, polling = on_bucket(bucket, settings, clock, polling), False, None
    on_open = transport.open if isinstance(transport, AsgiTransport | BesideTransport) else None
    return Client(transport, retry=retry, polling=polling, sockets=sockets, on_open=on_open)


def _in_this_process(target: object, settings: Settings | None, clock: Clock | None) -> Transport:
    """The transport for a target that is not a URL."""
    if _is_engine(target):
        return in_process(target, settings, clock)
    if _is_transport(target):
        return target
    if callable(target):
        return AsgiTransport(target)
    raise InvalidInput(
        f"target: expected a URL, a list of URLs, an ASGI application or an engine, got {type(target).__name__}"
    )


def _over_http(given: Sequence[object], headers: dict[str, str], ca_file: str | None) -> tuple[Transport, bool]:
    """The transport for servers with a URL, and whether messages are delivered over WebSockets."""
    urls: list[str] = []
    kinds: set[bool] = set()
    for url in given:
        if not isinstance(url, str):
            raise InvalidInput(f"target: expected URLs, got {type(url).__name__}")
        scheme, colon, rest = url.partition(":")
        kinds.add(scheme in _OVER_HTTP)
        urls.append(_OVER_HTTP.get(scheme, scheme) + colon + rest)
    if not urls:
        raise InvalidInput(f"target: expected the URL of a server, such as {DEFAULT_URL}, got none")
    if len(kinds) > 1:
        raise InvalidInput("target: expected ws:// for all servers or http:// for all servers, got both")
    tls = _tls(urls, ca_file)
    if len(urls) == 1:
        return HttpTransport(urls[0], headers, tls), kinds.pop()
    return FailoverTransport(urls, make=lambda url: HttpTransport(url, headers, tls)), kinds.pop()


def _tls(urls: Sequence[str], ca_file: str | None) -> ssl.SSLContext | None:
    """The TLS context that trusts `ca_file`. None: trust what the system trusts."""
    secure = any(url.startswith("https:") for url in urls)
    if ca_file is not None and not secure:
        raise InvalidInput("ca_file: only valid with an https:// or wss:// URL")
    if ca_file is not None:
        return trusting(ca_file)
    default = os.environ.get("HARK_CA_FILE")
    return trusting(default, "HARK_CA_FILE") if default and secure else None


def in_process(
    engine: Engine, settings: Settings | None = None, clock: Clock | None = None, *, url: str = "in this process"
) -> AsgiTransport:
    """A server around an engine, without a socket. It starts with the first request and stops with the transport."""
    # Imported here because it is slow to import and not needed for a server elsewhere.
    from hark.broker import Broker
    from hark.http.app import App

    settings = settings or Settings()
    broker = Broker(engine, settings, clock or SystemClock())
    return AsgiTransport(
        App(broker, settings),
        on_open=broker.start,
        on_close=broker.close,
        url=url,
        poll_as=getattr(engine, "poll_as", None),
    )


def on_bucket(
    address: str, settings: Settings | None = None, clock: Clock | None = None, polling: PollingStrategy | None = None
) -> BesideTransport:
    """A server for a bucket, in a thread of this process. Settings default to the environment and hark.toml."""
    from hark.serving.server import describe, make_engine

    settings = msgspec.structs.replace(settings or load({}, os.environ).settings, engine=address)
    clock = clock or SystemClock()
    try:
        url = describe(settings)
    except InvalidSetting as error:
        raise InvalidInput(f"target{error.text.removeprefix('engine')}") from error
    return BesideTransport(in_process(make_engine(settings, clock, polling), settings, clock, url=url))


def _listed(target: object) -> list[object] | None:
    """The addresses in a list, or in a string that may contain commas; None for other targets."""
    if isinstance(target, bytes) or not isinstance(target, Sequence):
        return None
    given = target.split(",") if isinstance(target, str) else target
    stripped = (one.strip() if isinstance(one, str) else one for one in given)
    return [one for one in stripped if one != ""]  # A comma at the end.


def _is_engine(target: object) -> TypeGuard[Engine]:
    return all(hasattr(target, verb) for verb in _ENGINE_VERBS)


def _is_transport(target: object) -> TypeGuard[Transport]:
    return all(hasattr(target, verb) for verb in _TRANSPORT_VERBS)
