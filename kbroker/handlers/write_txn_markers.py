"""WriteTxnMarkers (27): versions 0 to 2.

A transaction coordinator ends transactions in partitions that this broker leads.
"""

from __future__ import annotations

from kbroker.errors import WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import each
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kbroker.security.operations import AclOperation, Kind


def fail(
    ctx: RequestContext, request: WriteTxnMarkersRequest, error: WireError
) -> WriteTxnMarkersResponse:
    """The same error for every partition."""
    result = WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic_result = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
    partition = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult
    return WriteTxnMarkersResponse(
        markers=[
            result(
                producer_id=marker.producer_id,
                topics=[
                    topic_result(
                        name=topic.name,
                        partitions=[
                            partition(partition_index=number, error_code=int(error.code))
                            for number in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


@api(
    ApiKey.WRITE_TXN_MARKERS,
    versions=ApiKey.WRITE_TXN_MARKERS.versions,
    fail=fail,
    authorize=(
        each(AclOperation.ALTER, Kind.CLUSTER),
        each(AclOperation.CLUSTER_ACTION, Kind.CLUSTER),
    ),
)
async def handle_write_txn_markers(
    ctx: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Write the markers through the owners of the partitions."""
    if not ctx.allows(AclOperation.ALTER, Kind.CLUSTER, is_filter=True):
        if not ctx.allows(AclOperation.CLUSTER_ACTION, Kind.CLUSTER):
            raise WireError(Kind.CLUSTER.error)
    from kbroker.coordinator.transaction.markers import MarkerWriter, over  # rare

    workers = ctx.io_workers
    writer = MarkerWriter(
        over(ctx.process.rpc), lambda: ctx.image, lambda slot: workers[slot % len(workers)]
    )
    return await writer.serve(request)
