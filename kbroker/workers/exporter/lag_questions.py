"""Lags that the console wants to know now: asked by its threads, answered by the exporter's."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress

# BOUND: how long a page waits; then it asks the brokers for each partition.
ANSWER_S = 5.0

# By group.
Lags = Mapping[str, int]


class LagQuestions:
    """INVARIANT: an answer is of after its question."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._asked: list[Future[Lags]] = []
        self._answering: list[Future[Lags]] = []

    def fileno(self) -> int:
        """Readable when somebody has asked."""
        return self._event

    def ask(self) -> Lags:
        """Of the groups whose lag this broker knows by itself; empty if it does not say in time.
        Any thread but the exporter's.
        """
        future: Future[Lags] = Future()
        with self._lock:
            self._asked.append(future)
        os.eventfd_write(self._event, 1)
        try:
            return future.result(ANSWER_S)
        except TimeoutError:
            return {}

    # -- the exporter's thread

    def heard(self) -> None:
        """It was readable."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)

    def begin(self) -> bool:
        """Whether there is something to look for: from now on, for all who have asked so far."""
        with self._lock:
            self._answering += self._asked
            self._asked = []
        return bool(self._answering)

    @property
    def is_answering(self) -> bool:
        return bool(self._answering)

    def answer(self, lags: Lags) -> None:
        """To all for whom a look was begun."""
        answering, self._answering = self._answering, []
        for future in answering:
            future.set_result(lags)
