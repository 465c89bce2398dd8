"""Words for the tests of explain: why a message is where it is, for one group, as people are told."""

from __future__ import annotations

from hark.broker.explain import Circumstances, explain, explain_without_groups
from hark.model import Explain, Explanation, Facts, MessageFacts

from .driver import Driver, given


async def facts_of(q: Driver, message_id: str, group: str | None = None) -> Facts:
    """What the engine knows of a message."""
    [answer] = await q.engine.explain([Explain(message_id, group)])
    return given(answer)


async def message_of(q: Driver, message_id: str) -> MessageFacts:
    """What the engine knows of the message itself."""
    return (await facts_of(q, message_id)).message


async def why(q: Driver, message_id: str, group: str = "g", here: Circumstances | None = None) -> Explanation:
    """Why a message was not delivered to a group, or settled; by default one consumer waits."""
    facts = await facts_of(q, message_id, group)
    [known] = facts.groups
    return explain(facts, known, here or Circumstances(waiting=1))


async def why_all(q: Driver, message_id: str) -> dict[str | None, str]:
    """The reasons for all groups of the queue."""
    facts = await facts_of(q, message_id)
    explanations = [explain(facts, one, Circumstances(waiting=1)) for one in facts.groups] or [
        explain_without_groups(facts)
    ]
    return {one.group: one.reason for one in explanations}
