"""Requests to a broker that has registered and has not heard of the controller yet.

It serves clients already, as the controller's requests arrive through the same listeners. Its image
has neither brokers nor topics, and a client that were told so would believe it: librdkafka drops
the connection by which it found the cluster, and calls for a topic fail. So these requests wait
until the controller has said what there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.pending import Pending, TooLate, within

if TYPE_CHECKING:
    from kbroker.handlers.context import RequestContext

# BOUND: how long a request waits; no client gives up so soon.
JOINS_WITHIN_MS = 5_000


class Joining:
    """The requests of a network process that wait until its image has brokers."""

    def __init__(self) -> None:
        # BOUND: one for each connection.
        self._waiting: dict[Pending[None], None] = {}

    def joined(self) -> None:
        """The image has brokers: serve those that wait."""
        waiting, self._waiting = self._waiting, {}
        for pending in waiting:
            pending.resolve()

    async def wait(self, timer: Pending[None]) -> None:
        """Returns when the image has brokers, or the timer is done."""
        pending: Pending[None] = Pending()
        self._waiting[pending] = None
        try:
            await within(pending, timer)
        except TooLate:
            pass
        finally:
            self._waiting.pop(pending, None)


async def require_brokers(ctx: RequestContext, error: ErrorCode) -> None:
    """Wait until the image has brokers. Raises this error if that takes too long."""
    if ctx.image.brokers:
        return
    await ctx.process.joining.wait(ctx.process.rpc.sleep(JOINS_WITHIN_MS))
    if not ctx.image.brokers:
        text = "this broker has just joined the cluster and has not heard of the controller yet"
        raise WireError(error, text)
