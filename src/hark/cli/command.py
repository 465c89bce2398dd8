"""The parts that all commands share: registration, shared options, the server's URL, errors and prompts."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec

import typer
from typer.core import TyperCommand

from hark.errors import HarkError, InvalidSetting
from hark.settings import Settings

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


# Exit codes: 0 success; 1 rejected or failed; 2 invalid usage or settings; 3 no message to pop.


DEFAULT_URL = "http://127.0.0.1:6632"
FAILED, USAGE, NOTHING, PARTIAL = 1, 2, 3, 4
_TYPE = re.compile(r" <[^<>]*>$")
_DESCRIBED_DEFAULT = re.compile(r"default: \(([^()]*)\)")
DEFAULTS = Settings()


class Failure(Exception):
    """The command cannot do its work; becomes a message on stderr, with a hint on the next line, and an exit code."""

    def __init__(self, text: str, *, code: str | None = None, hint: str = "", exit_code: int = FAILED) -> None:
        line = f"{text} ({code})" if code else text
        super().__init__(f"{line}\n{hint}" if hint else line)
        self.exit_code = exit_code


def not_empty(value: str | None) -> str | None:
    """Reject an empty name: in a path or a filter it would select something else."""
    if value is not None and not value:
        raise typer.BadParameter("must not be empty")
    return value


# Options that several commands have: the help text of each is written once, here.

Url = Annotated[str, typer.Option("--url", envvar="HARK_URL", metavar="URL", help="Server URL.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")]
QueueName = Annotated[
    str, typer.Argument(metavar="QUEUE", callback=not_empty, help="Name of the queue.", show_default=False)
]
OptionalQueueName = Annotated[
    str | None,
    typer.Argument(metavar="QUEUE", callback=not_empty, help="Only this queue.", show_default="all queues"),
]
GroupName = Annotated[
    str, typer.Argument(metavar="GROUP", callback=not_empty, help="Name of the consumer group.", show_default=False)
]
MessageId = Annotated[str, typer.Argument(metavar="MESSAGE_ID", help="ID of the message.", show_default=False)]
MessageOrPartitionId = Annotated[
    str,
    typer.Argument(metavar="ID", help="Message ID; or partition ID, if TRANSACTION_ID is given.", show_default=False),
]
TransactionId = Annotated[
    str | None,
    typer.Argument(metavar="TRANSACTION_ID", help="Transaction ID of the message.", show_default=False),
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group", metavar="GROUP", callback=not_empty, help="Consumer group.", show_default="the default group"
    ),
]
OnlyGroup = Annotated[
    str | None,
    typer.Option(
        "--group", metavar="GROUP", callback=not_empty, help="Only this consumer group.", show_default="all groups"
    ),
]
OnlyQueue = Annotated[
    str | None,
    typer.Option("--queue", metavar="QUEUE", callback=not_empty, help="Only this queue.", show_default="all queues"),
]
OnlyPartition = Annotated[
    str | None,
    typer.Option(
        "--partition",
        metavar="PARTITION",
        callback=not_empty,
        help="Only this partition.",
        show_default="all partitions",
    ),
]
Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Maximum number of results.")]
Offset = Annotated[int, typer.Option("--offset", min=0, metavar="N", help="Number of results to skip.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--from", callback=not_empty, metavar="TIME", help="Start of the time range (ISO 8601).", show_default=False
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--to", callback=not_empty, metavar="TIME", help="End of the time range (ISO 8601).", show_default=False
    ),
]
Data = Annotated[str | None, typer.Option("--data", metavar="DIR", help="Data directory.", show_default=DEFAULTS.data)]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings file.", show_default="HARK_CONFIG, otherwise ./hark.toml"),
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        help="Lowest level to log: debug, info, warning or error.",
        show_default=DEFAULTS.log_level,
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        metavar="FORMAT",
        help="Log format: text, json or auto (text on a terminal, otherwise json).",
        show_default=DEFAULTS.log_format,
    ),
]


class PlainCommand(TyperCommand):
    """A command whose help shows arguments without their Python types, and all defaults without parentheses."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections for arguments and options."""
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            name, text = record[0], _DESCRIBED_DEFAULT.sub(r"default: \1", record[1])
            if param.param_type_name == "argument":
                rows["Arguments"].append((_TYPE.sub("", name), text))
            else:
                rows["Options"].append((name, text))
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def examples(*lines: str) -> str:
    """Lay out the end of a help text: example commands, then optional notes after an empty line."""
    shown = (f"  {line}" if line.startswith("hark ") else line or "\n\b" for line in lines)
    return "\n".join(("\b", "Examples:", *shown))  # \b keeps the line breaks of a paragraph


def make_app(about: str, *lines: str, complete: bool = True) -> typer.Typer:
    """Make a group of commands with examples in its help."""
    return typer.Typer(
        help=about,
        epilog=examples(*lines),
        no_args_is_help=complete,
        add_completion=complete,
        rich_markup_mode=None,  # plain help: importing rich takes longer than the rest of `hark --help`
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def command(app: typer.Typer, name: str, *lines: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Register a command with examples in its help; its failures go to stderr."""

    def register(function: Callable[P, None]) -> Callable[P, None]:
        reporting = _reporting(connecting(function))
        app.command(name, cls=PlainCommand, epilog=examples(*lines))(reporting)
        return reporting

    return register


def _reporting(function: Callable[P, None]) -> Callable[P, None]:
    """Turn errors that a user can act on into a message and an exit code."""

    @functools.wraps(function)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Failure as failure:
            _end(str(failure), failure.exit_code)
        except InvalidSetting as error:
            _end(f"{error.text} ({error.code})", USAGE)
        except HarkError as error:
            _end(f"{error.text} ({error.code})", FAILED)
        except UnicodeEncodeError as error:
            if error.encoding != "utf-8":  # text that cannot be printed, unlike arguments that cannot be sent
                raise
            _end("an argument is not valid UTF-8; correct its encoding", USAGE)

    return reporting


def _end(text: str, exit_code: int) -> NoReturn:
    """Report an error and exit."""
    complain(text)
    raise typer.Exit(exit_code)


def complain(text: str) -> None:
    """Write a message to stderr."""
    typer.echo(f"hark: {printable(text)}", err=True)


def printable(text: str) -> str:
    """Escape control characters: names and payloads from other programs must not control the terminal."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )


def confirm(question: str, yes: bool) -> None:
    """Ask before data is lost; without a terminal, require `--yes`."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure(f"{question} This needs a confirmation, and there is no terminal: add --yes", exit_code=USAGE)
    typer.confirm(printable(question), abort=True, err=True)
