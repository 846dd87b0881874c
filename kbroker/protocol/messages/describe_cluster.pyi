# Written by tools/gen_docs.py from the definitions of the module; change them there.

from collections.abc import Sequence

from kbroker.protocol.message import Message, Struct
from kbroker.protocol.primitives import Buffer


class DescribeClusterRequest(Message):
    include_cluster_authorized_operations: bool
    endpoint_type: int
    include_fenced_brokers: bool
    include_health: bool
    include_partitions: bool
    def __init__(
        self,
        *,
        include_cluster_authorized_operations: bool = ...,
        endpoint_type: int = ...,
        include_fenced_brokers: bool = ...,
        include_health: bool = ...,
        include_partitions: bool = ...,
    ) -> None: ...


class DescribeClusterResponse(Message):
    class DescribeClusterBroker(Struct):
        broker_id: int
        host: str
        port: int
        rack: str | None
        is_fenced: bool
        fenced_since_ms: int
        leads: int
        replicas: int
        def __init__(
            self,
            *,
            broker_id: int = ...,
            host: str = ...,
            port: int = ...,
            rack: str | None = ...,
            is_fenced: bool = ...,
            fenced_since_ms: int = ...,
            leads: int = ...,
            replicas: int = ...,
        ) -> None: ...

    class TroubledPartition(Struct):
        topic: str
        partition: int
        leader: int
        replicas: list[int]
        isr: list[int]
        def __init__(
            self,
            *,
            topic: str = ...,
            partition: int = ...,
            leader: int = ...,
            replicas: Sequence[int] = ...,
            isr: Sequence[int] = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    endpoint_type: int
    cluster_id: str
    controller_id: int
    brokers: list[DescribeClusterResponse.DescribeClusterBroker]
    cluster_authorized_operations: int
    health: str
    topics: int
    internal_topics: int
    partitions: int
    troubled: list[DescribeClusterResponse.TroubledPartition]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        endpoint_type: int = ...,
        cluster_id: str = ...,
        controller_id: int = ...,
        brokers: Sequence[DescribeClusterResponse.DescribeClusterBroker] = ...,
        cluster_authorized_operations: int = ...,
        health: str = ...,
        topics: int = ...,
        internal_topics: int = ...,
        partitions: int = ...,
        troubled: Sequence[DescribeClusterResponse.TroubledPartition] = ...,
    ) -> None: ...
