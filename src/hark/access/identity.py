"""Who asks: a subject, a role, and the queues that it may use."""

from __future__ import annotations

import enum
import fnmatch
import re
from functools import cached_property

import msgspec

from hark.errors import Forbidden

ALL_QUEUES = ("*",)
"""The patterns of somebody who may use every queue."""


class Role(enum.IntEnum):
    """What somebody may do; each role may do all that the ones before it may."""

    READ_ONLY = 1
    READ_WRITE = 2
    ADMIN = 3

    @property
    def text(self) -> str:
        """The role as people write it, such as `read-write`."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def of(cls, text: str) -> Role | None:
        """The role that is written so, if it is one."""
        return _BY_TEXT.get(text)


_BY_TEXT = {role.text: role for role in Role}


class Identity(msgspec.Struct, frozen=True, dict=True):
    """Who asks, and what they may do."""

    subject: str
    """The name of the token, or the `sub` of the JWT; empty when authentication is off."""
    role: Role
    queues: tuple[str, ...] = ALL_QUEUES
    """Patterns of the queues that may be used: `*` stands for any characters, `?` for one."""

    @cached_property
    def restricted(self) -> bool:
        """Whether there are queues that may not be used."""
        return "*" not in self.queues

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # Without patterns nothing matches: an empty list means no queue, not every queue.
        return re.compile("|".join(map(fnmatch.translate, self.queues)) or r"(?!)")

    def may_use(self, queue: str) -> bool:
        """Whether a pattern matches the name of the queue, upper and lower case told apart."""
        return not self.restricted or self._pattern.match(queue) is not None

    def check_queue(self, queue: str) -> None:
        """Refuse a queue that may not be used; raises `Forbidden` with the code `queue_not_allowed`."""
        if not self.may_use(queue):
            raise Forbidden(
                f"this token may not use the queue {queue!r}; use one whose queues include it",
                code="queue_not_allowed",
            )


ANYBODY = Identity("", Role.ADMIN)
"""Who asks when authentication is off."""
