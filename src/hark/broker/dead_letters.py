"""Many dead letters at a time: which ones are meant, and in which order they go back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from hark.engine.api import Engine
from hark.errors import Conflict, HarkError, NotFound
from hark.model import DeadLetter, DeadLetterFilter

_PAGE = 1000


async def find_each(engine: Engine, ids: Sequence[str], may_use: Callable[[str], bool]) -> list[DeadLetter | HarkError]:
    """The dead letter that each id means, its own or that of its message, without payload; else what is wrong.

    Those of queues that may not be used are as if they were not there.
    """
    found: dict[str, list[DeadLetter]] = {}
    offset = 0
    while True:
        # A message may have died in several groups, so that there may be more of them than ids.
        page = await engine.dead_letters(DeadLetterFilter(ids=ids, payloads=False, limit=_PAGE, offset=offset))
        for letter in page.items:
            if not may_use(letter.queue):
                continue
            for name in (letter.id, letter.message_id):
                found.setdefault(name, []).append(letter)
        offset += _PAGE
        if offset >= page.total:
            return [_the_only(found.get(one, ())) for one in ids]


def _the_only(letters: Sequence[DeadLetter]) -> DeadLetter | HarkError:
    if not letters:
        return NotFound("Dead letter not found", code="dead_letter_not_found")
    if len(letters) > 1:
        return Conflict("this message is a dead letter in several groups; pass its deadLetterId", code="ambiguous")
    return letters[0]


async def find_oldest(engine: Engine, where: DeadLetterFilter, most: int) -> tuple[list[DeadLetter], int]:
    """Of those that match the ones that failed first, oldest first and without payloads; and how many are left.

    Requeued in this order they are delivered in the order in which they failed.
    """
    look = msgspec.structs.replace(where, payloads=False, limit=1, offset=0)
    total = (await engine.dead_letters(look)).total
    page = await engine.dead_letters(msgspec.structs.replace(look, limit=most, offset=max(0, total - most)))
    return list(reversed(page.items)), max(0, page.total - len(page.items))
