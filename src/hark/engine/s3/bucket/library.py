"""aiobotocore as Hark uses it: nothing is sent twice, and other servers than AWS are welcome."""

from __future__ import annotations

import base64
import hashlib
import logging
from contextlib import AbstractAsyncContextManager
from typing import Any

from aiohttp import ClientConnectorError

from hark.engine.s3.bucket.address import Address
from hark.engine.s3.bucket.answers import meaning
from hark.engine.s3.bucket.api import BucketError, Refused, Unclear
from hark.errors import StoreUnusable
from hark.settings.s3 import S3

try:
    import aiohttp
    from aiobotocore.config import AioConfig
    from aiobotocore.httpsession import AIOHTTPSession
    from aiobotocore.session import get_session
    from botocore import exceptions
    from botocore.parsers import ResponseParserError
except ImportError as error:
    raise StoreUnusable("aiobotocore for the S3 engine is missing; install it with: pip install 'hark[s3]'") from error

CONNECTIONS = 32
"""Requests at once at most; more wait for their turn."""

_ANY_REGION = "us-east-1"
"""Signatures name a region, also to servers that have none."""

_NOT_SENT = (
    exceptions.ConfigParseError,
    exceptions.NoCredentialsError,
    exceptions.NoRegionError,
    exceptions.ParamValidationError,
    exceptions.PartialCredentialsError,
    exceptions.ProfileNotFound,
    exceptions.UnauthorizedSSOTokenError,
)
_NO_ANSWER = (exceptions.BotoCoreError, ResponseParserError, aiohttp.ClientError, OSError, TimeoutError)
FAILURES = (exceptions.ClientError, *_NO_ANSWER)
"""What a request may raise that is not a defect of Hark."""

Client = Any
"""A client of S3: aiobotocore makes its methods while it runs, so there are no types."""


class _OnceSession(AIOHTTPSession):  # type: ignore[misc]  # aiobotocore has no types.
    """Connections over which nothing is sent twice.

    aiohttp sends a PUT again when a connection that it kept open is closed without an answer. But the first may have
    been kept: then the second finds the key taken, and the winner would believe that it lost.
    """

    async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)
        session._retry_connection = False
        return session


def make_client(address: Address, settings: S3) -> AbstractAsyncContextManager[Client]:
    """A client for a bucket; raises `Refused` when the configuration of the AWS tools makes no sense."""
    _say_less()
    try:
        session = get_session()
        region = address.region or settings.region or session.get_config_variable("region") or _ANY_REGION
        endpoint = address.endpoint or settings.endpoint_url or None
        seconds = settings.request_timeout_ms / 1000
        config = AioConfig(
            http_session_cls=_OnceSession,
            connect_timeout=seconds,
            read_timeout=seconds,
            max_pool_connections=CONNECTIONS,
            retries={"total_max_attempts": 1, "mode": "standard"},
            # Only AWS knows the checksums that the library would add to everything.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if endpoint else "auto"},
        )
        made: AbstractAsyncContextManager[Client] = session.create_client(
            "s3", region_name=region, endpoint_url=endpoint, config=config
        )
    except (exceptions.BotoCoreError, ValueError) as error:
        raise Refused(f"{error}; correct the AWS configuration") from error
    return made


def _say_less() -> None:
    # Where it found credentials and endpoint is no news at every start; who asks for everything, or for this, gets it.
    for name in ("aiobotocore.credentials", "botocore.configprovider"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET and not logger.isEnabledFor(logging.DEBUG):
            logger.setLevel(logging.WARNING)


def prepare(client: Client) -> None:
    """Make a client's requests quick, and understood by servers that want what AWS no longer asks for."""
    client.meta.events.register("before-sign.s3.PutObject", _send_at_once)
    client.meta.events.register("before-sign.s3.DeleteObjects", _add_md5)


def _send_at_once(request: Any, **_: object) -> None:
    # To ask whether the body is welcome costs each commit a round trip, and not every server answers that.
    del request.headers["Expect"]


def _add_md5(request: Any, **_: object) -> None:
    digest = hashlib.md5(request.body, usedforsecurity=False).digest()
    request.headers["Content-MD5"] = base64.b64encode(digest).decode()


def translated(error: Exception, what: str) -> BucketError:
    """What a failure of the library means; `what` says which request it was."""
    if isinstance(error, exceptions.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        about = error.response.get("Error", {})
        code, message = str(about.get("Code", "")), str(about.get("Message", "")).rstrip(".")
        said = " ".join(dict.fromkeys(word for word in (str(status), code, message) if word))
        return meaning(status, code, f"{what}: {said}")
    if isinstance(error, _NOT_SENT):
        return Refused(f"{what}: {_credentials_advice(error)}")
    if isinstance(error, TimeoutError) and not str(error):
        return Unclear(f"{what}: no response in time")
    return Unclear(f"{what}: {error}", was_sent=_was_sent(error))


def _was_sent(error: Exception) -> bool:
    """Whether a request may have reached the store: not where there was not even a connection."""
    # The library has one exception for this and for connections that break later; what it was made of tells them apart.
    return not isinstance(error.__context__, ClientConnectorError)


def headers_of(error: Exception) -> dict[str, str]:
    """The headers of the answer that a failure is; none if there was no answer."""
    if not isinstance(error, exceptions.ClientError):
        return {}
    headers: dict[str, str] = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return headers


def _credentials_advice(error: Exception) -> str:
    if isinstance(error, exceptions.NoCredentialsError):
        return (
            "no credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or use a role of "
            "the machine"
        )
    return f"{error}; correct the AWS configuration"
