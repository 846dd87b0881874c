"""Threads of tests whose failures are seen."""

from __future__ import annotations

from collections.abc import Callable


def noted(function: Callable[[], object], failures: list[BaseException]) -> Callable[[], None]:
    """What a thread runs; how it failed is in ``failures`` then, where the test looks."""

    def run() -> None:
        try:
            function()
        except BaseException as error:
            failures.append(error)

    return run
