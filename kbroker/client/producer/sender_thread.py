"""The sender of a producer for applications: it has a thread.

Nothing here waits for a broker: connections, metadata and coordinators are asked beside it, and the
results come back as calls (``post``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from kbroker._ext.client.sent_batch import SentBatch
from kbroker.client.batches.sender import BatchSender
from kbroker.client.errors import ClientClosed
from kbroker.client.producer.beside import SideCalls

logger = logging.getLogger("kbroker.client.producer.sender")  # programs set its level

# How often who waits looks whether the thread lives.
_LOOK_S = 1.0


class SenderThread(BatchSender):
    """See ``BatchSender``. Its turns follow one another in a thread of its own."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._posted: deque[Callable[[], None]] = deque()
        self._posting = threading.Lock()
        self._ended = False  # nothing is posted any more
        self._settling: deque[threading.Event] = deque()  # see ``settle``
        self.beside = SideCalls(self.post, "kafka-producer")
        self._thread = threading.Thread(
            target=self._run, name=f"kafka-producer-{self._cluster.client_id}", daemon=True
        )

    # -- other threads

    def start(self) -> None:
        self._thread.start()

    def post(self, call: Callable[[], None]) -> bool:
        """Call it in the sender's thread; False if that has ended."""
        with self._posting:
            if self._ended:
                return False
            self._posted.append(call)
        self._pool.wake()
        return True

    def settle(self, seconds: float) -> bool:
        """Whether the callbacks of all batches that have ended were called within ``seconds``."""
        called = threading.Event()
        deadline = time.monotonic() + seconds
        self._settling.append(called)
        self._pool.wake()
        # The thread sets the event when it ends, unless it had ended before.
        while self._thread.is_alive() and not called.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            called.wait(min(_LOOK_S, left))
        return True

    def stop(self, timeout: float | None) -> None:
        """End the thread; batches that have not ended by then fail."""
        self._stopping = True
        self._pool.wake()
        if not self.is_current:
            self._thread.join(timeout)
        self.metadata.close()

    @property
    def is_current(self) -> bool:
        """Whether this is the sender's thread, as in a callback."""
        return threading.current_thread() is self._thread

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                try:
                    self._turn()
                except BaseException:
                    # INVARIANT: the thread lives, and expires what it cannot send.
                    logger.exception("the sender's turn failed; it continues with the next one")
                    time.sleep(0.1)
        finally:
            self._end()

    def _turn(self) -> None:
        # Callbacks of batches that ended before this are among the events of this turn, at last.
        settling = [self._settling.popleft() for _ in range(len(self._settling))]
        try:
            self._take_events(0.0 if settling else self._seconds_left())
        finally:
            for called in settling:
                called.set()
        while self._posted:
            self._posted.popleft()()
        self._look_after()

    def _end(self) -> None:
        """Whatever happens to the thread: every future ends."""
        self._ending.begin()
        for node in list(self._links):
            self._loop.disconnect(node, "the producer was closed")
        for batch in self._loop.take_unended():
            self._loop.fail(batch, self._given_up(batch))
        while events := self._loop.run(0.0):
            for event in events:
                if event[0] == "ended":
                    self._on_ended(*event[1:])
        for node in list(self._links):
            if connection := self._note_closed(node):
                connection.close()
        for called in self._settling:
            called.set()
        with self._posting:
            self._ended = True
        while self._posted:  # such as connections that were made meanwhile
            self._posted.popleft()()

    def _given_up(self, batch: SentBatch) -> ClientClosed:
        """COMPAT: Java's says that the producer is closed forcefully."""
        why = self._last_errors.get((batch.topic, batch.partition)) or self._why_not_sent(batch)
        return ClientClosed(
            f"the producer was closed before the delivery to {batch.topic}-{batch.partition}; "
            f"last: {why}"
        )
