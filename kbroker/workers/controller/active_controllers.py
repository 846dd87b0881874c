"""Sends ISR changes of this broker's leaders to the active controller."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.cluster.control_requests import PartitionKey
from kbroker.cluster.controller_requests import AlterIsr, AlterIsrResponse
from kbroker.controller.store import persistence
from kbroker.errors import ErrorCode, WireError
from kbroker.hosting.hosting import Hosting
from kbroker.ipc.calls import IsrResult, IsrState, WantedIsr
from kbroker.ipc.pending import Pending, run
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.store import StoreFailed
from kbroker.peers.controller_link import ControllerLink
from kbroker.peers.link import LinkFailed


class ActiveControllers:
    """The client of the active controller, whichever broker it is. store: read even when another
    broker is elected.
    """

    def __init__(
        self, link: ControllerLink, hosting: Hosting, broker_id: int, store: SettledStore
    ) -> None:
        self._link = link
        self._hosting = hosting
        self._broker_id = broker_id
        self._store = store

    def alter_isr(self, wanted: Sequence[WantedIsr]) -> Pending[list[IsrResult]]:
        """The results, in request order; WireError if the outcome is unknown."""
        return run(self._alter_isr(wanted))

    async def _alter_isr(self, wanted: Sequence[WantedIsr]) -> list[IsrResult]:
        request = AlterIsr(self._broker_id, self._hosting.broker_epoch, wanted)
        try:
            response = await self._link.ask(request)
        except LinkFailed as error:
            text = f"the controller cannot be asked: {error}"
            raise WireError(ErrorCode.NETWORK_EXCEPTION, text) from error
        assert isinstance(response, AlterIsrResponse)
        if response.error is not ErrorCode.NONE:
            text = f"broker {self._link.asked} returned {response.error.name}"
            raise WireError(response.error, text)
        return [response.partitions[one.key] for one in wanted]

    def read_isr(self, keys: Sequence[PartitionKey]) -> Pending[list[IsrState | None]]:
        """The stored state of each partition; WireError if it cannot be read."""
        return run(read_isr(self._store, keys))


async def read_isr(store: SettledStore, keys: Sequence[PartitionKey]) -> list[IsrState | None]:
    """As ``persistence.read_isr``; WireError if the store cannot be read."""
    try:
        return await persistence.read_isr(store, keys)
    except (StoreFailed, Fenced) as error:
        raise store_unavailable(error) from error


def store_unavailable(error: BaseException) -> WireError:
    """Nothing is known then, and the same is asked again."""
    return WireError(ErrorCode.REQUEST_TIMED_OUT, f"the metadata store is not available: {error}")
