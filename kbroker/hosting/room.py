"""Checks that this broker has room for more partitions, before they are created."""

from __future__ import annotations

import logging
from collections.abc import Collection

from kbroker.errors import ErrorCode, WireError
from kbroker.hosting.replicas import HostedReplicas
from kbroker.hosting.slots import NoFreeSlot, SlotAssignments

logger = logging.getLogger(__name__)


class Room:
    """The slots that are left for the topics of one request.

    No slot is taken before ``reserve``, but the plans of earlier topics are subtracted: this bounds
    what is planned, and it makes validate_only give the same result as the real request.
    """

    def __init__(self, slots: SlotAssignments, replicas: HostedReplicas) -> None:
        self._slots = slots
        self._replicas = replicas
        self._planned = 0

    def check(self, name: str, hosted: int) -> None:
        """Raises INVALID_PARTITIONS if this broker has no room for so many replicas."""
        free = self._slots.free_count - self._planned
        if hosted > free:
            raise _no_room(name, hosted, NoFreeSlot(free, self._slots.capacity))

    def plan(self, name: str, hosted: int) -> None:
        """Like ``check``, and counts them as taken."""
        self.check(name, hosted)
        self._planned += hosted

    def reserve(self, name: str, partitions: Collection[int]) -> None:
        """Reserve slots. INVALID_PARTITIONS; KAFKA_STORAGE_ERROR if they cannot be recorded."""
        try:
            self._slots.assign(name, list(partitions))
        except NoFreeSlot as error:
            raise _no_room(name, len(partitions), error) from error
        except OSError as error:
            text = f"cannot write the runtime directory: {error.strerror}"
            logger.error("topic %s: %s", name, text)
            raise WireError(ErrorCode.KAFKA_STORAGE_ERROR, f"Topic '{name}': {text}") from error

    def give_back(self, name: str, partitions: Collection[int]) -> None:
        """Free the slots that have no replica, because the topic was not created."""
        unused = [p for p in partitions if self._replicas.replica((name, p)) is None]
        self._slots.release(name, unused)


def _no_room(name: str, hosted: int, error: NoFreeSlot) -> WireError:
    return WireError(
        ErrorCode.INVALID_PARTITIONS,
        f"Topic '{name}' needs {hosted} more partitions here, but {error}, or use fewer.",
    )
