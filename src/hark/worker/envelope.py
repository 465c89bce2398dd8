"""The payload of a task's message."""

from __future__ import annotations

import msgspec

from hark.errors import InvalidInput


class Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, rename="camel"):
    """`{"task": "send_email", "arguments": {"to": "a@b.c"}}`, optionally with headers."""

    task: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    headers: dict[str, str] | None = None
    own_schedule: bool = False
    """Whether the message has its own retry delays, instead of those of the task's policy."""


_decode = msgspec.json.Decoder(Envelope).decode
_encode = msgspec.json.Encoder().encode


class NotATask(InvalidInput):
    """A message without a task name in its payload."""

    code = "not_a_task"


def seal(envelope: Envelope) -> msgspec.Raw:
    """The payload of a push."""
    return msgspec.Raw(_encode(envelope))


def unseal(payload: msgspec.Raw | bytes) -> Envelope:
    """Decode a payload. Raises `NotATask`."""
    try:
        return _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotATask(
            f'the payload is not a task: {error}; expected {{"task": "name", "arguments": {{...}}}}'
        ) from error
