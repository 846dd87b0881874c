"""One way to call both kinds of clients: those that block, and those of asyncio, whose event loop
runs in a thread, as that of a program would.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from fault.clients.told import Told

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.client.aio import AsyncKafkaConsumer, AsyncKafkaProducer

CLIENTS = {
    one.__name__: one
    for one in (KafkaProducer, KafkaConsumer, AsyncKafkaProducer, AsyncKafkaConsumer)
}


class Handle:
    """A client that blocks."""

    def __init__(self, told: Told, client: str, settings: dict[str, Any]) -> None:
        self._told = told
        self.client: Any = CLIENTS[client](**settings)

    def call(self, name: str, limit_s: float, *arguments: Any, **more: Any) -> Any:
        return self._told.call(
            name, limit_s, lambda: getattr(self.client, name)(*arguments, **more)
        )

    def end(self) -> None:
        """After the client was closed."""


class Given(Handle):
    """Any object."""

    def __init__(self, told: Told, client: Any) -> None:
        self._told = told
        self.client = client


class AsyncHandle(Handle):
    """cancels: how often each call is cancelled, of a part of the calls that ``may_cancel``."""

    def __init__(
        self, told: Told, client: str, settings: dict[str, Any], cancels: int, chance: random.Random
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="exam-loop", daemon=True
        )
        self._thread.start()
        self._told, self._cancels, self._chance = told, cancels, chance

        async def made() -> Any:
            return CLIENTS[client](**settings)

        self.client = self.wait(made())

    def wait(self, work: Any, limit_s: float = 120.0) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(limit_s)

    def call(self, name: str, limit_s: float, *arguments: Any, **more: Any) -> Any:
        def begin() -> Any:
            return getattr(self.client, name)(*arguments, **more)

        return self._told.call(name, limit_s, lambda: self.wait(self._called(begin)))

    async def _called(self, begin: Callable[[], Any]) -> Any:
        found = begin()
        return await found if asyncio.iscoroutine(found) else found

    def cancelled(self, name: str, *arguments: Any, **more: Any) -> Any:
        """Call it, and cancel the call after a moment; None, or its result if it was faster."""
        return self.cancelled_work(name, lambda: getattr(self.client, name)(*arguments, **more))

    def cancelled_work(self, name: str, begin: Callable[[], Any]) -> Any:
        """The same of any coroutine. name: what it is told as."""

        async def work() -> Any:
            task = asyncio.ensure_future(begin())
            await asyncio.sleep(self._chance.choice((0, 0, 0.001, 0.01, 0.05)))
            for _ in range(self._cancels):
                task.cancel()
                await asyncio.sleep(0)
            try:
                return await task
            except asyncio.CancelledError:
                return None

        began = time.monotonic()
        found = self._told.call(name, 1.0, lambda: self.wait(work()))
        if time.monotonic() - began > 1:
            self._told.tell("slow cancel", call=name, seconds=time.monotonic() - began)
        return found

    @property
    def cancels(self) -> bool:
        """Whether to cancel the next call."""
        return bool(self._cancels) and self._chance.random() < 0.3

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def handle(
    told: Told, client: str, settings: dict[str, Any], mishap: str, chance: random.Random
) -> Handle:
    """Of a client of this class, new."""
    if not client.startswith("Async"):
        return Handle(told, client, settings)
    cancels = {"one cancel": 1, "two cancels": 2}.get(mishap, 0)
    return AsyncHandle(told, client, settings, cancels, chance)
