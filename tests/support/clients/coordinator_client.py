"""A client of group and transaction coordinators for tests over real processes: one request at a
time, with retries while a coordinator is away.
"""

from __future__ import annotations

from typing import Any

from support.clients.wire_client import WireClient

from kbroker.errors import ErrorCode
from kbroker.protocol import codec
from kbroker.protocol.message import Message
from kbroker.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kbroker.protocol.messages.end_txn import EndTxnRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.init_producer_id import InitProducerIdRequest
from kbroker.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest
from kbroker.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from kbroker.testing import Broker, wait_until

AWAY = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
NOTHING = -1


class Client:
    """One connection after the other; retries while a coordinator is away."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.wire = WireClient((broker.host, broker.port))
        for key_type in (0, 1):
            wait_until(lambda kind=key_type: self.finds(kind), 60, "there are coordinators")

    def finds(self, key_type: int) -> bool:
        request = FindCoordinatorRequest(key="g", key_type=key_type)
        return bool(self.wire.call(request, 2).error_code == 0)

    def again(self) -> None:
        """Connect to a running network process."""

        def connects() -> bool:
            self.wire.close()
            try:
                self.wire = WireClient((self.broker.host, self.broker.port))
                return self.finds(0)
            except OSError:
                return False  # handed to one that was killed just before

        wait_until(connects, 60, "a network process serves")

    def ask(self, request: Message, version: int) -> Any:
        """The first response of a coordinator that serves."""
        found: list[Any] = []

        def served() -> bool:
            found.append(self.wire.call(request, version))
            return code_in(found[-1]) not in AWAY

        wait_until(served, 60, f"an answer to {request}")
        return found[-1]

    def join(self, member_id: str = "", group: str = "g") -> int:
        """Send a JoinGroup; its response arrives when the others have joined."""
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
        return self.wire.send(
            JoinGroupRequest(
                group_id=group,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=60_000,
                member_id=member_id,
                protocol_type="consumer",
                protocols=[protocol],
            ),
            3,
        )

    def commit(self, offset: int, group: str = "g") -> int:
        return code_in(self.ask(commit_request(offset, group), 7))

    def commit_once(self, offset: int, group: str = "g", metadata: str = "") -> int:
        """Commit at whichever coordinator responds."""
        return code_in(self.wire.call(commit_request(offset, group, metadata), 7))

    def fetch(self, group: str = "g") -> tuple[int, int]:
        """Offset and error of a stable commit."""
        (found,) = self.ask(self.fetch_request(group), 7).topics[0].partitions
        return found.committed_offset, found.error_code

    @staticmethod
    def fetch_request(group: str = "g") -> OffsetFetchRequest:
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
        return OffsetFetchRequest(group_id=group, topics=[topic], require_stable=True)


def commit_request(offset: int, group: str, metadata: str = "") -> OffsetCommitRequest:
    cls = OffsetCommitRequest
    partition = cls.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=metadata
    )
    topic = cls.OffsetCommitRequestTopic(name="t", partitions=[partition])
    return cls(group_id=group, topics=[topic])


def code_in(response: Any) -> int:
    """The error of a response, or of its first part with one."""
    if hasattr(response, "error_code") and response.error_code:
        return int(response.error_code)
    for name in ("topics", "results", "partitions"):
        for part in getattr(response, name, None) or ():
            if code := code_in(part):
                return code
    return 0


class Writer:
    """A transaction that commits offsets in the first protocol."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        response = client.ask(request, 2)
        assert response.error_code == 0
        self.producer = {
            "producer_id": response.producer_id,
            "producer_epoch": response.producer_epoch,
        }

    def commit_offset(self, offset: int, group: str = "g") -> None:
        add = AddOffsetsToTxnRequest(transactional_id=self.name, group_id=group, **self.producer)
        assert self.client.ask(add, 2).error_code == 0
        cls = TxnOffsetCommitRequest
        partition = cls.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = cls(
            transactional_id=self.name,
            group_id=group,
            topics=[cls.TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
            **self.producer,
        )
        assert code_in(self.client.ask(request, 2)) == 0

    def end(self, commit: bool) -> int:
        request = EndTxnRequest(transactional_id=self.name, committed=commit, **self.producer)
        return int(self.client.ask(request, 2).error_code)


def response_to_join(client: Client) -> Any:
    """The next response on the connection, to a JoinGroup 3."""
    return codec.decode_exact(JoinGroupResponse, 3, client.wire.receive(), 4)
