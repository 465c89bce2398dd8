"""The identity of a request: a subject, a role, and permitted queues."""

from __future__ import annotations

import fnmatch
import re
from functools import cached_property

import msgspec

from hark.api.operations import Role
from hark.errors import Forbidden

ALL_QUEUES = ("*",)
"""The patterns that permit every queue."""


class Identity(msgspec.Struct, frozen=True, dict=True):
    """The subject and the permissions of a request."""

    subject: str
    """The name of the token, or the `sub` of the JWT; empty when authentication is off."""
    role: Role
    queues: tuple[str, ...] = ALL_QUEUES
    """Patterns of permitted queues: `*` matches any characters, `?` matches one."""

    @cached_property
    def restricted(self) -> bool:
        """Whether only some queues are permitted."""
        return "*" not in self.queues

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # Without patterns nothing matches: an empty list means no queue, not every queue.
        return re.compile("|".join(map(fnmatch.translate, self.queues)) or r"(?!)")

    def may_use(self, queue: str) -> bool:
        """Return whether the queue is permitted. Patterns are case-sensitive."""
        return not self.restricted or self._pattern.match(queue) is not None

    def may_label(self, namespace: str) -> bool:
        """Return whether one of the patterns covers a namespace whole, with every queue that it can have (rule 27)."""
        return not self.restricted or any(_covers(pattern, f"{namespace}.") for pattern in self.queues)

    def check_queue(self, queue: str) -> None:
        """Raise `Forbidden` with the code `queue_not_allowed` if the queue is not permitted."""
        if not self.may_use(queue):
            raise Forbidden(
                f"this token does not permit the queue {queue!r}; use a token whose queue patterns include it",
                code="queue_not_allowed",
            )


def _covers(pattern: str, prefix: str) -> bool:
    """Return whether a pattern matches every name with this prefix."""
    if not pattern.endswith("*"):
        return False
    return any(fnmatch.fnmatchcase(prefix[:length], pattern[:-1]) for length in range(len(prefix) + 1))


UNRESTRICTED = Identity("", Role.ADMIN)
"""The identity of every request while authentication is off."""
ANONYMOUS = Identity("", Role.READ_ONLY, ())
"""The identity of requests that are not identified, such as those to public routes. It has no queues."""
