"""Threads of tests, whose failures are reported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def noted(function: Callable[[], object], failures: list[BaseException]) -> Callable[[], None]:
    """The function of a thread; its error is recorded in ``failures``, where the test looks."""

    def run() -> None:
        try:
            function()
        except BaseException as error:
            failures.append(error)

    return run


@contextmanager
def repeated(work: Callable[[], object], pauses: Callable[[], float]) -> Iterator[None]:
    """Beside the block, work is done again and again after pauses of so many seconds; its error
    fails the block.
    """
    done = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        while not done.wait(pauses()):
            work()

    thread = threading.Thread(target=noted(run, failures))
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert not failures, failures
