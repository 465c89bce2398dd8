"""`hark export` and `hark import`: copy a queue from one store to another as JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import typer

from hark.cli.bars import counting
from hark.cli.command import DEFAULT_URL, USAGE, Failure, QueueName, Url, command, complain, not_empty
from hark.cli.output import say
from hark.cli.remote import path, stream
from hark.model.export import EndLine, ErrorLine, ExportLine, MessageLine, QueueLine

_decode: Callable[[bytes], ExportLine] = msgspec.json.Decoder(ExportLine).decode
_PART = ".part"


def register_export(main: typer.Typer) -> None:
    """Add both commands at the top level."""
    command(main, "export", "hark export orders > orders.jsonl", "hark export orders --output orders.jsonl")(export)
    command(
        main,
        "import",
        "hark import orders.jsonl",
        "hark import orders.jsonl --queue orders-copy",
        "hark export orders | hark import - --url http://other:6632",
    )(import_)


def export(
    queue: QueueName,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="File to write.", show_default="standard output"),
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Export a queue as JSON lines.

    The export has the options of the queue, its consumer groups with their positions, and its messages. It does not
    have messages pushed during the export, dead letters, or messages requeued from dead letters.
    """
    with counting(f"Exporting {queue}", "messages") as bar, _written(output) as file:
        done, ended = 0, False
        total: int | None = None
        for line in lines(stream(url, path("resources", "queues", queue, "export"), query={})):
            match parse(line, "a line from the server"):
                case QueueLine(messages=total, dead_letters=dead):
                    if dead:
                        complain(f"warning: {dead} dead letters of queue {queue} are not exported")
                case MessageLine():
                    done += 1
                case ErrorLine(error=error, code=code):
                    raise Failure(error, code=code)
                case EndLine():
                    ended = True
                case _:
                    pass
            file.write(line + b"\n")
            bar.reach(done, total)
        if not ended:
            raise Failure(f"the export of queue {queue} ended early, after {done} messages; run the command again")
    if total is not None and done < total:
        left = f"{total - done} messages of queue {queue} are not exported"
        complain(f"warning: {left}: they were requeued from dead letters, or removed during the export")
    if output is not None:
        say(f"exported {done} messages of queue {queue} to {output}")


def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Export to read; - reads standard input.", show_default=False)
    ],
    queue: Annotated[
        str | None,
        typer.Option(
            callback=not_empty, metavar="QUEUE", help="Queue to import into.", show_default="the queue in FILE"
        ),
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Import a queue from an export.

    The command creates the queue and its consumer groups. A queue or group that already exists keeps its options and
    positions. If the import is interrupted, run it again: messages keep their transaction IDs, so there are no
    duplicates.
    """
    from hark.cli.importing import Importer

    with _opened(file) as source, counting(f"Importing {file}", "messages") as bar:
        importer = Importer(url, queue)
        for number, line in enumerate(source, 1):
            if line.strip():
                importer.take(parse(line, f"{file}, line {number}"))
                bar.reach(importer.done, importer.expected)
        importer.finish()
    for note in importer.notes:
        complain(note)
    say(importer.summary())


def lines(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Split a stream into lines."""
    rest = b""
    for part in parts:
        *complete, rest = (rest + part).split(b"\n")
        yield from complete
    if rest:
        yield rest


def parse(line: bytes, where: str) -> ExportLine:
    """Parse a line; `where` is for the error message."""
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Failure(
            f"{where} is not a line of an export: {error}; use a file that `hark export` wrote", exit_code=USAGE
        ) from None


@contextmanager
def _written(output: Path | None) -> Iterator[BinaryIO]:
    """Open the output; a file gets its name when it is complete."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = output.with_name(output.name + _PART)
    try:
        with part.open("wb") as file:
            yield file
        part.replace(output)
    except OSError as error:
        raise Failure(f"cannot write {output}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    try:
        with nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as source:
            yield source
    except OSError as error:
        raise Failure(f"cannot read {file}: {error.strerror}", exit_code=USAGE) from error
