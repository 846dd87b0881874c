"""Failover in the controller process: its way to other brokers, to its io workers, and back."""

from __future__ import annotations

from typing import Protocol

from kbroker.config.loader import BrokerConfig
from kbroker.controller.election.failover import Failover
from kbroker.controller.replicas.background import Background
from kbroker.errors import WireError
from kbroker.hosting.hosting import Hosting
from kbroker.ipc import calls
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import ProcessKind, ProcessTable
from kbroker.ipc.rpc import Rpc
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import SessionState, Store
from kbroker.peers.connecting import Connecting
from kbroker.peers.endpoints import listener_for_control
from kbroker.peers.link import Link, LinkTimeouts, Loop
from kbroker.peers.watch import PeerWatches
from kbroker.protocol import codec
from kbroker.protocol.messages.peer_status import PeerStatusRequest, PeerStatusResponse
from kbroker.protocol.primitives import DecodeError
from kbroker.workers.base import ProcessContext, now_ms
from kbroker.workers.controller.candidacy import Candidacy

ON = "failover.fast"
# A broker that lives answers within milliseconds, or its machine is busy.
TIMES = LinkTimeouts(connect_ms=2_000, response_ms=2_000)


class FailingOverProcess(Loop, Protocol):
    """The controller process."""

    context: ProcessContext
    processes: ProcessTable
    hosting: Hosting
    rpc: Rpc
    store: Store
    own_store: SettledStore
    candidacy: Candidacy

    @property
    def config(self) -> BrokerConfig: ...

    def sleep(self, delay_ms: int) -> Pending[None]: ...


class FailingOver:
    """Made by the controller process, after its candidacy. Without ZooKeeper it does nothing."""

    def __init__(self, process: FailingOverProcess) -> None:
        self._process = process
        self._me = process.context.broker_id
        listener = listener_for_control(process.config)
        self._connecting = Connecting(process.context.peer_security.get(listener.name))
        self._watches = PeerWatches(self._me, self._link, listener, process, now_ms)
        self.failover = Failover(
            self._me,
            process.own_store,
            self._watches,
            self,
            lambda: bool(process.config[ON]) and process.store.is_shared,
        )
        self._is_started = False

    def start(self) -> None:
        """Watch other brokers, once the store says who they are."""
        if self._process.store.is_shared and not self._is_started:
            self._is_started = True
            self._process.add_reader(self._connecting.fd, self._connecting.run)
            self._process.store.watch_session(self._on_session)

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self.failover.look()

    def _link(self) -> Link:
        return Link(self._process, self._connecting, str(self._me), TIMES, now_ms)

    def serve(self, asked: calls.ControlMessage) -> calls.ControlReply:
        """Answer another broker's PeerStatus."""
        try:
            request = codec.decode_exact(PeerStatusRequest, asked.version, asked.body)
        except DecodeError as error:
            return calls.ControlReply(None, str(error))
        hearing = 0
        if request.about_id >= 0:
            hearing = int(self.failover.hearing(request.about_id, request.about_epoch))
        response = PeerStatusResponse(
            broker_id=self._me,
            broker_epoch=self._process.hosting.broker_epoch,
            hearing=hearing,
        )
        return calls.ControlReply(codec.encode(response, asked.version), "")

    def tick(self, now: int) -> None:
        """Called now and again."""
        self._watches.tick(now)

    # -- as the host of Failover --

    def now_ms(self) -> int:
        return now_ms()

    def sleep(self, delay_ms: int) -> Pending[None]:
        return self._process.sleep(delay_ms)

    @property
    def background(self) -> Background | None:
        return self._process.candidacy.background

    def drop_follower(self, broker_id: int, closed_ms: int) -> Pending[int]:
        return run(self._drop_follower(broker_id, closed_ms))

    async def _drop_follower(self, broker_id: int, closed_ms: int) -> int:
        process, heard_ms = self._process, 0
        workers = process.processes.of_kind(ProcessKind.IO_WORKER)
        gone = calls.GoneFollower(broker_id, closed_ms)
        for answer in process.rpc.call_each(workers, calls.GONE_FOLLOWER, gone):
            try:
                heard_ms = max(heard_ms, (await answer).heard_ms)
            except WireError:
                continue  # it restarts, and its leaders begin anew
        return heard_ms
