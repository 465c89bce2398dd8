"""Unique messages: at most one message with a key is in a queue until it is done, started or removed.

A record below the name of the queue has the transaction id of the message that holds a key. A push checks the record,
sets it and appends the message in one write, so that exactly one of several producers wins, on any number of servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from hark import model
from hark.broker.keyvalue import KeyValue
from hark.engine.api import Engine
from hark.errors import HarkError
from hark.keys import encode_key
from hark.model.messages import RESERVED, UniqueUntil

if TYPE_CHECKING:
    from hark.broker.broker import Broker

STEP = 100
"""Maximum number of records that one step of the cleanup examines, and of messages that are looked up together."""
STEPS = 100
"""Maximum number of steps of one cleanup that remove few records. The next cleanup begins where this one ended."""
_OF_ONE_ITEM = frozenset({"queue_full", RESERVED})
"""Codes of rejections that concern one message and not the whole request."""
_MOST_IDS = 50_000


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """The message that holds a key, and until when."""

    partition: str
    transaction_id: str
    until: UniqueUntil = "done"


_decode = msgspec.json.Decoder(_Record).decode
_encode = msgspec.json.Encoder().encode


def _key_of(item: model.NewMessage) -> model.Key:
    return (model.OWN, "unique", item.queue, item.unique_key or "")


class _Attempt:
    """One write of a request: what is pushed, under which checks, and what is a duplicate of it."""

    def __init__(self) -> None:
        self.pushed: list[int] = []
        """The indices of the pushed messages, in order."""
        self.first: dict[model.Key, int] = {}
        """By key, the index of the message that gets it."""
        self.followers: list[tuple[int, int]] = []
        """Messages of the same request with a key that an earlier one gets: their indices, and those of the earlier."""
        self.checks: list[model.KeyCheck] = []
        self.mutations: list[model.KeyMutation] = []

    def take(self, index: int, item: model.NewMessage, key: model.Key, version: int | None) -> None:
        """Push a message that gets its key, if the key still has this version."""
        self.first[key] = index
        self.pushed.append(index)
        record = _Record(item.partition, item.transaction_id or "", item.unique_until)
        self.checks.append(model.KeyCheck(key, version))
        self.mutations.append(model.KeyMutation(kind="set", key=key, value=_encode(record)))


class UniquePushes:
    """Pushes of messages with a unique key, and the cleanup of their records."""

    def __init__(self, broker: Broker, engine: Engine, keyvalue: KeyValue, new_id: Callable[[], str]) -> None:
        self._broker = broker
        self._engine = engine
        self._keyvalue = keyvalue
        self._new_id = new_id
        self._ids: dict[tuple[int, bytes], str] = {}
        """Ids of messages that hold keys, by the version and the bytes of the key. Versions never repeat."""
        self._cleaned: model.Key | None = None
        """The key after which the next step of the cleanup begins."""

    async def push(self, items: Sequence[model.NewMessage]) -> list[model.PushOutcome]:
        """Push messages, some of which have unique keys, in the order of the request."""
        self._broker.check_pushes()
        items = [
            item
            if item.unique_key is None or item.transaction_id is not None
            else msgspec.structs.replace(item, transaction_id=self._new_id())
            for item in items
        ]
        outcomes: dict[int, model.PushOutcome] = {}
        await self._push(items, range(len(items)), outcomes, {})
        return [outcomes[index] for index in range(len(items))]

    def _note_duplicate(
        self, index: int, item: model.NewMessage, first: model.PushOutcome, outcomes: dict[int, model.PushOutcome]
    ) -> None:
        outcomes[index] = outcome = msgspec.structs.replace(first, status="duplicate")
        self._broker.tallies.pushed([[item]], [[outcome]], alone=False)

    async def _push(
        self,
        items: Sequence[model.NewMessage],
        indices: Sequence[int],
        outcomes: dict[int, model.PushOutcome],
        full: dict[str, model.PushOutcome],
    ) -> None:
        """Push these messages in one write; in two halves if one of them is rejected. `full`: known full queues."""
        while indices:
            attempt = await self._prepare(items, indices, outcomes, full)
            messages = [items[index] for index in attempt.pushed]
            if not attempt.first:
                if messages:  # These can be rejected one by one.
                    plain = await self._broker.push(messages)
                    outcomes.update(zip(attempt.pushed, plain, strict=True))
                return
            try:
                written = await self._keyvalue.write_keys(model.KeyWrite(attempt.checks, attempt.mutations, messages))
            except HarkError as error:
                if error.code not in _OF_ONE_ITEM:
                    raise
                waiting = sorted([*attempt.pushed, *(index for index, _ in attempt.followers)])
                if len(attempt.pushed) > 1:
                    half = len(waiting) // 2
                    await self._push(items, waiting[:half], outcomes, full)
                    await self._push(items, waiting[half:], outcomes, full)
                    return
                [index] = attempt.pushed
                item = items[index]
                outcomes[index] = model.PushOutcome("failed", item.transaction_id, None, None, error.code, error.text)
                if error.code == "queue_full":
                    full[item.queue] = outcomes[index]
                indices = [index for index in waiting if index not in attempt.pushed]
                continue
            if written.success and written.version is not None:
                outcomes.update(zip(attempt.pushed, written.messages, strict=True))
                for index, earlier in attempt.followers:
                    self._note_duplicate(index, items[index], outcomes[earlier], outcomes)
                for key, index in attempt.first.items():
                    self._remember(key, written.version, outcomes[index].message_id)
                return
            # Another producer was first with one of the keys, or a record was removed.

    async def _prepare(
        self,
        items: Sequence[model.NewMessage],
        indices: Sequence[int],
        outcomes: dict[int, model.PushOutcome],
        full: dict[str, model.PushOutcome],
    ) -> _Attempt:
        """Look at the keys of these messages. The outcomes of duplicates are known then."""
        keys = {_key_of(items[index]): None for index in indices if items[index].unique_key is not None}
        entries = dict(zip(keys, await self._keyvalue.fetch(list(keys)), strict=True)) if keys else {}
        holders = await self._holders([entry for entry in entries.values() if entry is not None])
        attempt = _Attempt()
        for index in indices:
            item = items[index]
            key = _key_of(item)
            if item.unique_key is None:
                attempt.pushed.append(index)
            elif key in holders:
                self._note_duplicate(index, item, holders[key], outcomes)
            elif item.queue in full:
                outcomes[index] = msgspec.structs.replace(full[item.queue], transaction_id=item.transaction_id)
            elif key in attempt.first:
                attempt.followers.append((index, attempt.first[key]))
            else:
                entry = entries[key]
                attempt.take(index, item, key, None if entry is None else entry.version)
        return attempt

    # Who holds a key ---------------------------------------------------------------------------------------

    async def _holders(self, entries: Sequence[model.KeyEntry]) -> dict[model.Key, model.PushOutcome]:
        """By key, the messages that still hold it, as the outcome of a push that is a duplicate of them."""
        records = {entry.key: _decode(entry.value) for entry in entries}
        ids: dict[model.Key, str | None] = {}
        for first in range(0, len(entries), STEP):  # Few at a time: other calls must not wait for them.
            part = entries[first : first + STEP]
            found = await asyncio.gather(*(self._message_id(entry, records[entry.key]) for entry in part))
            ids |= zip((entry.key for entry in part), found, strict=True)
        wanted = {key: message_id for key, message_id in ids.items() if message_id is not None}
        if not wanted:
            return {}
        answers = await self._engine.explain([model.Explain(message_id) for message_id in wanted.values()])
        holders = {}
        for key, facts in zip(wanted, answers, strict=True):
            if isinstance(facts, HarkError):
                if facts.code != "message_not_found":
                    raise facts
            elif not is_free(facts, records[key].until):
                message = facts.message
                transaction_id = records[key].transaction_id
                holders[key] = model.PushOutcome("duplicate", transaction_id, message.id, message.partition_id)
        return holders

    async def _message_id(self, entry: model.KeyEntry, record: _Record) -> str | None:
        """The id of the message of a record; None if it is not stored."""
        identity = (entry.version, encode_key(entry.key))
        if identity not in self._ids:
            queue = str(entry.key[2])
            latest = await self._engine.messages(model.MessageFilter(queue=queue, partition=record.partition, limit=1))
            if not latest:
                return None
            view = await self._engine.message(latest[0].partition_id, record.transaction_id)
            if view is None:
                return None
            self._remember(entry.key, entry.version, view.id)
        return self._ids[identity]

    def _remember(self, key: model.Key, version: int, message_id: str | None) -> None:
        if message_id is not None:
            if len(self._ids) >= _MOST_IDS:
                self._ids.clear()
            self._ids[version, encode_key(key)] = message_id

    # Cleanup -----------------------------------------------------------------------------------------------

    async def clean(self) -> int:
        """Remove records of messages that hold their keys no longer, among the next ones. Returns their number."""
        removed = idle_steps = 0
        while idle_steps < STEPS:  # A limit of all steps would let the records grow for ever under a high load.
            page = model.KeyRange(prefix=(model.OWN, "unique"), after=self._cleaned, limit=STEP)
            [entries] = await self._engine.list_keys([page])
            self._cleaned = entries[-1].key if len(entries) == STEP else None
            holders = await self._holders(entries)
            writes = await asyncio.gather(
                *(
                    # A record that was replaced since then stays.
                    self._keyvalue.write_keys(
                        model.KeyWrite(
                            [model.KeyCheck(entry.key, entry.version)],
                            [model.KeyMutation(kind="delete", key=entry.key)],
                        )
                    )
                    for entry in entries
                    if entry.key not in holders
                )
            )
            removed += sum(write.success for write in writes)
            idle_steps += 2 * len(writes) < STEP
            if self._cleaned is None:
                break
        return removed


def is_free(facts: model.Facts, until: UniqueUntil) -> bool:
    """Whether a message holds its key no longer."""
    message = facts.message
    if not message.stored:
        return True
    if until == "retained":
        return False
    groups = [group for group in facts.groups if message.owner in (None, group.group)]
    if until == "started" and any(_has_begun(group) for group in groups):
        return True
    if message.owner is not None and not groups:  # Its only group was deleted.
        return True
    if message.expires_at is not None and message.expires_at <= facts.at:
        return all(group.settled or group.lease is None for group in groups)
    return bool(groups) and all(_is_over(group) for group in groups)


def _is_over(group: model.GroupFacts) -> bool:
    return group.settled or group.dead is not None or group.begins_after is not None


def _has_begun(group: model.GroupFacts) -> bool:
    """Whether a consumer of the group has received the message."""
    return _is_over(group) or group.lease is not None or (group.retry is not None and group.retry.attempts > 0)
