"""Threads of tests, whose failures are reported."""

from __future__ import annotations

from collections.abc import Callable


def noted(function: Callable[[], object], failures: list[BaseException]) -> Callable[[], None]:
    """The function of a thread; its error is recorded in ``failures``, where the test looks."""

    def run() -> None:
        try:
            function()
        except BaseException as error:
            failures.append(error)

    return run
