"""Credentials: the token of a client, and the certificates that it trusts."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from hark.errors import InvalidInput

AUTHORIZATION = "Authorization"


def checked_token(token: str, name: str = "token") -> str:
    """A token without surrounding spaces that fits into a header. Raises `InvalidInput` without quoting it."""
    if not isinstance(token, str):
        raise InvalidInput(f"{name}: expected a string, got {type(token).__name__}")
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidInput(f"{name}: expected one word of ASCII, as `hark token create` printed it (not shown here)")
    return token


def bearer(token: str) -> str:
    """The value of the Authorization header."""
    return f"Bearer {token}"


def with_token(headers: Mapping[str, str], token: str | None, default: str | None) -> dict[str, str]:
    """The headers of all requests, with the token. A given Authorization header wins over the `default` token."""
    given = any(name.lower() == AUTHORIZATION.lower() for name in headers)
    if given and token is not None:
        raise InvalidInput("token: expected either a token or an Authorization header, got both")
    if token is None and (given or default is None):
        return dict(headers)
    checked = checked_token(default or "", "HARK_TOKEN") if token is None else checked_token(token)
    return {**headers, AUTHORIZATION: bearer(checked)}


def trusting(ca_file: str, name: str = "ca_file") -> ssl.SSLContext:
    """A TLS context that trusts only the authorities in a PEM file. Raises `InvalidInput`."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise InvalidInput(f"{name}: {ca_file} contains no PEM certificates: {error.reason or error}") from error
    except OSError as error:
        raise InvalidInput(f"{name}: {ca_file} cannot be read: {error.strerror or error}") from error


def refused_by_tls(url: str, error: BaseException | str) -> str:
    """Why there is no trusted connection, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {url} is not trusted: {error.verify_message}; give the certificate file of its "
            "authority as ca_file or HARK_CA_FILE"
        )
    return f"TLS connection to {url} failed: {error}; if the server does not use TLS, use http:// instead"
