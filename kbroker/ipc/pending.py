"""Futures, and coroutines that await them without an event loop.

A coroutine awaits ``Pending`` objects only, and is resumed on the stack of whatever resolved them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from itertools import islice
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Pending(Generic[T]):
    """A future. Awaited by at most one coroutine."""

    __slots__ = ("_callback", "done", "error", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self._callback: Callable[[Pending[T]], None] | None = None

    def resolve(self, value: Any = None, error: BaseException | None = None) -> None:
        """Set the value or the error; a second call does nothing."""
        if self.done:
            return
        self.done, self.value, self.error = True, value, error
        if self._callback is not None:
            self._callback(self)

    def then(self, callback: Callable[[Pending[T]], None]) -> None:
        """Call back when done, at once if it is."""
        if self.done:
            callback(self)
            return
        assert self._callback is None, "another callback is already set"
        self._callback = callback

    def __await__(self) -> Generator[Pending[T], None, T]:
        if not self.done:
            yield self
        if self.error is not None:
            raise self.error
        value: T = self.value
        return value


def run(coroutine: Coroutine[Any, None, T]) -> Pending[T]:
    """Start a coroutine; the returned Pending is resolved with its outcome."""
    outcome: Pending[T] = Pending()

    def step(_: Pending[Any] | None) -> None:
        try:
            waiting = coroutine.send(None)
        except StopIteration as stop:
            outcome.resolve(stop.value)
        except Exception as error:
            outcome.resolve(error=error)
        else:
            waiting.then(step)

    step(None)
    return outcome


async def in_window(work: Iterable[Coroutine[Any, None, T]], at_once: int) -> list[T]:
    """The results of these coroutines, in order; at most ``at_once`` of them are under way.

    If one fails, no further one begins, and its error is raised when those under way have ended.
    """
    rest, under_way, results = iter(work), deque[Pending[T]](), list[T]()
    failure: Exception | None = None
    while True:
        if failure is None:
            under_way.extend(map(run, islice(rest, at_once - len(under_way))))
        if not under_way:
            break
        try:
            results.append(await under_way.popleft())
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return results


class TooLate(Exception):
    """The outcome did not arrive in time; it may still arrive, but is ignored."""


def pass_on(outcome: Pending[T], to: Pending[T]) -> None:
    """Resolve another one with the same outcome, if it is not resolved by then."""
    outcome.then(lambda ended: to.resolve(ended.value, ended.error))


def within(outcome: Pending[T], timer: Pending[None]) -> Pending[T]:
    """The same outcome, or TooLate once the timer is done."""
    first: Pending[T] = Pending()
    pass_on(outcome, first)
    timer.then(lambda _: first.resolve(error=TooLate()))
    return first
