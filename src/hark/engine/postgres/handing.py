"""Messages as the database hands them out, and as consumers get them."""

from __future__ import annotations

from typing import Any

import msgspec

from hark.engine.postgres.deliveries import Deliveries
from hark.engine.postgres.directory import Place
from hark.engine.postgres.jobs import Job
from hark.ids import IdCodec
from hark.model import Delivery


class Options(msgspec.Struct):
    """What few messages have, as `options_v1` writes it."""

    p: int = 0
    s: bool = False
    t: str | None = None
    u: str | None = None
    c: str | None = None


NO_OPTIONS = Options()
decode_options = msgspec.json.Decoder(Options).decode


class Handing:
    """Gives messages to jobs, for one engine."""

    def __init__(self, deliveries: Deliveries, codec: IdCodec) -> None:
        self._deliveries = deliveries
        self._codec = codec

    def hand_out(self, job: Job, place: Place, until: int, messages: Any) -> None:
        """A job got messages of a partition: offsets, times, transaction ids, payloads, attempts and options."""
        offsets, created_ats, transaction_ids, payloads, attempts, options = messages
        prefix, uid, name, queue = place.prefix, place.uid, place.name, place.queue
        with_prefix, append = self._codec.with_prefix, job.messages.append
        for n, offset in enumerate(offsets):
            message_id = with_prefix(prefix, offset)
            extra = NO_OPTIONS if options is None or options[n] is None else decode_options(options[n])
            payload = payloads[n]
            job.bytes += len(payload)
            append(
                Delivery(
                    message_id,
                    transaction_ids[n] or message_id,
                    extra.t,
                    msgspec.Raw(payload),
                    extra.s,
                    extra.u,
                    created_ats[n],
                    queue,
                    name,
                    uid,
                    offset,
                    extra.p,
                    1 if attempts is None else attempts[n],
                    extra.c,
                )
            )
        job.tracks += 1
        if not job.request.auto_ack:
            job.until = until if job.until is None else min(job.until, until)
            named = [(t, o) for t, o in zip(transaction_ids, offsets, strict=True) if t is not None]
            self._deliveries.add(job.lease, until, place.id, len(offsets), named)
