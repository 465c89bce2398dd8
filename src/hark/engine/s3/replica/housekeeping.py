"""Snapshots, and the removal of what they make superfluous; in a thread of its own, beside everything else.

Who writes every so many-th record makes a snapshot: then it is always clear who does. If that process dies over it,
the next one is as good. Where records are large it is made earlier, by whoever notices first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import apsw

from hark.clock import SECOND
from hark.engine.s3.bucket.api import Bucket, BucketError
from hark.engine.s3.bucket.thread import IoThread
from hark.engine.s3.log import places
from hark.engine.s3.log.meta import Meta
from hark.engine.s3.log.pointer import read_pointer
from hark.engine.s3.log.snapshot import publish
from hark.engine.s3.replica import garbage
from hark.engine.s3.replica.calls import Chore
from hark.engine.s3.replica.fold import Head
from hark.engine.s3.replica.scratch import Scratch
from hark.engine.s3.replica.snapshotting import make_snapshot
from hark.engine.sqlite.calls import Call
from hark.errors import HarkError
from hark.settings.s3 import S3

log = logging.getLogger(__name__)
_SEGMENTS_AT_ONCE = 10_000
_FINISH_SECONDS = 5.0


class Housekeeper:
    """Told of every record by the thread of the state; works in its own."""

    def __init__(
        self,
        bucket: Bucket,
        io: IoThread,
        scratch: Scratch,
        settings: S3,
        *,
        meta: Meta,
        now: Callable[[], int],
        submit: Callable[[Call], None],
    ) -> None:
        self._bucket = bucket
        self._io = io
        self._scratch = scratch
        self._settings = settings
        self._epoch = meta.epoch
        self._grace = meta.grace_seconds * SECOND
        self._now = now
        self._submit = submit
        self._bytes = 0
        self._since = 0
        """The record from which on bytes are counted."""
        self._wanted = threading.Event()
        self._only_if_large = False
        self._stopping = False
        self.snapshots = 0
        self.removed = 0
        self._thread = threading.Thread(target=self._run, name="hark-s3-keep", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what is being done if that does not take long, and end."""
        self._stopping = True
        self._wanted.set()
        if self._thread.ident is not None:
            self._thread.join(_FINISH_SECONDS)

    def note(self, head: Head, size: int, own: bool) -> None:
        """A record was applied, or (size 0) the state was made anew."""
        if not size:
            self._since, self._bytes = head.seq, 0
            return
        self._bytes += size
        regular = head.seq % self._settings.snapshot_records == 0
        if own and (regular or self._bytes >= self._settings.snapshot_bytes):
            self._only_if_large = not regular
            self._wanted.set()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._stopping:
                return
            try:
                self._keep_house()
            except (BucketError, HarkError) as error:
                log.warning("%s: cannot write a snapshot; retrying with a later record: %s", self._bucket.name, error)
            except Exception:
                if not self._stopping:  # Else its requests were cut off.
                    log.exception("%s: cannot write a snapshot because of a bug; please report it", self._bucket.name)

    def _keep_house(self) -> None:
        if self._only_if_large and self._is_covered():
            return
        reader = self._scratch.connect_reader()
        try:
            header, body = make_snapshot(reader, self._epoch)
            self._since, self._bytes = header.seq, 0
            if self._io.run(publish(self._bucket, self._epoch, header.seq, body, self._now)):
                self.snapshots += 1
                log.info("%s: wrote the snapshot of record %d (%d bytes)", self._bucket.name, header.seq, len(body))
        finally:
            reader.close()
        self.collect()

    def _is_covered(self) -> bool:
        """Whether somebody made a snapshot of what was counted here."""
        found = self._io.run(read_pointer(self._bucket))
        if found is None or found[0].seq <= self._since:
            return False
        self._since, self._bytes = found[0].seq, 0
        return True

    def collect(self) -> None:
        """Remove what nobody needs any more: records that snapshots cover, and payloads that nobody refers to."""
        reader = self._scratch.connect_reader()
        try:
            [(applied,)] = reader.execute("select seq from replica")

            async def segments(after: int, up_to: int) -> frozenset[int]:
                return garbage.segments_between(reader, after, up_to)

            work = garbage.collect(
                self._bucket, epoch=self._epoch, applied=applied, grace=self._grace, now=self._now, segments=segments
            )
            self.removed += self._io.run(work)
            found = self._io.run(read_pointer(self._bucket))
            collected = 0 if found is None else found[0].collected
            now = self._now()
            dead = garbage.unreferenced(reader, _SEGMENTS_AT_ONCE)
            gone = garbage.removable(reader, now, self._grace, collected, _SEGMENTS_AT_ONCE)
        finally:
            reader.close()
        if gone:
            self._io.run(self._bucket.delete([places.record(seq) for seq in gone]))
            self.removed += len(gone)
        if dead or gone:
            self._submit(Chore(None, lambda transaction: _note(transaction.connection, dead, gone, now)))


def _note(connection: apsw.Connection, dead: list[int], gone: list[int], now: int) -> None:
    garbage.mark_dead(connection, dead, now)
    garbage.forget(connection, gone)
