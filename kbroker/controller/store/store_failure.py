"""The wire errors for what the metadata store rejected, or could not be asked."""

from __future__ import annotations

import logging

from kbroker.errors import ErrorCode, WireError
from kbroker.metastore.settled import Fenced
from kbroker.metastore.store import StoreError, StoreFailed, TooLarge

logger = logging.getLogger(__name__)


def store_failure(error: StoreFailed | StoreError | Fenced) -> WireError:
    """The error for the client; the broker's log has the details."""
    if isinstance(error, Fenced):
        return WireError(ErrorCode.NOT_CONTROLLER, "This broker is no longer the controller.")
    if isinstance(error, TooLarge):
        return WireError(ErrorCode.INVALID_REQUEST, str(error))
    if isinstance(error, StoreError):
        logger.error("another client changed the metadata store: %r", error)
        text = f"{error.path} of the metadata store was changed by another client; try again."
        return WireError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
    logger.error("the metadata store failed: %s", error)
    return WireError(ErrorCode.KAFKA_STORAGE_ERROR, f"The metadata store failed: {error}")


def unreachable() -> WireError:
    """The error while the store is not connected; clients retry."""
    text = "The metadata store cannot be reached; try again."
    return WireError(ErrorCode.REQUEST_TIMED_OUT, text)
