"""Registers commands: their help, the options for the server, and errors as messages and exit codes."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

from hark.cli import params
from hark.cli.output import FAILED, USAGE, Failure, complain
from hark.cli.remote import Server
from hark.errors import HarkError, InvalidSetting
from hark.settings import load

C = TypeVar("C", bound=Callable[..., None])

_TYPE = re.compile(r" <[^<>]*>$")
_DESCRIBED_DEFAULT = re.compile(r"default: \(([^()]*)\)")


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


main = make_app(
    "Hark is a durable message queue. Start a server with `hark serve`.",
    "hark serve",
    """hark push orders '{"id": 17}'""",
    "hark pop orders --wait",
    "hark queue list --json",
    "",
    "Commands use the server at --url or HARK_URL (http://127.0.0.1:6632).",
    "They send the API token in --token or HARK_TOKEN.",
    "Exit codes: 0 success, 1 rejected or failed, 2 invalid usage or settings,",
    "3 no message to pop.",
)


def command(
    app: typer.Typer, name: str, *lines: str, json: bool = True, settings: Collection[str] = ()
) -> Callable[[C], C]:
    """Register a command with examples in its help; its failures go to stderr.

    A parameter `server` becomes the options --url, --token and --ca-file, and --json if the command can print JSON.
    A parameter `loaded` becomes --config and the options of these settings.
    """

    def register(function: C) -> C:
        signature = inspect.signature(function, eval_str=True)
        parameters = {
            name: parameter.replace(kind=parameter.KEYWORD_ONLY) for name, parameter in signature.parameters.items()
        }
        needs_server = parameters.pop("server", None) is not None
        if needs_server:
            parameters |= _options(_SERVER_OPTIONS[: None if json else -1])
        needs_settings = parameters.pop("loaded", None) is not None
        flags = {setting.replace(".", "_"): setting for setting in settings}
        if needs_settings:
            annotations = {flag: params.of_setting(setting) for flag, setting in flags.items()}
            options = _options((flag, annotation, None) for flag, annotation in annotations.items())
            parameters = options | parameters | _options([("config", params.Config, None)])

        @functools.wraps(function)
        def run(**given: Any) -> None:
            if needs_server:
                token, ca_file = (((given.pop(option) or "").strip() or None) for option in ("token", "ca_file"))
                given["server"] = Server(given.pop("url"), token, ca_file, given.pop("as_json", False))
            try:
                if needs_settings:
                    chosen = {setting: given.pop(flag) for flag, setting in flags.items()}
                    config = given["config"] if "config" in signature.parameters else given.pop("config")
                    given["loaded"] = load(chosen, os.environ, config)
                function(**given)
                return
            except Failure as failure:
                text, exit_code = str(failure), failure.exit_code
            except HarkError as error:
                text = f"{error.text} ({error.code})"
                exit_code = USAGE if isinstance(error, InvalidSetting) else FAILED
            except UnicodeEncodeError as error:
                if error.encoding != "utf-8":  # text that cannot be printed, unlike arguments that cannot be sent
                    raise
                text, exit_code = "an argument is not valid UTF-8; correct its encoding", USAGE
            complain(text)
            raise typer.Exit(exit_code)

        run.__annotations__ = {option.name: option.annotation for option in parameters.values()}
        run.__signature__ = signature.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]  # functions have it, and typer reads it
        app.command(name, cls=PlainCommand, epilog=examples(*lines))(run)
        return function

    return register


def _options(described: Iterable[tuple[str, Any, object]]) -> dict[str, inspect.Parameter]:
    """Make parameters from their names, types and defaults."""
    return {
        name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, annotation, default in described
    }


_SERVER_OPTIONS = (
    ("url", params.Url, params.DEFAULT_URL),
    ("token", params.Token, None),
    ("ca_file", params.CaFile, None),
    ("as_json", params.Json, False),
)
