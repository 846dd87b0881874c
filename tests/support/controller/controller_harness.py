"""A real controller process, and stand-ins in the test's own process for its peers."""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import time
from pathlib import Path
from typing import Any

from support.network.call_documents import completed

from kbroker._ext.shared import partition_table, request_times, slot_names
from kbroker.cluster.image import ClusterImage
from kbroker.config.loader import load
from kbroker.errors import EXIT_CRASH, WireError
from kbroker.ipc import calls, documents, process_table
from kbroker.ipc.mailbox import Mailbox
from kbroker.ipc.process_table import CONTROLLER, READY, STATE, Address, ProcessKind, ProcessTable
from kbroker.ipc.regions import create_region
from kbroker.ipc.rpc import Pending, Rpc
from kbroker.metrics.slots import region_size as counters_size
from kbroker.security.tls.listeners import TlsListeners
from kbroker.supervisor.spawn import child_main
from kbroker.workers.base import ProcessContext, now_ms
from kbroker.workers.controller.process import ControllerWorker

IO_0, IO_1 = (Address(ProcessKind.IO_WORKER, index) for index in (0, 1))
NETWORK = Address(ProcessKind.NETWORK, 0)


class Peer:
    """A stand-in for a process: it has a mailbox, an image, and records its messages."""

    def __init__(self, harness: ControllerHarness, address: Address) -> None:
        self.harness = harness
        self.address = address
        self.image = ClusterImage()
        self.welcome: dict[str, Any] = {}  # what hello brought
        self.deltas: list[dict[str, Any]] = []  # what came after it
        self.stopped: list[calls.StoppedReplica] = []  # whose logs it has deleted
        self.refuses = False
        harness.table.begin_start(address)
        self.mailbox = Mailbox(harness.runtime_dir, harness.table, address)
        self.rpc = Rpc(self.mailbox, harness.table, now_ms)
        self.rpc.serve(calls.IMAGE, self.on_image)
        if address.kind is ProcessKind.IO_WORKER:
            self.rpc.serve(calls.STOP_REPLICAS, self.on_stop_replicas)

    def on_hello(self, outcome: Pending) -> None:
        """Take the image before any later message, and only then become ready, as a worker does."""
        if outcome.error is None:
            self.welcome = outcome.value
            self.image.apply(outcome.value)
            self.harness.table.set(self.address, STATE, READY)

    def on_image(self, sender: Address, change: calls.ImageChange) -> calls.ImageTaken:
        delta = change.delta
        if self.refuses:
            raise RuntimeError("refused by the test")
        self.harness.order.append((self.address, delta))
        self.deltas.append(delta)
        self.image.apply(delta)
        return calls.ImageTaken({})

    def on_stop_replicas(self, sender: Address, order: calls.StopReplicas) -> None:
        if self.refuses:
            raise RuntimeError("refused by the test")
        self.harness.order.append((self.address, order))
        self.stopped += order.replicas

    def restart(self) -> Peer:
        """The next incarnation of the same process."""
        self.mailbox.close()
        return Peer(self.harness, self.address)


class ControllerHarness:
    """Owns the shared regions, the stand-ins and the controller process."""

    def __init__(self, directory: Path, slots: int = 4096, **settings: object) -> None:
        self.data_dir = directory / "data"
        self.runtime_dir = str(directory / "run")
        os.makedirs(self.runtime_dir, exist_ok=True)
        self.config_path = str(directory / "server.properties")
        Path(self.config_path).touch()
        overrides = {"log.dirs": str(self.data_dir), "num.io.threads": "2", "broker.id": "0"}
        overrides |= {name.replace("_", "."): str(value) for name, value in settings.items()}
        addresses = [CONTROLLER, IO_0, IO_1, NETWORK]
        region = create_region("test-processes", process_table.region_size(len(addresses)))
        self.table = ProcessTable(region, addresses)
        context = self.context = ProcessContext()
        context.address = CONTROLLER
        context.parent_pid = os.getpid()
        context.config = context.first_config = load(self.config_path, overrides)[0]
        context.config_path = self.config_path
        context.overrides = overrides
        context.broker_id = 0
        context.cluster_id = "test-cluster"
        context.clean_start = {str(self.data_dir): True}
        context.failed_log_dirs = create_region("test-log-dirs", 1)
        context.runtime_dir = self.runtime_dir
        context.processes = self.table
        context.partition_table = create_region("test-slots", partition_table.region_size(slots))
        context.slot_names = create_region("test-names", slot_names.region_size(slots))
        context.counters = create_region("test-counters", counters_size(len(addresses)))
        times = request_times.region_size(len(addresses))
        context.request_times = create_region("test-request-times", times)
        context.listeners = []
        context.tls = TlsListeners()
        context.peer_security = {}
        context.properties = {}
        self.order: list[tuple[Address, dict[str, Any]]] = []
        self.pid = 0
        self.peers: dict[Address, Peer] = {}

    def start(self, peers: bool = True) -> ControllerHarness:
        """Fork the controller; with ``peers``, both io workers and the network process say
        hello.
        """
        self.start_controller()
        try:
            for address in (IO_0, IO_1, NETWORK) if peers else ():
                self.join(address)
        except BaseException:
            self.close()
            raise
        return self

    def start_controller(self) -> None:
        self.context.incarnation = self.table.begin_start(CONTROLLER)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                gc.freeze()  # objects of earlier tests must not be finalized in this process
                os._exit(child_main(ControllerWorker, self.context))
            finally:
                os._exit(EXIT_CRASH)  # whatever happens, it runs no tests

    def join(self, address: Address) -> Peer:
        """Start or restart a stand-in and give it the image."""
        known = self.peers.get(address)
        peer = Peer(self, address) if known is None else known.restart()
        self.peers[address] = peer
        hello = self.begin("hello", sender=address)
        hello.then(peer.on_hello)
        self.turn_until(lambda: hello.done)
        if hello.error is not None:
            raise hello.error
        return peer

    def call(self, operation: str, sender: Address = NETWORK, **args: Any) -> Any:
        """Call the controller and run all loops until it has replied; returns its result as JSON.

        args: the request's, those that may be left out too.
        """
        pending = self.begin(operation, sender, **args)
        self.turn_until(lambda: pending.done)
        if pending.error is not None:
            raise pending.error
        return json.loads(documents.encode(pending.value))

    def begin(self, operation: str, sender: Address = NETWORK, **args: Any) -> Any:
        row = calls.OPERATIONS[operation]
        request = row.read_request(completed(row.request, args))
        return self.peers[sender].rpc.call(CONTROLLER, row, request, 30_000)

    def turn_until(self, condition: Any, timeout_s: float = 60.0) -> None:
        """Let the stand-ins read their messages until the condition holds."""
        give_up_at = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > give_up_at:
                raise TimeoutError("the condition did not come about")
            arrived = select.poll()
            for peer in self.peers.values():
                arrived.register(peer.mailbox.fd, select.POLLIN)
            arrived.poll(5)
            for peer in list(self.peers.values()):
                while (message := peer.mailbox.receive()) is not None:
                    peer.rpc.on_message(message)
                peer.rpc.tick(now_ms())

    def await_ready(self) -> None:
        self.turn_until(lambda: self.table.is_ready(CONTROLLER))

    def kill(self) -> None:
        """kill -9 the controller."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.pid = 0

    def stop(self) -> int:
        """Shut down the controller; returns its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        pid, self.pid = self.pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def close(self) -> None:
        if self.pid:
            self.kill()
        for peer in self.peers.values():
            peer.mailbox.close()


def topic(name: str, partitions: int = 1, factor: int = 1, **config: str) -> dict[str, Any]:
    """An entry of create_topics."""
    return {
        "name": name, "num_partitions": partitions, "replication_factor": factor, "assignments": [],
        "configs": [[key.replace("_", "."), value] for key, value in config.items()],
    }  # fmt: skip


def code_of(function: Any) -> int:
    """The error code of a failed call."""
    try:
        function()
    except WireError as error:
        return int(error.code)
    return 0
