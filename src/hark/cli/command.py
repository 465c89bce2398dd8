"""What all commands share: how they are registered, how they fail, and how they ask before they destroy.

Exit codes: 0 done; 1 refused or failed; 2 wrong usage or wrong settings; 3 a pop that got nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn, ParamSpec

import typer

from hark.cli.server_url import connecting
from hark.errors import HarkError, InvalidSetting

P = ParamSpec("P")

DEFAULT_URL = "http://127.0.0.1:6632"
FAILED, USAGE, NOTHING = 1, 2, 3


class Failure(Exception):
    """A command can't do what it was asked; becomes one line on stderr and an exit code."""

    def __init__(self, text: str, *, code: str | None = None, exit_code: int = FAILED) -> None:
        super().__init__(f"{text} ({code})" if code else text)
        self.exit_code = exit_code


def not_empty(value: str | None) -> str | None:
    """Refuse an empty name: in a path or a filter it would mean something else than a name."""
    if value is not None and not value:
        raise typer.BadParameter("must not be empty")
    return value


Url = Annotated[str, typer.Option("--url", envvar="HARK_URL", help="The server.")]
Json = Annotated[bool, typer.Option("--json", help="Print the server's JSON and nothing else.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", callback=not_empty, show_default=False)]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", callback=not_empty, show_default=False)]
GroupOption = Annotated[
    str | None, typer.Option("--group", callback=not_empty, help="The consumer group; else the queue's own.")
]
QueueOption = Annotated[
    str | None, typer.Option("--queue", callback=not_empty, help="Only in this queue.", show_default=False)
]
PartitionOption = Annotated[
    str | None, typer.Option("--partition", callback=not_empty, help="The partition.", show_default=False)
]


def examples(*lines: str) -> str:
    """Lay out the end of a help text: commands, then maybe, after an empty line, notes."""
    shown = (f"  {line}" if line.startswith("hark ") else line or "\n\b" for line in lines)
    return "\n".join(("\b", "Examples:", *shown))  # \b keeps the lines of a paragraph as they are


def make_app(about: str, *lines: str, complete: bool = True) -> typer.Typer:
    """Make a (sub)command group with examples in its help."""
    return typer.Typer(
        help=about,
        epilog=examples(*lines),
        no_args_is_help=complete,
        add_completion=complete,
        rich_markup_mode=None,  # plain help: importing rich costs more than all the rest of `hark --help`
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def command(app: typer.Typer, name: str, *lines: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Register a command with examples in its help and its failures on stderr."""

    def register(function: Callable[P, None]) -> Callable[P, None]:
        reporting = _reporting(connecting(function))
        app.command(name, epilog=examples(*lines))(reporting)
        return reporting

    return register


def _reporting(function: Callable[P, None]) -> Callable[P, None]:
    """Turn the errors a user can do something about into a line and an exit code."""

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
            if error.encoding != "utf-8":  # what can't be printed is another story than what can't be sent
                raise
            _end("arguments must be valid UTF-8", USAGE)

    return reporting


def _end(text: str, exit_code: int) -> NoReturn:
    """Say what went wrong and stop."""
    complain(text)
    raise typer.Exit(exit_code)


def complain(text: str) -> None:
    """Write a line on stderr."""
    typer.echo(f"hark: {printable(text)}", err=True)


def printable(text: str) -> str:
    """Replace control characters: names and payloads come from others and must not steer the terminal."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )


def confirm(question: str, yes: bool) -> None:
    """Ask before something is lost; without a terminal and without `--yes`, refuse."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure("this can't be undone, and there is no terminal to ask on: add --yes", exit_code=USAGE)
    typer.confirm(printable(question), abort=True, err=True)
