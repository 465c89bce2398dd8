"""`hark export` and `hark import`: queues as lines of JSON, from one store into another."""

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
        "hark import orders.jsonl --queue orders-copy --url http://other:6632",
        "hark export orders | hark import - --url http://other:6632",
    )(import_)


def export(
    queue: QueueName,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write; else to stdout.")
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Write a queue as lines of JSON: its options, its groups, where they stand, and its messages.

    What is pushed while it runs is not in it. Nor are dead letters, and messages that were requeued from them.
    """
    with counting(f"exporting {queue}", "messages") as bar, _written(output) as file:
        done, ended = 0, False
        total: int | None = None
        for line in lines(stream(url, path("resources", "queues", queue, "export"), query={})):
            match parse(line, "the server's line"):
                case QueueLine(messages=total, dead_letters=dead):
                    if dead:
                        complain(f"warning: {dead} dead letters of {queue} are not exported")
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
            raise Failure(f"the server stopped after {done} messages; try again")
    if total is not None and done < total:
        left = f"{total - done} messages of {queue} are not exported"
        complain(f"warning: {left}: they were requeued for one group and not removed yet, or removed meanwhile")
    if output is not None:
        say(f"exported {done} messages of {queue} to {output}")


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export; - reads stdin.", show_default=False)],
    queue: Annotated[
        str | None, typer.Option(callback=not_empty, help="The queue to import into; else the one in the file.")
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Read a queue from lines of JSON into a server.

    The queue and its groups are made if they are not there; those that are keep their options and their places. If it
    is cut short, run it again: messages keep their transaction ids, so that none comes twice.
    """
    from hark.cli.importing import Importer

    with _opened(file) as source, counting(f"importing {file}", "messages") as bar:
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
    """Cut a stream into lines."""
    rest = b""
    for part in parts:
        *complete, rest = (rest + part).split(b"\n")
        yield from complete
    if rest:
        yield rest


def parse(line: bytes, where: str) -> ExportLine:
    """Read a line; `where` is for the error."""
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Failure(f"{where} is not of an export: {error}", exit_code=USAGE) from None


@contextmanager
def _written(output: Path | None) -> Iterator[BinaryIO]:
    """Where to write; a file gets its name when it is whole."""
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
        raise Failure(f"{output} can't be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    try:
        with nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as source:
            yield source
    except OSError as error:
        raise Failure(f"{file} can't be read: {error.strerror}", exit_code=USAGE) from error
