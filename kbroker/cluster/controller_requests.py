"""Requests of brokers to the active controller: ControlledShutdown and AlterIsr, as values.

The broker that is the controller itself asks by a call; from everywhere else these are APIs 7 and
56 on the wire, with the same fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.cluster.control_requests import NO_BROKER_EPOCH, PartitionKey
from kbroker.errors import ErrorCode
from kbroker.ipc.calls import IsrResult, WantedIsr


class ControlledShutdown(NamedTuple):
    """A broker is about to stop: other brokers must take over its leaderships."""

    broker_id: int
    broker_epoch: int = NO_BROKER_EPOCH


class ShutdownResponse(NamedTuple):
    """``remaining``: partitions that the broker still leads although others have replicas."""

    error: ErrorCode = ErrorCode.NONE
    remaining: tuple[PartitionKey, ...] = ()


class AlterIsr(NamedTuple):
    """The request of a leader for some of its partitions."""

    broker_id: int
    broker_epoch: int
    partitions: Sequence[WantedIsr]


class AlterIsrResponse(NamedTuple):
    """``error``: of the whole request, which has then changed nothing. ``partitions``: by key."""

    error: ErrorCode = ErrorCode.NONE
    partitions: Mapping[PartitionKey, IsrResult] = {}


ControllerRequest = ControlledShutdown | AlterIsr
ControllerResponse = ShutdownResponse | AlterIsrResponse
