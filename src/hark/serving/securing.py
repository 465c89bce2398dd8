"""Access to a server: authentication, the loopback rule and TLS."""

from __future__ import annotations

import ipaddress
import logging
import socket
import ssl
from pathlib import Path

import msgspec

from hark.access.authenticator import Authenticator
from hark.clock import Clock, SystemClock
from hark.errors import InvalidSetting
from hark.settings import Settings, Tls
from hark.settings.security import ANY_ORIGIN

log = logging.getLogger(__name__)


def make_authenticator(settings: Settings, clock: Clock, listener: socket.socket) -> Authenticator:
    """Authentication for a server on this socket.

    Raises `InvalidSetting` if other machines or the pages of every web site had access without it.
    """
    authenticator = Authenticator(settings, clock)
    if not authenticator.enabled and ANY_ORIGIN in settings.cors.origins:
        raise InvalidSetting(
            "setting cors.origins: * allows the pages of every web site, but authentication is off, so every page "
            "could read and push messages; name the origins, create a token "
            f"(hark token create NAME --role admin --data {settings.data}), or enable JWTs (auth.jwt_enabled)"
        )
    if not authenticator.enabled and not _is_loopback(listener):
        host = listener.getsockname()[0]
        if not settings.insecure_bind:
            raise InvalidSetting(
                f"setting host: other machines can reach {host}, but authentication is off; create a token "
                f"(hark token create NAME --role admin --data {settings.data}), enable JWTs (auth.jwt_enabled), or use "
                "--insecure-bind (insecure_bind) to give every client full access"
            )
        log.warning(
            "authentication is off: every client that can connect to %s has full access; create a token with "
            "hark token create, or enable JWTs",
            host,
        )
    return authenticator


def remembering(settings: Settings, listener: socket.socket) -> Settings:
    """The settings for the processes of one server: if authentication is on now, it is on in all later processes."""
    if not make_authenticator(settings, SystemClock(), listener).enabled:
        return settings
    return msgspec.structs.replace(settings, auth=msgspec.structs.replace(settings.auth, required=True))


def tls_context(tls: Tls) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with the server's certificate, or None without a certificate. Raises `InvalidSetting`."""
    if not tls.certificate:
        return None
    for name, path in (("certificate", tls.certificate), ("key", tls.key)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise InvalidSetting(
                f"setting tls.{name}: cannot read {path}: {error.strerror}; check the path and its permissions"
            ) from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidSetting(
            f"setting tls.certificate: {tls.certificate} and {tls.key} are not a matching certificate and private key: "
            f"{error}; both must be PEM files, and the key must have no password"
        ) from error
    return context


def _no_password() -> str:
    """Called for a key with a password. Without this function OpenSSL would prompt on the terminal."""
    raise ValueError("the key has a password")


def _is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can connect."""
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return True
    address = ipaddress.ip_address(listener.getsockname()[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
