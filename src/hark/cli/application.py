"""Finds the worker that `hark work module:attribute` names, or reports why it cannot."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hark.cli.command import USAGE, Failure

if TYPE_CHECKING:
    from hark.worker.worker import Worker

DEFAULT_ATTRIBUTE = "worker"


def find_worker(place: str, directory: Path) -> Worker:
    """Import `module:attribute` from a directory; the attribute is a worker, or a function that returns one."""
    name, _, attribute = place.partition(":")
    names = (attribute or DEFAULT_ATTRIBUTE).split(".")
    if not name or not all(part.isidentifier() for part in (*name.split("."), *names)):
        raise Failure(f"{place!r} does not name a worker; use MODULE:ATTRIBUTE, such as app:worker", exit_code=USAGE)
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    return _worker_of(place, _attribute_of(name, names, directory))


def _attribute_of(name: str, names: list[str], directory: Path) -> object:
    """Return the object; an error in the module itself is shown with its traceback."""
    if not _exists(name):
        raise Failure(f"module {name!r} not found{_meant(name, directory)}", exit_code=USAGE)
    try:
        found: object = import_module(name)
    except Exception as error:
        raise _not_imported(name, error) from error
    for depth, attribute in enumerate(names):
        if not hasattr(found, attribute):
            where = ".".join((name, *names[:depth]))
            hint = _near(attribute, list(vars(found))) or "; check the name after the colon"
            raise Failure(f"{where!r} has no attribute {attribute!r}{hint}", exit_code=USAGE)
        found = getattr(found, attribute)
    return found


def _worker_of(place: str, found: object) -> Worker:
    from hark.worker.worker import Worker

    if not isinstance(found, Worker) and callable(found) and not isinstance(found, type):
        make: Callable[[], object] = found
        try:
            found = make()
        except Exception as error:
            raise Failure(f"the function {place!r}, which should return a worker, failed:\n{_trace(error)}") from error
    if not isinstance(found, Worker):
        kind = type(found).__name__ if not isinstance(found, type) else f"the class {found.__name__}"
        raise Failure(
            f"{place!r} is {_article(kind)}; expected a hark.Worker, or a function that returns one", exit_code=USAGE
        )
    return found


def _exists(name: str) -> bool:
    """Tell whether a module exists; this imports its parent packages, which can fail, too."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return False
        raise _not_imported(name, error) from error
    except Exception as error:
        raise _not_imported(name, error) from error


def _not_imported(name: str, error: BaseException) -> Failure:
    return Failure(f"cannot import module {name!r}:\n{_trace(error)}")


def _meant(name: str, directory: Path) -> str:
    """Suggest a module that exists in the directory."""
    if name.endswith(".py") or (directory / name.replace(".", "/")).with_suffix(".py").exists():
        return f"; write the name without .py, as in an import statement: {name.removesuffix('.py')}"
    there = [path.stem for path in directory.glob("*.py")]
    return (
        _near(name, there) or f" in {directory} or on the Python path; run the command in the application's directory"
    )


def _near(name: str, there: list[str]) -> str:
    near = get_close_matches(name, [one for one in there if not one.startswith("__")], n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _article(kind: str) -> str:
    return kind if kind.startswith("the ") else f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def _trace(error: BaseException) -> str:
    """Format the traceback from the application's own code on, without the frames of the import."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def _is_ours(filename: str) -> bool:
    return filename == __file__ or "importlib" in filename
