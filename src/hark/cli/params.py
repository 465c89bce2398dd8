"""Arguments and options that several commands have; the help text of each is written once, here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from hark.settings import SETTINGS

DEFAULT_URL = "http://127.0.0.1:6632"


def not_empty(value: str | None) -> str | None:
    """Reject an empty name: in a path or a filter it would select something else."""
    if value is not None and not value:
        raise typer.BadParameter("must not be empty")
    return value


def option(
    metavar: str,
    text: str,
    *names: str,
    least: float | None = None,
    most: float | None = None,
    default: str | bool = True,
    empty: bool = True,
) -> Any:
    """Describe an option with a value; `default` is the text for a default that the server or a rule decides."""
    callback = None if empty else not_empty
    return typer.Option(
        *names, metavar=metavar, help=text, min=least, max=most, show_default=default, callback=callback
    )


def flag(text: str, *names: str) -> Any:
    """Describe an option without a value."""
    return typer.Option(*names, help=text)


def argument(metavar: str, text: str, *, default: str | bool = False, empty: bool = True) -> Any:
    """Describe an argument."""
    return typer.Argument(metavar=metavar, help=text, show_default=default, callback=None if empty else not_empty)


Url = Annotated[str, typer.Option("--url", envvar="HARK_URL", metavar="URL", help="Server URL.")]
Token = Annotated[str | None, typer.Option("--token", envvar="HARK_TOKEN", metavar="TOKEN", help="API token.")]
CaFile = Annotated[
    str | None,
    typer.Option("--ca-file", envvar="HARK_CA_FILE", metavar="FILE", help="CA certificates to trust (PEM), for https."),
]
Json = Annotated[bool, flag("Print JSON instead of text.", "--json")]
Yes = Annotated[bool, flag("Skip the confirmation prompt.", "--yes", "-y")]
QueueName = Annotated[str, argument("QUEUE", "Name of the queue.", empty=False)]
OptionalQueueName = Annotated[str | None, argument("QUEUE", "Only this queue.", empty=False, default="all queues")]
GroupName = Annotated[str, argument("GROUP", "Name of the consumer group.", empty=False)]
MessageId = Annotated[str, argument("MESSAGE_ID", "ID of the message.")]
MessageOrPartitionId = Annotated[str, argument("ID", "Message ID; or partition ID, if TRANSACTION_ID is given.")]
TransactionId = Annotated[str | None, argument("TRANSACTION_ID", "Transaction ID of the message.")]
GroupOption = Annotated[str | None, option("GROUP", "Consumer group.", empty=False, default="the default group")]
OnlyGroup = Annotated[str | None, option("GROUP", "Only this consumer group.", empty=False, default="all groups")]
OnlyQueue = Annotated[str | None, option("QUEUE", "Only this queue.", empty=False, default="all queues")]
OnlyPartition = Annotated[
    str | None, option("PARTITION", "Only this partition.", empty=False, default="all partitions")
]
Limit = Annotated[int, option("N", "Maximum number of results.", least=1)]
Offset = Annotated[int, option("N", "Number of results to skip.", least=0)]
Since = Annotated[str | None, option("TIME", "Start of the time range (ISO 8601).", "--from", empty=False)]
Until = Annotated[str | None, option("TIME", "End of the time range (ISO 8601).", "--to", empty=False)]
Config = Annotated[Path | None, option("FILE", "Settings file.", default="HARK_CONFIG, otherwise ./hark.toml")]


def of_setting(name: str) -> Any:
    """Return the type of the option that sets a setting, with its help text; `load` checks the value."""
    setting = SETTINGS[name]
    kind, *_ = get_args(setting.type)
    option = typer.Option(
        setting.flag,
        metavar=None if setting.choices else name.replace(".", "_").rpartition("_")[2].upper(),
        help=setting.meaning,
        show_default=str(setting.default) if setting.default else False,
        case_sensitive=False,
    )
    return Annotated[kind | None, option]
