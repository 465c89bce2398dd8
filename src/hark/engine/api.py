"""The engine protocol: the verbs that every store implements, and the guarantees of each verb.

Rules for all verbs:

- A verb takes a batch and commits it once. It answers each item separately, by position: a rejected item never
  affects other items. An item that cannot be processed at all is answered with a `HarkError` in its position.
- When a verb returns, its effect is on stable storage, unless its text says otherwise (leases).
- The engine's clock, given at construction, determines the time (see `Engine.ahead`). No verb sleeps.
- Due changes are applied first: no verb treats an expired lease as held, or a message as delayed after its due time.
- If the store fails, the verb raises `EngineFailure`, and the batch has no effect. With the code `outcome_unknown` the
  connection to the store was lost during the call, and the batch may or may not have taken effect.
- The listener receives hints on the event loop after the commit that caused them, when the messages can be popped. A
  pop that found nothing because a change was not yet committed returns before the hint of that change, or looks again.
  `HintBook` lists the hints of each verb.

The rule numbers refer to `docs/rules.md`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from hark import model
from hark.errors import HarkError

T = TypeVar("T")
Answers = Sequence[T | HarkError]
Listener = Callable[[Sequence[model.Hint]], None]
KeyListener = Callable[[model.KeyNotification], None]


def ignore_keys(notification: model.KeyNotification) -> None:
    """The key listener if no client watches keys."""


Seal = Callable[[Sequence[model.NewMessage]], Sequence[model.NewMessage]]
"""Encrypts the payloads of encrypted queues. Raises `HarkError` if this server cannot."""
NoteMoved = Callable[[Sequence[model.NewMessage], Sequence[model.PushOutcome]], None]
"""Counts messages that were moved."""


class Inbox(Protocol):
    """Messages that applications sent in their own transactions. Servers share the work, and move each exactly once."""

    def listening(self) -> AbstractAsyncContextManager[None]:
        """Learn of commits while the context lasts."""

    async def wait(self) -> None:
        """Return when there may be something to move, at the latest when it is time to look."""

    async def move(self, seal: Seal, note: NoteMoved) -> bool:
        """Move what is committed, in order. Messages that a queue refuses stay, and are tried again later.

        True if the encryption of a queue was changed: its messages wait until they are sealed accordingly.
        """


class KeyValueEngine(Protocol):
    """The key-value part of a store (rule 25).

    It shares the transactions of the queues: a dead letter and the values under its keys are one commit, a `KeyWrite`
    can contain messages, and a `Transaction` can contain a `KeyWrite`. An expired entry does not exist for any verb,
    even before it is removed. After every commit that changes keys, the key listener receives the changed keys.
    """

    async def read_keys(self, keys: Sequence[model.Key]) -> list[model.KeyEntry | None]:
        """The entries of these keys; None for a key without an entry or with an expired one."""

    async def list_keys(self, ranges: Sequence[model.KeyRange]) -> list[list[model.KeyEntry]]:
        """Entries below prefixes, in key order. The cost depends on the number of returned entries."""

    async def count_keys(self, prefix: model.Key) -> int:
        """The number of entries below a prefix."""

    async def write_keys(self, requests: Sequence[model.KeyWrite]) -> Answers[model.KeyWritten]:
        """Apply each request completely if all its checks hold, otherwise not at all. Mutations apply in order.

        All entries that a request writes get one new version; versions never repeat. A mutation that does not match
        the stored value (such as a sum with a text) rejects the request with `Conflict`, code `value_mismatch`, and the
        text names `mutations[i]`. The messages of a request are pushed in the same commit: a rejected message (queue
        full) rejects the request with the error of its code; a duplicate counts as a success.
        """

    async def sweep_keys(self, limit: int = 1000) -> int:
        """Remove at most `limit` expired entries. Returns their number. Expired entries are invisible in any case."""

    async def key_stats(self) -> model.KeyStats:
        """The number of entries, and the bytes of keys and values. The result can be up to a minute old."""


class Engine(KeyValueEngine, Protocol):
    """A store that implements the rules of queues."""

    @property
    def shared(self) -> bool:
        """Whether other servers can use the same store.

        If so, hints cover only the changes of this server, so waiting consumers must also poll. Values that were read
        once, such as flags, can be changed by another server.
        """

    @property
    def follows(self) -> bool:
        """Whether the engine follows all changes of other servers, so that its hints and key news include them.

        If so, waiting consumers need not poll. Such an engine commits all waiting calls together, so larger groups of
        calls are more efficient.
        """

    @property
    def ahead(self) -> int:
        """By how many microseconds all times of the engine are ahead of its clock, known after the start (rule 24).

        More than 0 if the clock was set back since the store was last used, and no other clock is authoritative.
        """

    @property
    def inbox(self) -> Inbox | None:
        """Where applications put messages in their own transactions, once the store is open; None if they cannot."""

    async def start(self, listener: Listener, key_listener: KeyListener = ignore_keys) -> None:
        """Open the store. Raises `StoreUnusable` if the store is damaged, locked or not a Hark store."""

    async def close(self) -> None:
        """Finish the accepted calls, then close the store."""

    async def ping(self) -> None:
        """Raise an error unless the store is available now."""

    async def store_metrics(self) -> dict[str, float]:
        """Metrics of the store, with engine-specific names. They are cheap to read."""

    # Messages ----------------------------------------------------------------------------------------------

    def push(self, requests: Sequence[Sequence[model.NewMessage]]) -> Awaitable[Answers[list[model.PushOutcome]]]:
        """Append messages (rules 1-7).

        Creates missing queues and partitions. Offsets have no gaps and become visible in order. A push with a
        transaction id that the partition still stores returns `duplicate` and the id of the first message. A push to a
        full queue returns `failed` with code `queue_full`. A message whose `sealed` contradicts the queue's encryption
        returns `failed` with code `sealing_mismatch`: read the options again and retry the push.
        """

    def pop(self, requests: Sequence[model.PopRequest]) -> Awaitable[Answers[model.PopResult]]:
        """Lease messages to a consumer (rules 8-11, 20), one lease per request.

        In a shared group each message has its own lease: any number of consumers can receive messages from one
        partition, ordered by priority, time of availability and offset. They can settle the messages in any order. An
        expired lease uses one attempt of each message. `max_in_flight` and `rate_limit` of the queue and the group
        apply across all servers: a request receives at most the remaining number, or nothing with the reason
        `max_in_flight` or `rate_limited`.

        A lease may be lost in a crash. With `auto_ack` the messages are durably settled before the verb returns; if one
        of them is sealed, the result has a lease, to settle them under when they have been read (rule 26). The first
        pop of a group from a queue durably creates the group before the verb returns, even without messages.
        """

    def settle(self, requests: Sequence[Sequence[model.Settlement]]) -> Awaitable[Answers[list[model.SettleOutcome]]]:
        """Settle messages: complete, fail, retry or dead-letter them (rules 12-15).

        All items of one request are checked against the leases before the request. Rejection codes: `not_found`,
        `lease_expired`, `lease_invalid`, `not_leased`, `dead_lettered`. Completing a completed message succeeds, even
        if the message has been removed.
        """

    def transact(self, requests: Sequence[model.Transaction]) -> Awaitable[Answers[model.TransactionOutcome]]:
        """Apply each transaction completely or not at all (rule 22). A duplicate push counts as a success."""

    def renew(self, requests: Sequence[model.Renewal]) -> Awaitable[Answers[model.RenewOutcome]]:
        """Renew leases, each for all its partitions (rule 17). A renewal may be lost in a crash, like the lease."""

    async def lease_ends(self, lease_ids: Sequence[str]) -> list[int | None]:
        """The expiry times of these leases; None for a lease that expired, was released or never existed."""

    async def shorten(self, lease_ids: Sequence[str], microseconds: int) -> None:
        """Let leases expire after this time at the latest (rule 17). A renewal restores their time before.

        Ignores unknown leases. The change may be lost in a crash, like the lease.
        """

    async def release(self, lease_ids: Sequence[str]) -> None:
        """Release messages that a consumer never received; uses no attempt (rule 17). Ignores unknown leases."""

    async def expire(self, limit: int = 1000) -> model.Expired:
        """Expire due leases, with their expiry as the time of the change. Idempotent (rule 16)."""

    async def collect(self, limit: int = 1000) -> model.Collected:
        """Run one limited step of retention (rule 23)."""

    async def read(self, requests: Sequence[model.Read]) -> Answers[model.ReadResult]:
        """Read messages of partitions in offset order, without receiving them (queue browsers).

        Returns every stored message: settled, leased, delayed or expired, until it is removed. It leaves out messages
        that were requeued for one group only (rule 19). A message becomes visible only after all messages with lower
        offsets (rule 3), so a reader that continues at `next_offset` reads each message once. Offsets without a message
        are skipped. The call changes nothing: it creates no group, and no message counts as delivered. An answer ends
        at `limit` stored messages or about 1 MiB. It can contain fewer messages, even none, and still have `more`. A
        queue or partition that does not exist has no messages.
        """

    async def offsets(
        self, queue: str, start: model.BrowseFrom, partition: str | None = None, changed_since: int | None = None
    ) -> list[model.PartitionOffset]:
        """The start offsets of a queue browser, for each partition of a queue or for the named one; [] if none exists.

        If `start` is a time, the offset is that of the first message created after it. `changed_since` limits the
        result to partitions that may have received messages since that time; it can include some others.
        """

    async def cancel(self, message_ids: Sequence[str]) -> list[model.CancelOutcome]:
        """Remove messages that no consumer has received, delayed or not.

        Other outcomes: `leased` if a group holds the message or has used an attempt; `settled` if a group settled it.
        """

    async def delete_messages(self, message_ids: Sequence[str]) -> list[bool]:
        """Remove messages, leased or not; deliveries skip them. False for a message that does not exist."""

    # Queues ------------------------------------------------------------------------------------------------

    async def configure(self, specs: Sequence[model.QueueSpec]) -> Answers[model.QueueInfo]:
        """Create queues with the partition `Default`, or replace all options of existing queues."""

    async def make_queues(self, specs: Sequence[model.QueueSpec]) -> None:
        """Create the queues that do not exist. Existing queues do not change."""

    async def delete_queues(self, names: Sequence[str]) -> list[bool]:
        """Delete queues with their messages and groups. False for a queue that does not exist."""

    async def purge(self, queue: str, group: str | None = None) -> int:
        """Remove all messages of a queue, including leased ones; or, with a group, settle its whole backlog."""

    async def pause(self, queue: str, group: str | None, paused: bool) -> bool:
        """Pause or resume deliveries of a queue, or of one group. False if it does not exist."""

    async def queue_infos(self, names: Sequence[str] | None = None) -> list[model.QueueInfo]:
        """The named queues that exist, or all of them."""

    async def queue_stats(self, where: model.QueueFilter) -> model.QueuePage:
        """A page of queues with counts. The cost depends on the number of queues on the page."""

    async def survey(self, after: tuple[int, str] = (0, ""), limit: int = 1000) -> model.Survey:
        """One step of a survey of all partitions, at most `limit` of them: stored and unsettled messages.

        It uses the local view of this server: it applies no due changes first, and sends no billed requests.
        """

    async def totals(self) -> model.Totals:
        """The numbers of queues, dead letters and leased messages, from the local view of this server."""

    async def partition_stats(
        self, queue: str, search: str | None = None, limit: int = 1000, offset: int = 0
    ) -> list[model.PartitionStats]:
        """A page of the partitions of a queue, by name."""

    # Groups ------------------------------------------------------------------------------------------------

    async def seek(self, requests: Sequence[model.Seek]) -> Answers[model.SeekOutcome]:
        """Move the cursors of groups (rule 21). The leases of the group on these partitions become invalid."""

    async def delete_group(self, group: str, queue: str | None, forget_subscription: bool) -> model.GroupDeletion:
        """Delete a group's cursors in one queue or in all, and optionally its subscription."""

    async def limit_group(self, queue: str, group: str, limits: model.Limits) -> bool:
        """Set the limits of one group of a queue. False if the group does not exist."""

    async def resubscribe(self, group: str, since: int) -> int:
        """Change the stored start of a group in all its queues. Cursors do not change. Returns the number of queues."""

    async def group_names(self, queue: str | None = None) -> list[str]:
        """The names of the groups of a queue, or of all queues. Cheap."""

    async def group_stats(
        self,
        group: str | None = None,
        queue: str | None = None,
        queues: Sequence[str] | None = None,
        uncounted: Sequence[str] = (),
    ) -> list[model.GroupStats]:
        """Statistics of groups, one entry per group and queue; of one queue, or of several.

        The partitions of the queues `uncounted` are not looked at: lag and scheduled messages of their groups are 0.
        """

    async def position_stats(
        self,
        group: str | None = None,
        queue: str | None = None,
        min_lag_seconds: int | None = None,
        limit: int = 1000,
        partitions: Sequence[str] | None = None,
        queues: Sequence[str] | None = None,
    ) -> list[model.PositionStats]:
        """Positions of groups in all partitions, or in the named ones; of one queue, or of several.

        `min_lag_seconds` limits the result to positions where a message has waited that long; 0: where one waits.
        """

    # Dead letters ------------------------------------------------------------------------------------------

    async def dead_letters(self, where: model.DeadLetterFilter) -> model.DeadLetters:
        """A page of dead letters."""

    async def requeue(self, ids: Sequence[str]) -> Answers[str]:
        """Requeue dead letters at the front of their partition, for their group only. Returns the new ids (rule 19)."""

    async def import_dead_letters(self, letters: Sequence[model.NewDeadLetter]) -> Answers[bool]:
        """Store dead letters of another store. False for one that exists: its id, or its message in its group.

        A dead letter belongs to the stored message with its transaction id. Without one it takes an offset that no
        message has. The call creates missing partitions, but no queue (`NotFound`). A dead letter whose `sealed`
        contradicts the queue's encryption returns `Conflict`, code `sealing_mismatch`.
        """

    async def delete_dead_letters(self, where: model.DeadLetterFilter, limit: int | None = None) -> int:
        """Delete dead letters, at most `limit` (limit and offset of the filter do not apply). Returns their number."""

    # Looking -----------------------------------------------------------------------------------------------

    async def messages(self, where: model.MessageFilter) -> list[model.MessageView]:
        """Messages, newest first, without payloads."""

    async def message(self, partition_id: str, transaction_id: str) -> model.MessageView | None:
        """One message, by transaction id or message id, with its payload."""

    async def trace(self, traces: Sequence[model.NewTrace]) -> Answers[str]:
        """Record trace events of messages. Returns their ids, or `NotFound` for a message that does not exist."""

    async def traces(
        self,
        partition_id: str | None = None,
        transaction_id: str | None = None,
        name: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[list[model.Trace], int]:
        """Trace events of one message, oldest first, or of one name, newest first; and their total number."""

    async def trace_names(self, limit: int = 50, offset: int = 0) -> tuple[list[model.TraceName], int]:
        """Names of trace events, and the total number of names."""

    async def explain(self, requests: Sequence[model.Explain]) -> Answers[model.Facts]:
        """The facts that explain why messages were not delivered. The call changes no message.

        Due changes are applied first (rule 16). For a removed message the result has the facts that are still known. An
        id that never belonged to a message, or whose queue was deleted, returns `NotFound`, code `message_not_found`.
        The cost does not depend on the number of messages.
        """

    async def leases(self, where: model.LeaseFilter) -> model.Leases:
        """A page of the active leases, one entry for each partition of a lease.

        It leaves out leases that a failure or a retry released in their partition (rule 14): they block no delivery.
        """

    async def queues_of(self, ids: Sequence[str]) -> list[str | None]:
        """The queues of partitions or messages, by id; None for an unknown id. Cheap."""

    # Other servers -----------------------------------------------------------------------------------------

    def on_hints(self, hints: Sequence[model.Hint]) -> list[model.Hint]:
        """Apply the hints of a peer on the same store, and return the hints for this server's consumers. Never raises.

        The result has the same form as hints of this server's verbs. [] if the store is not shared.
        """

    async def peer_secret(self) -> bytes:
        """32 random bytes that all servers of the store share, created at the first call."""

    # The server's own notes --------------------------------------------------------------------------------

    async def read_flags(self) -> dict[str, bool]:
        """Flags that survive a restart, such as maintenance."""

    async def write_flag(self, name: str, value: bool) -> None:
        """Set a flag."""
