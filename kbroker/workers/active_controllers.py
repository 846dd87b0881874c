"""The way to the active controller for what this broker's leaders want."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.cluster.control_requests import PartitionKey
from kbroker.controller import persistence
from kbroker.errors import ErrorCode, WireError
from kbroker.hosting.hosting import Hosting
from kbroker.ipc.calls import IsrAnswer, IsrState, WantedIsr
from kbroker.ipc.pending import Pending, run
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.store import StoreFailed
from kbroker.workers.office import Office


class ActiveControllers:
    """Of one broker: its own controller, while it has the office.

    store: read without being the controller.
    """

    def __init__(
        self, office: Office, hosting: Hosting, broker_id: int, store: SettledStore
    ) -> None:
        self._office = office
        self._hosting = hosting
        self._broker_id = broker_id
        self._store = store

    def alter_isr(self, wanted: Sequence[WantedIsr]) -> Pending[list[IsrAnswer]]:
        """An answer to each, in order; WireError if it is not known whether anything changed."""
        return run(self._alter_isr(wanted))

    async def _alter_isr(self, wanted: Sequence[WantedIsr]) -> list[IsrAnswer]:
        present = self._office.present
        if present is None:
            raise WireError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
        try:
            in_sync = present.duties.in_sync
            return await in_sync.alter(self._broker_id, self._hosting.broker_epoch, wanted)
        except Fenced as error:
            text = "This broker is no longer the controller."
            raise WireError(ErrorCode.NOT_CONTROLLER, text) from error

    def read_isr(self, keys: Sequence[PartitionKey]) -> Pending[list[IsrState | None]]:
        """What the metadata store has of each; WireError if it cannot be read."""
        return run(self._read_isr(keys))

    async def _read_isr(self, keys: Sequence[PartitionKey]) -> list[IsrState | None]:
        try:
            return await persistence.read_isr(self._store, keys)
        except (StoreFailed, Fenced) as error:
            text = f"The metadata store cannot be read: {error}"
            raise WireError(ErrorCode.REQUEST_TIMED_OUT, text) from error
