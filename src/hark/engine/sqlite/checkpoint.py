"""Checkpoints the write-ahead log in a separate thread, so that no commit has to do it."""

from __future__ import annotations

import logging
import threading

import apsw

from hark.engine.sqlite.store import Store

log = logging.getLogger(__name__)

_PAGES = 2_000
_BLOCKING_PAGES = 40_000
"""A passive checkpoint cannot rewind a log that is being written to. From this size on, writers wait for it."""


class Checkpointer:
    """A thread that is woken when the log has grown."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pages = 0
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="hark-store-move", daemon=True)

    def start(self) -> None:
        """Begin to watch the writer's commits."""
        self._store.writer.set_wal_hook(self._note_pages)
        self._thread.start()

    def stop(self) -> None:
        """End; what is left in the log is moved when the database is closed."""
        self._stopping = True
        self._wanted.set()
        self._thread.join()

    def _note_pages(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._pages = pages
        if pages >= _PAGES:
            self._wanted.set()
        return apsw.SQLITE_OK

    def _run(self) -> None:
        connection = self._store.connect_checkpointer()
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._stopping:
                break
            blocking = self._pages >= _BLOCKING_PAGES
            mode = apsw.SQLITE_CHECKPOINT_RESTART if blocking else apsw.SQLITE_CHECKPOINT_PASSIVE
            try:
                connection.wal_checkpoint(mode=mode)
            except apsw.BusyError:
                pass  # A reader is in the way; the next commit asks again.
            except apsw.Error as error:
                log.error(
                    "cannot checkpoint the write-ahead log of %s, which grows meanwhile; check disk space and "
                    "permissions: %s",
                    self._store.path,
                    error,
                )
        connection.close()
