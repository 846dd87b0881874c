"""What can keep the controller process from starting or from going on, and what is said then."""

from __future__ import annotations

import logging

from kbroker.adopt.errors import Refusal
from kbroker.controller.access.stored_acls import BadAcls
from kbroker.controller.election.membership import AddressTaken, AlreadyRegistered
from kbroker.controller.store.stored_features import UnsupportedFeatures
from kbroker.errors import EXIT_BAD_CONFIG, EXIT_CANNOT_START, EXIT_CRASH
from kbroker.hosting.slots import NoFreeSlot
from kbroker.metastore.store import StoreFailed, WrongCluster
from kbroker.metastore.store_files import COPY_NAME, FILE_NAME

logger = logging.getLogger(__name__)

CANNOT_JOIN = (WrongCluster, AddressTaken, AlreadyRegistered, UnsupportedFeatures)
START_FAILURES = (StoreFailed, WrongCluster, UnsupportedFeatures, NoFreeSlot, Refusal, OSError)
# The exceptions raised by malformed documents.
DAMAGED = (ValueError, KeyError, TypeError)


def cannot_start(error: BaseException) -> SystemExit:
    """Log why the controller cannot start, and stop the broker."""
    if isinstance(error, START_FAILURES):
        logger.error("the controller cannot start: %s", error)
    elif isinstance(error, DAMAGED):
        # The store returns other data than was written: its pages have no checksum.
        logger.error(
            "the controller cannot start: the metadata store %s is damaged (%s); restore it, "
            "or move it and %s away to adopt the topics on disk without their settings",
            FILE_NAME,
            error,
            COPY_NAME,
        )
    else:
        raise error
    return SystemExit(EXIT_CANNOT_START)


def exit_code_of(error: BaseException) -> int:
    """Log why the process ends after it has started."""
    if isinstance(error, BadAcls):
        logger.error("the broker cannot start: %s", error)
        return EXIT_BAD_CONFIG
    if isinstance(error, CANNOT_JOIN):
        logger.error("this broker cannot join the cluster: %s", error)
        return EXIT_BAD_CONFIG if isinstance(error, AlreadyRegistered) else EXIT_CANNOT_START
    logger.error("the controller process failed", exc_info=error)
    return EXIT_CRASH
