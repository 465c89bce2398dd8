"""The server that a command talks to: its URL, with the token and the trusted certificate authority."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, ParamSpec

import typer

P = ParamSpec("P")

Token = Annotated[
    str | None,
    typer.Option("--token", envvar="HARK_TOKEN", metavar="TOKEN", help="API token."),
]
CaFile = Annotated[
    str | None,
    typer.Option("--ca-file", envvar="HARK_CA_FILE", metavar="FILE", help="CA certificates to trust (PEM), for https."),
]


class ServerUrl(str):
    """A URL with the credentials for its server; printing it shows the URL only."""

    token: str | None = None
    ca_file: str | None = None

    @classmethod
    def of(cls, url: str, token: str | None, ca_file: str | None) -> ServerUrl:
        """Make a URL with its token and certificate authority."""
        server = cls(url)
        server.token, server.ca_file = token, ca_file
        return server


def connecting(function: Callable[P, None]) -> Callable[P, None]:
    """Add the options --token and --ca-file to a command that has a `url`, which then carries their values."""
    signature = inspect.signature(function, eval_str=True)
    if "url" not in signature.parameters:
        return function
    own = {"token": Token, "ca_file": CaFile}

    @functools.wraps(function)
    def with_access(*args: P.args, **kwargs: P.kwargs) -> None:
        token, ca_file = kwargs.pop("token", None), kwargs.pop("ca_file", None)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        url = given.arguments["url"]
        given.arguments["url"] = ServerUrl.of(url, _text(token), _text(ca_file))
        function(*given.args, **given.kwargs)

    more = [
        inspect.Parameter(name, signature.parameters["url"].kind, default=None, annotation=annotation)
        for name, annotation in own.items()
    ]
    parameters = list(signature.parameters.values())
    after = list(signature.parameters).index("url") + 1
    with_access.__annotations__ = {**inspect.get_annotations(function, eval_str=True), **own}
    with_access.__signature__ = signature.replace(parameters=[*parameters[:after], *more, *parameters[after:]])  # type: ignore[attr-defined]  # functions have it, and typer reads it
    return with_access


def _text(value: object) -> str | None:
    return value.strip() if isinstance(value, str) and value.strip() else None
