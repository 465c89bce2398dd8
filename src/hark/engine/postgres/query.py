"""What queries that only look have in common."""

from __future__ import annotations

NOW = "(select hark.time_v1($1))"
"""The time of the call, worked out once. The first parameter is the time given; null: the database's own."""


class Where:
    """Conditions of a query, with all its parameters; what does not matter is left out, so that plans are made for
    what is asked."""

    def __init__(self, *args: object) -> None:
        self.args = list(args)
        """Parameters, first those that the query has anyhow."""
        self._conditions = ["true"]

    def __str__(self) -> str:
        """The conditions in SQL."""
        return " and ".join(self._conditions)

    def also(self, condition: str, *values: object) -> None:
        """Insist on a condition, which says `{}` for each of its values; if the first is None it does not matter."""
        if values[0] is None:
            return
        if not can_be_stored(*values):
            self.nothing()
            return
        numbers = range(len(self.args) + 1, len(self.args) + len(values) + 1)
        self.args += values
        self._conditions.append(condition.format(*(f"${number}" for number in numbers)))

    def page(self, limit: int, offset: int) -> tuple[str, list[object]]:
        """The end of a query for some of the rows, and all its parameters."""
        count = len(self.args)
        return f"limit ${count + 1} offset ${count + 2}", [*self.args, limit, offset]

    def nothing(self) -> None:
        """Match no row."""
        self._conditions.append("false")


def can_be_stored(*values: object) -> bool:
    """Whether PostgreSQL can have such values at all; if not, nothing is equal to them."""
    return not any(isinstance(value, str) and "\0" in value for value in values)
