"""The engine protocol: what every store of Hark must do, verb by verb, and what each verb guarantees.

Rules that hold for all verbs:

- A verb takes a batch and commits it once. It answers each item on its own, by position: a refused item never
  disturbs its neighbours. An item that can't be judged at all is answered with a `HarkError` in its place.
- When a verb returns, its effect is on stable storage, except where it says otherwise (leases).
- The time is the engine's clock, given at construction, as are ids; nothing sleeps.
- What is due is applied first: a verb never sees a lease that has expired, nor a delay that is over, as pending.
- When the store itself fails the verb raises `EngineFailure`, and nothing of the batch happened. With the code
  `outcome_unknown` the way to the store broke in the middle: it happened or not, and nobody here can say.
- Hints go to the listener on the event loop after the commit that caused them, when what they tell of can be popped.
  A pop that found nothing because a change was not done yet is answered before the hint of that change, or looks
  again. `HintBook` lists what each verb tells.

The rule numbers are those of `docs/rules.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from hark.errors import HarkError
from hark.model import (
    BrowseFrom,
    CancelOutcome,
    Census,
    Collected,
    DeadLetterFilter,
    DeadLetters,
    Expired,
    Explain,
    Facts,
    GroupDeletion,
    GroupStats,
    Hint,
    Key,
    KeyEntry,
    KeyNews,
    KeyRange,
    KeyStats,
    KeyWrite,
    KeyWritten,
    LeaseFilter,
    Leases,
    Limits,
    MessageFilter,
    MessageView,
    NewMessage,
    NewTrace,
    PartitionStats,
    PopRequest,
    PopResult,
    Position,
    PushOutcome,
    QueueFilter,
    QueueInfo,
    QueuePage,
    QueueSpec,
    Read,
    ReadResult,
    Renewal,
    RenewOutcome,
    Seek,
    SeekOutcome,
    Settlement,
    SettleOutcome,
    Survey,
    Trace,
    TraceName,
    TrackStats,
    Transaction,
    TransactionOutcome,
)

T = TypeVar("T")
Answers = list[T | HarkError]
Listener = Callable[[Sequence[Hint]], None]
KeyListener = Callable[[KeyNews], None]


def ignore_keys(news: KeyNews) -> None:
    """What is told of keys when nobody watches them."""


class KeyValueEngine(Protocol):
    """The key-value half of a store (rule 25).

    It shares the transactions of the queue: a dead letter and the values under its keys are one commit, a `KeyWrite`
    may carry messages, and a `Transaction` a `KeyWrite`. An entry whose time is over is not there, removed or not.
    After the commit of whatever changed keys (also of a dead letter) the key listener is told which.
    """

    async def read_keys(self, keys: Sequence[Key]) -> list[KeyEntry | None]:
        """The entries of these keys; None where there is none, or where it has expired."""

    async def list_keys(self, ranges: Sequence[KeyRange]) -> list[list[KeyEntry]]:
        """Entries below prefixes, in the order of their keys; the cost depends on what is returned."""

    async def count_keys(self, prefix: Key) -> int:
        """How many entries are below a prefix."""

    async def write_keys(self, requests: Sequence[KeyWrite]) -> Answers[KeyWritten]:
        """Apply each request whole or not at all, if all its checks hold; the mutations in their order.

        One new version for all that a request writes; versions never repeat. A mutation that does not fit what is
        stored (a sum of something that is not a number) is refused with `Conflict`, code `value_mismatch`, and the text
        names `mutations[i]`. Its messages are pushed with it: one that is refused (queue full) refuses the request with
        the error of its code, a duplicate is a success.
        """

    async def sweep_keys(self, limit: int = 1000) -> int:
        """Remove entries whose time is over, at most `limit`; how many. Hygiene: nobody sees them anyway."""

    async def key_stats(self) -> KeyStats:
        """How many entries there are, and how many bytes of keys and values; may be a little old."""


class Engine(KeyValueEngine, Protocol):
    """A store with the rules of the queue."""

    @property
    def shared(self) -> bool:
        """Whether other servers work on the same store.

        Then hints tell of what this server did, not of all that happened: whoever waits must also look now and then.
        And what was read once, such as flags, may have been changed by another server since.
        """

    @property
    def follows(self) -> bool:
        """Whether it reads all that other servers on the store do, and hints and key news tell of that too.

        Then nobody needs to look for himself. And it commits all calls that wait together: the more of them it has at
        a time, the better.
        """

    async def start(self, listener: Listener, key_listener: KeyListener = ignore_keys) -> None:
        """Open the store; raises `StoreUnusable` rather than start on something it can't trust."""

    async def close(self) -> None:
        """Finish what was accepted and let go of the store."""

    async def ping(self) -> None:
        """Raise unless the store can be reached now."""

    async def store_metrics(self) -> dict[str, float]:
        """Numbers about the store itself, by names that are the engine's own; cheap enough to be asked for often."""

    # Messages ----------------------------------------------------------------------------------------------

    async def push(self, requests: Sequence[Sequence[NewMessage]]) -> Answers[list[PushOutcome]]:
        """Append messages (rules 1-7).

        Makes queues and partitions that are missing. Offsets are dense and become visible in order. A
        transaction id that is retained in the partition answers `duplicate` with the first message's id. A full
        queue answers `failed` with code `queue_full`. A message whose `sealed` contradicts the queue's
        encryption answers `failed` with code `sealing_mismatch`: refresh the options and push again.
        """

    async def pop(self, requests: Sequence[PopRequest]) -> Answers[PopResult]:
        """Lease messages (rules 8-11, 20), one lease per request.

        In a shared group the lease is on each message by itself: any number of requests take from one partition, in the
        order priority, time of availability, offset; what they hold is settled in any order, and what expires costs
        each message an attempt. `max_in_flight` and `rate_limit` of queue and group are enforced here, over all
        servers: a request gets what is left of them, or nothing, with the reason `max_in_flight` or `rate_limited`.

        A lease need not survive a crash. With `auto_ack` the messages are settled, durably, before the answer.
        The first contact of a group with a queue is durable before the answer, even when that is empty.
        """

    async def settle(self, requests: Sequence[Sequence[Settlement]]) -> Answers[list[SettleOutcome]]:
        """Complete, fail, retry or dead-letter (rules 12-15).

        The items of one request are judged by the leases as they stood before it. Refusals: `not_found`,
        `lease_expired`, `lease_invalid`, `not_leased`, `dead_lettered`. `completed` of what is completed already is a
        success, also when the message has been removed since.
        """

    async def transact(self, requests: Sequence[Transaction]) -> Answers[TransactionOutcome]:
        """Apply each transaction whole or not at all (rule 22). A duplicate push is a success."""

    async def renew(self, requests: Sequence[Renewal]) -> Answers[RenewOutcome]:
        """Extend leases, each over all partitions that share it (rule 17). Not durable, as leases are not."""

    async def lease_ends(self, lease_ids: Sequence[str]) -> list[int | None]:
        """When these leases end as things are now; None: over, or never was."""

    async def release(self, lease_ids: Sequence[str]) -> None:
        """Give back what a consumer never received; uncounted (rule 17). Unknown leases are ignored."""

    async def expire(self, limit: int = 1000) -> Expired:
        """Apply what is due among leases, stamped with the time it was due; idempotent (rule 16)."""

    async def collect(self, limit: int = 1000) -> Collected:
        """One bounded step of retention (rule 23)."""

    async def read(self, requests: Sequence[Read]) -> Answers[ReadResult]:
        """Messages of partitions from offsets on, in offset order, for those who take nothing.

        Every stored message is there, whatever groups have done with it: settled, leased, delayed or past its time to
        live, until it is removed; but not what was requeued for one group only (rule 19). Nothing is seen before all
        that has lower offsets is (rule 3), so whoever goes on from `next_offset` gets each message once. Offsets
        without a message are stepped over. Changes nothing: no group is made, nothing counts as seen or delivered. An
        answer ends at `limit` stored messages or about 1 MiB; it may hold fewer, even none, and have `more`. A queue or
        partition that does not exist has no messages.
        """

    async def positions(
        self, queue: str, start: BrowseFrom, partition: str | None = None, touched_since: int | None = None
    ) -> list[Position]:
        """Where a browser begins to read, in each partition of a queue or in the one named; [] if there is none.

        With a time it is the first message created after it. `touched_since`: only partitions that may have got
        messages since that time, as far as that is cheap to tell; some others may be among them.
        """

    async def cancel(self, message_ids: Sequence[str]) -> list[CancelOutcome]:
        """Remove messages that nobody has been given yet, delayed or not.

        `leased`: some group holds it or has used attempts of it; `settled`: some group is done with it.
        """

    async def delete_messages(self, message_ids: Sequence[str]) -> list[bool]:
        """Remove messages, leased or not; consumers step over them. False: there was none."""

    # Queues ------------------------------------------------------------------------------------------------

    async def configure(self, specs: Sequence[QueueSpec]) -> Answers[QueueInfo]:
        """Make queues, or replace all options of those that exist; also makes the partition `Default`."""

    async def make_queues(self, specs: Sequence[QueueSpec]) -> None:
        """Make those of these queues that do not exist; the others stay as they are."""

    async def delete_queues(self, names: Sequence[str]) -> list[bool]:
        """Remove queues with everything in them, groups included. False: there was none."""

    async def purge(self, queue: str, group: str | None = None) -> int:
        """Remove a queue's messages, leased ones too; or, for one group, settle all that it has open."""

    async def pause(self, queue: str, group: str | None, paused: bool) -> bool:
        """Stop or resume deliveries of a queue, or of one group of it. False: there is no such thing."""

    async def queue_infos(self, names: Sequence[str] | None = None) -> list[QueueInfo]:
        """The named queues that exist, or all of them."""

    async def queue_stats(self, where: QueueFilter) -> QueuePage:
        """A page of queues with counts; its cost is that of the queues on it."""

    async def survey(self, after: tuple[int, str] = (0, ""), limit: int = 1000) -> Survey:
        """One step of a look at all partitions, at most `limit` of them: what is stored and what is open in them.

        As this server has it: nothing that is due is applied first, and nothing is asked for that costs money.
        """

    async def census(self) -> Census:
        """How many queues, dead letters and messages on leases there are; as this server has it, like `survey`."""

    async def partition_stats(
        self, queue: str, search: str | None = None, limit: int = 1000, offset: int = 0
    ) -> list[PartitionStats]:
        """Partitions of a queue by name, a page of them."""

    # Groups ------------------------------------------------------------------------------------------------

    async def seek(self, requests: Sequence[Seek]) -> Answers[SeekOutcome]:
        """Move cursors (rule 21); open leases of the group are void there."""

    async def delete_group(self, group: str, queue: str | None, forget_subscription: bool) -> GroupDeletion:
        """Drop a group's cursors in one queue or all, and its subscription if asked."""

    async def limit_group(self, queue: str, group: str, limits: Limits) -> bool:
        """Bound what one group of a queue may take, from now on. False: there is no such group."""

    async def resubscribe(self, group: str, since: int) -> int:
        """Change the stored start of a group in all its queues; existing cursors stay. How many there were."""

    async def group_stats(self, group: str | None = None, queue: str | None = None) -> list[GroupStats]:
        """Groups, one entry per (group, queue)."""

    async def track_stats(
        self,
        group: str | None = None,
        queue: str | None = None,
        min_lag_seconds: int = 0,
        limit: int = 1000,
        partitions: Sequence[str] | None = None,
    ) -> list[TrackStats]:
        """Places of groups in partitions, or in those of these names.

        With `min_lag_seconds`, those whose oldest message waits that long.
        """

    # Dead letters ------------------------------------------------------------------------------------------

    async def dead_letters(self, where: DeadLetterFilter) -> DeadLetters:
        """A page of dead letters."""

    async def requeue(self, ids: Sequence[str]) -> Answers[str]:
        """Put dead letters back in front of their partition for their group only; the new message ids (rule 19)."""

    async def delete_dead_letters(self, where: DeadLetterFilter) -> int:
        """Remove dead letters (limit and offset do not apply); how many."""

    # Looking -----------------------------------------------------------------------------------------------

    async def messages(self, where: MessageFilter) -> list[MessageView]:
        """Messages, newest first, without payloads."""

    async def message(self, partition_id: str, transaction_id: str) -> MessageView | None:
        """One message, by transaction id or message id, with its payload."""

    async def trace(self, traces: Sequence[NewTrace]) -> Answers[str]:
        """Record events about messages; their ids. `NotFound` where there is no such message."""

    async def traces(
        self,
        partition_id: str | None = None,
        transaction_id: str | None = None,
        name: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[list[Trace], int]:
        """Events of one message, oldest first, or of one name, newest first; and how many there are in all."""

    async def trace_names(self, limit: int = 50, offset: int = 0) -> tuple[list[TraceName], int]:
        """Names that events were recorded under, and how many there are."""

    async def explain(self, requests: Sequence[Explain]) -> Answers[Facts]:
        """What is known of messages, for those who ask why they were not delivered; changes nothing.

        What is due is applied first (rule 16). A message that was removed is explained as far as something is known of
        it; `NotFound`, code `message_not_found`, for an id that never was a message's, or whose queue is gone. The cost
        does not depend on how many messages there are.
        """

    async def leases(self, where: LeaseFilter) -> Leases:
        """A page of the live leases, one entry for each partition that a lease holds messages of.

        Leases that gave their partition back with a failure or a retry (rule 14) hold nobody up: they are not here.
        """

    async def queues_of(self, ids: Sequence[str]) -> list[str | None]:
        """The queues that partitions, or the partitions of messages, are in; None: there is none. Cheap."""

    # Other servers -----------------------------------------------------------------------------------------

    def hear(self, hints: Sequence[Hint]) -> list[Hint]:
        """Believe what another server on the same store said that it did, and answer whom to tell here; never raises.

        The answer has the form of the hints that this server's own verbs give. [] where nobody shares the store.
        """

    async def peer_secret(self) -> bytes:
        """32 random bytes that all servers of the store share, made when first asked for."""

    # The server's own notes --------------------------------------------------------------------------------

    async def read_flags(self) -> dict[str, bool]:
        """Switches that outlive a restart, such as maintenance."""

    async def write_flag(self, name: str, value: bool) -> None:
        """Set such a switch."""
