"""A network process for handlers: a real image, configs and partition table, calls served by the
test, and requests and responses that go through the codec.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from support.controller.control_process import serve_control
from support.network.call_documents import arguments, completed

from kbroker._ext.network.connection import SERVING
from kbroker._ext.shared import request_times
from kbroker._ext.shared.partition_table import (
    FOLLOWER,
    LEADER,
    ONLINE,
    PartitionTable,
    region_size,
)
from kbroker.cluster.image import ClusterImage, PartitionImage
from kbroker.cluster.settings import effective_config
from kbroker.config.loader import BrokerConfig, Listener
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.dispatch import RequestDispatcher
from kbroker.handlers.support.joining import Joining
from kbroker.ipc import documents, log_dir_table, process_table
from kbroker.ipc.calls import CallOperation, Failure, Results
from kbroker.ipc.process_table import Address, ProcessKind, ProcessTable
from kbroker.ipc.rpc import Pending
from kbroker.ipc.slices import Slices, Turn
from kbroker.log_levels import LogLevels
from kbroker.metrics.slots import Counters
from kbroker.metrics.slots import region_size as region_size_of_counters
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, response_class
from kbroker.protocol.header import decode_response_header, encode_request_header
from kbroker.protocol.message import Message
from kbroker.security.access import AccessTable
from kbroker.security.acl_index import AclIndex
from kbroker.security.authorizer import AllowAll, Authorizer
from kbroker.security.principal import ANONYMOUS, KafkaPrincipal

SLOTS = 16
IO_WORKERS = 2
CORRELATION_ID = 77
Respond = Callable[..., Any]


def topic_document(
    topic_id: bytes,
    slots: list[int],
    *,
    config: dict[str, str] | None = None,
    internal: bool = False,
    leader: int = 0,
    leader_epoch: int = 0,
    replicas: Sequence[int] = (0,),
) -> dict[str, Any]:
    """A topic of the image's JSON; broker 0 alone is in sync."""
    return {
        "id": topic_id.hex(),
        "internal": internal,
        "config": config or {},
        "partitions": [
            PartitionImage(leader, leader_epoch, [0], list(replicas), slot, 1) for slot in slots
        ],
    }


class FakeRpc:
    """Calls complete with what ``responses[name of the operation](address, **request)`` returns
    or raises, at once unless ``held``. Requests and results go through JSON, as between processes;
    fields with default values are left out of requests, and may be left out of results.
    """

    def __init__(self) -> None:
        self.responses: dict[str, Respond] = {}
        self.calls: list[tuple[Address, str, int, dict[str, Any]]] = []
        self.is_holding = False
        self.held: list[Callable[[], None]] = []
        self.timers: list[tuple[int, Pending[None]]] = []

    def sleep(self, delay_ms: int) -> Pending[None]:
        pending: Pending[None] = Pending()
        self.timers.append((delay_ms, pending))
        return pending

    def call(
        self,
        to: Address,
        operation: CallOperation[Any, Any],
        request: Any,
        timeout_ms: int | None = None,
    ) -> Pending[Any]:
        assert operation.read_request(json.loads(documents.encode(request))) == request
        args = arguments(request)
        timeout_ms = operation.deadline_ms if timeout_ms is None else timeout_ms
        self.calls.append((to, operation.name, timeout_ms, args))
        pending: Pending[Any] = Pending()

        def finish() -> None:
            try:
                value = self.responses[operation.name](to, **args)
            except WireError as error:
                pending.resolve(error=error)
            else:
                answer = completed(operation.reply, json.loads(documents.encode(value)))
                pending.resolve(operation.read_reply(answer))

        if self.is_holding:
            self.held.append(finish)
        else:
            finish()
        return pending

    def release(self) -> None:
        """Let the held calls complete, in order."""
        held, self.held = self.held, []
        for finish in held:
            finish()


def done_at_once(work: Callable[[], Any]) -> Pending[Any]:
    """Work beside the loop, done in it."""
    pending: Pending[Any] = Pending()
    pending.resolve(work())
    return pending


class FakeLink:
    """A ``CoordinatorLink`` whose calls are served by ``answer(slot, api key, version, body,
    **rest)``.
    """

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.answer: Respond | None = None

    def call(
        self,
        slot: int,
        slot_incarnation: int,
        api_key: int,
        version: int,
        body: bytes,
        client_id: str,
        client_host: str,
        principal: KafkaPrincipal,
        timeout_ms: int,
        quota: tuple[int, float],
    ) -> Pending:
        rest = {
            "client_id": client_id,
            "client_host": client_host,
            "principal": principal,
            "timeout_ms": timeout_ms,
            "quota": quota,
        }
        self.calls.append({"slot": slot, "incarnation": slot_incarnation, "body": body, **rest})
        pending = Pending()
        try:
            if self.answer is None:
                raise WireError(ErrorCode.NOT_COORDINATOR)
            pending.resolve(self.answer(slot, ApiKey(api_key), version, body))
        except WireError as error:
            pending.resolve(error=error)
        return pending


class PromptSlices(Slices):
    """Resumes a coroutine as soon as it can run."""

    def _put(self, turn: Turn, step: Callable[[], bool], takes_ns: int) -> None:
        is_first = not self.has_work
        super()._put(turn, step, takes_ns)
        while is_first and self.has_work:
            self.run()


class NetworkProcess:
    """A network process for a ``RequestDispatcher``."""

    beside = SimpleNamespace(run=done_at_once)

    def __init__(self, **settings: str) -> None:
        self.rpc = FakeRpc()
        self.rpc.responses["control_request"] = serve_control
        self.slices: Slices = PromptSlices()
        self.joining = Joining()
        self.given_away_bytes = 0
        self.accesses = AccessTable(AllowAll())
        self.acls: AclIndex | None = None
        self.lightened: list[Any] = []
        self.muted_ms: list[int] = []
        self.loop = SimpleNamespace(
            lighten=self.lightened.append,
            limits=SimpleNamespace(on=False),
            mute=lambda _, until_ms: self.muted_ms.append(until_ms),
        )
        self.coordinators = FakeLink()
        self.counters = Counters(bytearray(region_size_of_counters(1)), 0)
        self._started_with = self.config = BrokerConfig(
            {k.replace("_", "."): v for k, v in settings.items()}
        )
        self.table = PartitionTable(bytearray(region_size(SLOTS)), SLOTS)
        self.address = Address(ProcessKind.NETWORK, 0)
        self.io_workers = [Address(ProcessKind.IO_WORKER, index) for index in range(IO_WORKERS)]
        self.context = self._context()
        self.image = ClusterImage()
        self.image.apply(
            {
                "snapshot": True,
                "version": 1,
                "cluster_id": "cluster-1",
                "controller_id": 0,
                "brokers": {
                    "0": {
                        "endpoints": [
                            ["PLAINTEXT", "", 9092, "PLAINTEXT"],
                            ["OUTSIDE", "broker.example.org", 19093, "PLAINTEXT"],
                        ],
                        "rack": "r1",
                    }
                },
                "topics": {},
                "broker_config": {"default": {}},
            }
        )
        self.connection = SimpleNamespace(
            listener=0,
            local_address=("192.0.2.7", 9092),
            peer_host="198.51.100.4",
            peer_port=40123,
            client_id=None,
            turn=None,
            throttle_time_ms=0,
            access=self.accesses.of(ANONYMOUS, "198.51.100.4"),
            phase=SERVING,
            login=None,
            software=b"",
            software_version=b"",
            name_software=self.name_software,
        )
        self.telemetry: Any = None
        self.log_levels = LogLevels("/nonexistent")
        self.times = request_times.RequestTimes(bytearray(request_times.region_size(1)), 0)
        self.dispatcher = RequestDispatcher(self)  # type: ignore[arg-type]

    def _context(self) -> Any:
        """Of a process of the broker."""
        return SimpleNamespace(
            broker_id=0,
            cluster_id="cluster-1",
            listeners=[
                (Listener("PLAINTEXT", "PLAINTEXT", "", 9092), None),
                (Listener("OUTSIDE", "PLAINTEXT", "", 9093), None),
            ],
            config=self.config,
            address=self.address,
            processes=ProcessTable(
                mmap.mmap(-1, process_table.region_size(1 + IO_WORKERS)),
                [self.address, *self.io_workers],
            ),
            parent_pid=os.getppid(),
            failed_log_dirs=mmap.mmap(-1, log_dir_table.region_size(len(self.config.log_dirs))),
        )

    def name_software(self, name: bytes, version: bytes) -> None:
        """Its client has said what it is."""
        self.connection.software, self.connection.software_version = name, version

    def follow(self, authorizer: Authorizer) -> None:
        """Let it decide what the client may do from now on."""
        self.accesses.follow(authorizer)

    def add_topic(self, name: str, topic_id: bytes, slots: list[int], **options: Any) -> None:
        self.apply(topics={name: topic_document(topic_id, slots, **options)})
        for slot in slots:
            found = self.table.read(slot) if 0 <= slot < SLOTS else None
            if found is not None:  # its owner is told, too
                self.table.set_role(slot, *self._role(slot))

    def _role(self, slot: int) -> tuple[int, int, int]:
        """Role, leader epoch and partition epoch of a slot, from the image."""
        for topic in self.image.topics.values():
            for partition in topic.partitions:
                if partition.slot == slot:
                    return (
                        (LEADER if partition.leader == 0 else FOLLOWER),
                        partition.leader_epoch,
                        0,
                    )
        return LEADER, 0, 0

    def apply(self, **delta: Any) -> None:
        """Apply a delta of the image; configs are updated from it, as in a worker."""
        self.image.apply({"version": self.image.version + 1, **delta})
        self.config = effective_config(self._started_with, self.image.broker_config, 0)
        if self.image.brokers:
            self.joining.joined()

    def put_log(
        self,
        slot: int,
        start: int,
        end: int,
        *,
        stable: int | None = None,
        state: int = ONLINE,
        role: int | None = None,
        epochs: tuple[int, int, int] | None = None,
    ) -> None:
        """A slot with these offsets. epochs: the latest of the log, its first offset, and the
        previous one; by default it has one.
        """
        present, leader_epoch, partition_epoch = self._role(slot)
        self.table.reset(slot, state=state, slot_incarnation=1)
        self.table.set_role(slot, present if role is None else role, leader_epoch, partition_epoch)
        self.table.set_epochs(slot, *(epochs or (leader_epoch, start, -1)))
        self.table.publish(
            slot,
            log_start_offset=start,
            log_end=(end, 0, 0),
            high_watermark=(end, 0, 0),
            last_stable=None if stable is None else (stable, 0, 0),
        )

    def set_response(self, operation: str, respond: Respond) -> None:
        """Have calls of the operation return what ``respond(address, **args)`` does."""
        self.rpc.responses[operation] = respond

    def set_each_response(self, operation: str, respond: Respond) -> None:
        """Have ``OwnerCalls`` get ``respond(address, *question)`` for each partition; a WireError
        is that partition's.
        """

        def respond_to_all(to: Address, asked: list[Any]) -> Results[Any]:
            response: Results[Any] = Results([], [])
            for number, question in enumerate(asked):
                try:
                    response.results.append(respond(to, *question))
                except WireError as error:
                    response.results.append(None)
                    response.failures.append(Failure(number, int(error.code), error.message))
            return response

        self.rpc.responses[operation] = respond_to_all

    def asked(self, operation: str) -> list[Any]:
        """The requests of ``OwnerCalls`` about each partition, in the order of the calls."""
        return [tuple(question) for call in self.calls(operation) for question in call["asked"]]

    def calls(self, operation: str) -> list[dict[str, Any]]:
        """The arguments of every call of the operation."""
        return [args for _, name, _, args in self.rpc.calls if name == operation]

    # -- requests ----------------------------------------------------------------------------

    def send(self, request: Message, version: int) -> Pending:
        """The response's bytes, perhaps later."""
        return self.send_bytes(encoded_request(request, version))

    def send_bytes(self, frame: bytes) -> Pending:
        return self.dispatcher.handle(self.connection, frame)  # type: ignore[arg-type]

    def ask(self, request: Message, version: int) -> Any:
        """The decoded response; None if the connection must be closed."""
        outcome = self.send(request, version)
        assert outcome.done, "the request waits"
        assert outcome.error is None, outcome.error
        assert request.API_KEY is not None
        return decode(request.API_KEY, version, outcome.value)


def encoded_request(request: Message, version: int) -> bytes:
    """A frame, without its length."""
    assert request.API_KEY is not None
    header = encode_request_header(request.API_KEY, version, CORRELATION_ID, "a-client")
    return header + codec.encode(request, version)


def decode(key: ApiKey, version: int, data: bytes | None) -> Any:
    """A response, whose correlation id must be that of the request."""
    if data is None:
        return None
    correlation_id, offset = decode_response_header(data, key, version)
    assert correlation_id == CORRELATION_ID
    return codec.decode_exact(response_class(key), version, data, offset)
