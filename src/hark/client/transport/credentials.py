"""What a client shows a server, and what it wants to see of it: a token, and a certificate."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from hark.errors import InvalidInput

AUTHORIZATION = "Authorization"


def checked_token(token: str, name: str = "token") -> str:
    """A token that fits into a header, without the spaces around it; raises `InvalidInput` without quoting it."""
    if not isinstance(token, str):
        raise InvalidInput(f"{name}: expected a text, got {type(token).__name__}")
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidInput(f"{name}: expected one word of ASCII, as `hark token create` printed it (not shown here)")
    return token


def bearer(token: str) -> str:
    """The value of the header that carries a token."""
    return f"Bearer {token}"


def with_token(headers: Mapping[str, str], token: str | None, default: str | None) -> dict[str, str]:
    """The headers of all requests, with a token; one that is only the `default` yields to a header that was given."""
    given = any(name.lower() == AUTHORIZATION.lower() for name in headers)
    if given and token is not None:
        raise InvalidInput("token: expected either a token or the header Authorization, got both")
    if token is None and (given or default is None):
        return dict(headers)
    checked = checked_token(default or "", "HARK_TOKEN") if token is None else checked_token(token)
    return {**headers, AUTHORIZATION: bearer(checked)}


def trusting(ca_file: str, name: str = "ca_file") -> ssl.SSLContext:
    """TLS that trusts the authorities of a PEM file and no others; raises `InvalidInput`."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise InvalidInput(f"{name}: {ca_file} has no certificates in PEM: {error.reason or error}") from error
    except OSError as error:
        raise InvalidInput(f"{name}: {ca_file} can't be read: {error.strerror or error}") from error


def refused_by_tls(url: str, error: BaseException | str) -> str:
    """Why there is no connection that can be trusted, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {url} is not trusted: {error.verify_message}; give the file of its authority as "
            "ca_file or HARK_CA_FILE"
        )
    return f"{url} does not speak TLS as expected: {error}; is it http:// instead?"
