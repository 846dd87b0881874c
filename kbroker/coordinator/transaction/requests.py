"""Requests of the transaction APIs: checks, contents and responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.transaction import rules
from kbroker.coordinator.transaction.state import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    Partition,
)
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from kbroker.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)

if TYPE_CHECKING:
    from kbroker.config.loader import BrokerConfig


def check_init(request: InitProducerIdRequest, config: BrokerConfig) -> ErrorCode:
    """Validate the request, independently of the state; returns an error or NONE."""
    has_id = request.producer_id != NO_PRODUCER_ID
    if not request.transactional_id or has_id != (request.producer_epoch != NO_EPOCH):
        return ErrorCode.INVALID_REQUEST
    if request.enable2_pc and not config["transaction.two.phase.commit.enable"]:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    # COMPAT: Kafka 4.3 does not continue a prepared transaction yet (KIP-939).
    if request.keep_prepared_txn:
        return ErrorCode.UNSUPPORTED_VERSION
    timeout_ms_max = config["transaction.max.timeout.ms"]
    if not request.enable2_pc and not 0 < request.transaction_timeout_ms <= timeout_ms_max:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NONE


def timeout_of(request: InitProducerIdRequest) -> int:
    """The timeout of the producer's transactions; with two-phase commit they have none."""
    timeout_ms: int = request.transaction_timeout_ms
    return NO_TIMEOUT_MS if request.enable2_pc else timeout_ms


def init_failed(code: ErrorCode, version: int) -> InitProducerIdResponse:
    """The response without a producer id."""
    shown = rules.for_version(code, "init", version)
    return InitProducerIdResponse(error_code=int(shown), producer_epoch=NO_EPOCH)


def partitions_of(topics: Iterable[Any]) -> list[Partition]:
    """Every partition in AddPartitionsToTxn once, in order."""
    partitions = {
        (topic.name, partition): None for topic in topics for partition in topic.partitions
    }
    return list(partitions)


def _topic_results(
    codes: Mapping[Partition, ErrorCode],
) -> list[Any]:
    made = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
    topics: dict[str, list[Any]] = {}
    for (topic, partition), code in codes.items():
        result = made(partition_index=partition, partition_error_code=int(code))
        topics.setdefault(topic, []).append(result)
    return [
        AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
            name=topic, results_by_partition=results
        )
        for topic, results in topics.items()
    ]


def partitions_added_v3(codes: Mapping[Partition, ErrorCode]) -> AddPartitionsToTxnResponse:
    """The response of versions 0 to 3."""
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_topic_results(codes))


def transaction_result(transactional_id: str, codes: Mapping[Partition, ErrorCode]) -> Any:
    """The result for one transaction, from version 4 on."""
    return AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
        transactional_id=transactional_id, topic_results=_topic_results(codes)
    )


def partitions_added(
    results: list[Any],
) -> AddPartitionsToTxnResponse:
    """The response from version 4 on."""
    return AddPartitionsToTxnResponse(results_by_transaction=results)
