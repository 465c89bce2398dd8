"""How the state machine compares an answer of an engine with that of the model."""

from __future__ import annotations

from dataclasses import dataclass

from hark.model import DeadLetter, NewMessage, SettleOutcome

from .driver import LeasedMessage, message
from .model_nouns import Answer, Message, Push, SettleDecision


class Disagreement(AssertionError):
    """The engine and the model answer differently."""


def agree(what: str, engine: object, model: object) -> None:
    """Insist that both say the same."""
    if engine != model:
        raise Disagreement(f"{what}: the engine says {engine!r}, the rules say {model!r}")


@dataclass
class InHand:
    """A delivery as the engine and as the model know it; maybe long stale."""

    leased: LeasedMessage
    message: Message
    lease: int

    def __repr__(self) -> str:
        """Short: what is held, for whom, under which lease of the model."""
        return f"{self.message!r} of {self.leased.group} under lease {self.lease}"


def to_message(new: Push) -> NewMessage:
    """A push as the engine takes it."""
    return message(
        new.queue,
        new.partition,
        new.payload,
        transaction_id=new.key,
        priority=new.priority,
        delay_ms=new.delay_ms,
        backoff_ms=new.backoff_ms,
    )


def engine_view(letter: DeadLetter) -> tuple[object, ...]:
    """A dead letter in comparable form; the text of an expiry is the engine's own."""
    error = letter.error if letter.error.startswith("error ") else ""
    return (letter.message_id, letter.group, letter.attempts, letter.failed_at, error)


def compare_settlement(
    decision: SettleDecision, outcome: SettleOutcome, answer: Answer, leases: dict[str, int]
) -> None:
    """Insist on what the rules promise about a settlement."""
    if answer.success is None:
        return
    agree(f"success of {decision} ({outcome.code})", outcome.success, answer.success)
    if not answer.success and outcome.code not in answer.codes:
        agree(f"code of {decision}", outcome.code, answer.codes)
    agree(f"death by {decision}", outcome.dead_lettered, answer.dead_lettered)
    if answer.lease_released is not None:
        agree(f"release by {decision}", outcome.lease_released, answer.lease_released)
    leased_under = None if outcome.lease_id is None else leases.get(outcome.lease_id, outcome.lease_id)
    agree(f"lease that {decision} was held under", leased_under, answer.lease)
