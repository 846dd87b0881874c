"""Whether this broker has room for more partitions: asked before a topic is made or enlarged."""

from __future__ import annotations

import logging
from collections.abc import Collection

from kbroker.errors import ErrorCode, WireError
from kbroker.hosting.replicas import HostedReplicas
from kbroker.hosting.slots import NoFreeSlot, SlotAssignments

logger = logging.getLogger(__name__)


class Room:
    """The slots that are left for the topics of one request.

    None is taken before ``reserve``, but what the topics before will take is gone: as a bound for
    what is planned, and as if the request was meant where it is only validated.
    """

    def __init__(self, slots: SlotAssignments, replicas: HostedReplicas) -> None:
        self._slots = slots
        self._replicas = replicas
        self._planned = 0

    def check(self, name: str, hosted: int) -> None:
        """INVALID_PARTITIONS unless so many replicas of the topic have room on this broker."""
        free = self._slots.free_count - self._planned
        if hosted > free:
            raise _no_room(name, hosted, NoFreeSlot(free, self._slots.capacity))

    def plan(self, name: str, hosted: int) -> None:
        """As ``check``, and have them count as taken."""
        self.check(name, hosted)
        self._planned += hosted

    def reserve(self, name: str, partitions: Collection[int]) -> None:
        """Take the slots. KAFKA_STORAGE_ERROR when they cannot be noted, INVALID_PARTITIONS."""
        try:
            self._slots.assign(name, list(partitions))
        except NoFreeSlot as error:
            raise _no_room(name, len(partitions), error) from error
        except OSError as error:
            text = f"cannot write the runtime directory: {error.strerror}"
            logger.error("topic %s: %s", name, text)
            raise WireError(ErrorCode.KAFKA_STORAGE_ERROR, f"Topic '{name}': {text}") from error

    def give_back(self, name: str, partitions: Collection[int]) -> None:
        """The topic was not made: free those that no replica has."""
        unused = [p for p in partitions if self._replicas.replica((name, p)) is None]
        self._slots.release(name, unused)


def _no_room(name: str, hosted: int, error: NoFreeSlot) -> WireError:
    return WireError(
        ErrorCode.INVALID_PARTITIONS,
        f"Topic '{name}' needs {hosted} more partitions here, but {error}, or use fewer.",
    )
