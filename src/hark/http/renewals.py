"""Lease renewals: bounds, and the renewal of several leases."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from hark.broker import Broker
from hark.errors import InvalidInput
from hark.http.checks import check_int, check_text, format_time_ms
from hark.model import Renewal, RenewOutcome

if TYPE_CHECKING:
    from hark.http.answers.messages import ExtendedLease

DEFAULT_SECONDS = 60
MAX_SECONDS = 10 * 365 * 86_400


class ExtendBody(msgspec.Struct):
    """The length of the renewal. The body can be empty."""

    seconds: int | None = None


class RenewalAnswer(msgspec.Struct, rename="camel", omit_defaults=True):
    """The result of one lease renewal."""

    lease_id: str
    success: bool
    expires_at: str | None
    error: str | None = None
    code: str | None = None


def renewal_seconds(seconds: int | None) -> int:
    """Return the checked length of a renewal, in seconds from now."""
    return DEFAULT_SECONDS if seconds is None else check_int(seconds, "seconds", 1, MAX_SECONDS)


async def renew_all(broker: Broker, lease_ids: Sequence[str], seconds: int | None, most: int) -> list[RenewalAnswer]:
    """Renew several leases in shared calls to the store. The results have the order of the leases."""
    if len(lease_ids) > most:
        raise InvalidInput(
            f"leaseIds: at most {most} in one request (setting limits.max_batch), got {len(lease_ids)}; "
            "send smaller batches",
            code="batch_too_large",
        )
    wanted = renewal_seconds(seconds)
    for index, lease_id in enumerate(lease_ids):
        check_text(lease_id, f"leaseIds[{index}]")
    outcomes = await asyncio.gather(*(broker.renew(Renewal(lease_id, wanted)) for lease_id in lease_ids))
    return [_answer(*pair) for pair in zip(lease_ids, outcomes, strict=True)]


def _answer(lease_id: str, outcome: RenewOutcome) -> RenewalAnswer:
    expires_at = None if outcome.expires_at is None else format_time_ms(outcome.expires_at)
    return RenewalAnswer(lease_id, outcome.success, expires_at, outcome.error, outcome.code)


def extended_lease(lease_id: str, outcome: RenewOutcome) -> ExtendedLease:
    """Return the result of the renewal of one lease. The official clients read the time under different names."""
    expires = None if outcome.expires_at is None else format_time_ms(outcome.expires_at)
    answer: ExtendedLease = {
        "index": 0,
        "leaseId": lease_id,
        "success": outcome.success,
        "renewed": int(outcome.success),
        "error": outcome.error,
        "expiresAt": expires,
        "newExpiresAt": expires,
        "lease_expires_at": expires,
    }
    if not outcome.success:
        answer["code"] = outcome.code
    return answer
