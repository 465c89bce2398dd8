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


Url = Annotated[str, typer.Option("--url", envvar="HARK_URL", metavar="URL", help="Server URL.")]
Token = Annotated[str | None, typer.Option("--token", envvar="HARK_TOKEN", metavar="TOKEN", help="API token.")]
CaFile = Annotated[
    str | None,
    typer.Option("--ca-file", envvar="HARK_CA_FILE", metavar="FILE", help="CA certificates to trust (PEM), for https."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")]
QueueName = Annotated[
    str, typer.Argument(metavar="QUEUE", callback=not_empty, help="Name of the queue.", show_default=False)
]
OptionalQueueName = Annotated[
    str | None, typer.Argument(metavar="QUEUE", callback=not_empty, help="Only this queue.", show_default="all queues")
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
    str | None, typer.Argument(metavar="TRANSACTION_ID", help="Transaction ID of the message.", show_default=False)
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
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings file.", show_default="HARK_CONFIG, otherwise ./hark.toml"),
]


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
