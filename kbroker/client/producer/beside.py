"""Calls that may wait for a broker, in threads of their own, so that the sender never waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from kbroker.client.errors import as_error

Result = TypeVar("Result")


class SideCalls:
    """post: hands a callable to the thread that is to see the results; False if that has ended:
    then results are handled where they are, as somebody must close a connection.
    """

    def __init__(self, post: Callable[[Callable[[], None]], bool], name: str) -> None:
        self._post = post
        self._name = name

    def run(
        self,
        what: str,
        call: Callable[[], Result],
        then: Callable[[Result | None, Exception | None], Any],
    ) -> None:
        """Call ``call``, which must have a deadline, in a new thread, and then ``then`` with its
        result or its exception.
        """

        def body() -> None:
            try:
                result = call()
            except BaseException as error:
                failure = as_error(error)
                self._told(lambda: then(None, failure))
            else:
                self._told(lambda: then(result, None))

        threading.Thread(target=body, name=f"{self._name}-{what}", daemon=True).start()

    def _told(self, work: Callable[[], None]) -> None:
        if not self._post(work):
            work()
