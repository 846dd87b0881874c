"""Futures, and coroutines that await them without an event loop.

A coroutine awaits ``Pending`` objects only, and is resumed on the stack of whatever resolved them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
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


class TooLate(Exception):
    """The outcome did not arrive in time; it may still arrive, but is ignored."""


def within(outcome: Pending[T], timer: Pending[None]) -> Pending[T]:
    """The same outcome, or TooLate once the timer is done."""
    first: Pending[T] = Pending()
    outcome.then(lambda ended: first.resolve(ended.value, ended.error))
    timer.then(lambda _: first.resolve(error=TooLate()))
    return first
