"""What keeps a server from those who have no business with it: authentication, loopback, TLS."""

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

log = logging.getLogger(__name__)


def make_authenticator(settings: Settings, clock: Clock, listener: socket.socket) -> Authenticator:
    """Who may use a server on this socket; raises `InvalidSetting` if that were everybody on the network."""
    authenticator = Authenticator(settings, clock)
    if not authenticator.enabled and not _is_loopback(listener):
        host = listener.getsockname()[0]
        if not settings.insecure_bind:
            raise InvalidSetting(
                f"host: {host} is open to other machines, and nobody is asked for a token; make one first "
                f"(hark token create NAME --role admin --data {settings.data}), enable JWT (auth.jwt_enabled), or say "
                "--insecure-bind (setting insecure_bind) if everybody who can connect may do everything"
            )
        log.warning("everybody who can connect to %s may do everything: there is no authentication", host)
    return authenticator


def remembering(settings: Settings, listener: socket.socket) -> Settings:
    """The settings for the processes of one server: once authentication is on, it is on in those that come later."""
    if not make_authenticator(settings, SystemClock(), listener).enabled:
        return settings
    return msgspec.structs.replace(settings, auth=msgspec.structs.replace(settings.auth, required=True))


def tls_context(tls: Tls) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with the server's certificate; None without one. Raises `InvalidSetting`."""
    if not tls.certificate:
        return None
    for name, path in (("certificate", tls.certificate), ("key", tls.key)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise InvalidSetting(f"setting tls.{name}: {path} can't be read: {error.strerror}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidSetting(
            f"setting tls.certificate: {tls.certificate} and {tls.key} are not a certificate and its private key, "
            f"both in PEM and without a password: {error}"
        ) from error
    return context


def _no_password() -> str:
    """Called for a key with a password; else OpenSSL would ask on the terminal, where nobody may be."""
    raise ValueError("the key has a password")


def _is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can connect."""
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return True
    address = ipaddress.ip_address(listener.getsockname()[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
