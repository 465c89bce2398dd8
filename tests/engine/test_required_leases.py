"""Rule 22: leases that a transaction requires, where transactions of one call follow each other."""

from __future__ import annotations

import pytest

from hark.engine.api import Engine
from hark.model import GroupMode, Transaction

from .driver import Driver, given, message, settlement


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_rule_22_a_lease_that_an_earlier_transaction_of_the_call_ended_aborts(
    q: Driver, engine: Engine, mode: GroupMode
) -> None:
    await q.push("orders", "p1", 1)
    [leased] = await q.pop("orders", group="workers", group_mode=mode)
    last = Transaction([settlement(leased)], [leased.lease])
    answers = await engine.transact([last, Transaction([message("bills", "p1", 2)], [leased.lease])])
    assert [given(one).success for one in answers] == [True, False]
    assert await q.pop("bills") == []
