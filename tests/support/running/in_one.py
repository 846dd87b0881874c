"""Many small cases in one test: pytest needs milliseconds for each test, more than they do."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

# BOUND: a mistake in what all cases have in common fails all of them.
SHOWN_MAX = 10
Test = Callable[..., None]


def in_one(names: str, cases: Iterable[Any], **fresh: Callable[[], Any]) -> Callable[[Test], Test]:
    """``parametrize``, but one test has all cases. All are tried, and those that fail are named.

    fresh: what makes an argument for each case anew. Fixtures are made once, for all cases.
    """
    keys = names.split()
    rows = [
        dict(zip(keys, case if len(keys) > 1 else (case,), strict=True)) for case in list(cases)
    ]
    assert rows, "a test of no cases shows nothing"

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        given = {*keys, *fresh}
        left = [one for one in signature.parameters.values() if one.name not in given]

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failures: list[BaseException] = []
            for row in rows:
                try:
                    test(**row, **{name: make() for name, make in fresh.items()}, **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"case: {row}")
                    failures.append(error)
            if failures:
                text = f"{len(failures)} of {len(rows)} cases failed"
                raise BaseExceptionGroup(text, failures[:SHOWN_MAX])

        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate
