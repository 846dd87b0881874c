"""What coordinators and logs ask the processes of their broker about transactions."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kbroker.errors import ErrorCode, WireError
from kbroker.ipc import calls
from kbroker.ipc.pending import Pending
from kbroker.ipc.process_table import Address

if TYPE_CHECKING:
    from kbroker.workers.io.coordinators import CoordinatingProcess

logger = logging.getLogger(__name__)


class MarkerCalls:
    """Has io workers write markers; those of this process directly."""

    def __init__(self, process: CoordinatingProcess) -> None:
        self._process = process

    def write(self, to: Address, markers: list[calls.SlotMarker]) -> Pending[list[int]]:
        """Resolves to their error codes."""
        if to == self._process.address:
            return self._process.write_markers(markers)
        return self._process.rpc.call(to, calls.WRITE_MARKERS, calls.WriteMarkers(markers))


def verification_code(outcome: Pending[Any]) -> int:
    """The error code of a verification, 0 if the batch may be written."""
    if outcome.error is None:
        return int(outcome.value)
    if isinstance(outcome.error, WireError):
        return int(outcome.error.code)
    logger.error("cannot verify a transaction", exc_info=outcome.error)
    return int(ErrorCode.UNKNOWN_SERVER_ERROR)
