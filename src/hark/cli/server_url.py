"""The server that a command talks to: its URL, and along with it the token and whom to trust."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, ParamSpec

import typer

P = ParamSpec("P")

Token = Annotated[
    str | None,
    typer.Option("--token", envvar="HARK_TOKEN", metavar="TOKEN", help="Who asks; the variable hides it from others."),
]
CaFile = Annotated[
    str | None,
    typer.Option("--ca-file", envvar="HARK_CA_FILE", metavar="FILE", help="With https: the authority to trust."),
]


class ServerUrl(str):
    """A URL that carries what its server wants to see; wherever it is printed, it is the URL alone."""

    token: str | None = None
    ca_file: str | None = None

    @classmethod
    def of(cls, url: str, token: str | None, ca_file: str | None) -> ServerUrl:
        """A URL with what goes along."""
        server = cls(url)
        server.token, server.ca_file = token, ca_file
        return server


def connecting(function: Callable[P, None]) -> Callable[P, None]:
    """Give a command with a `url` the options --token and --ca-file; it finds their values in its URL."""
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
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in own.items()
    ]
    with_access.__annotations__ = {**inspect.get_annotations(function, eval_str=True), **own}
    with_access.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *more])  # type: ignore[attr-defined]  # functions have it, and typer looks at it
    return with_access


def _text(value: object) -> str | None:
    return value.strip() if isinstance(value, str) and value.strip() else None
