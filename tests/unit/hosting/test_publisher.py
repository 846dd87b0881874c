"""The publisher: order, rounds, and failing processes."""

import pytest

from kbroker.cluster.control_requests import (
    LEADER_DURING_DELETE,
    KnownPartition,
    LeaderAndIsr,
    LedPartition,
    LiveBroker,
    Sender,
    UpdateMetadata,
)
from kbroker.errors import ErrorCode, WireError
from kbroker.hosting.image import Changes, HostImage
from kbroker.hosting.publisher import Publisher
from kbroker.hosting.replicas import HostedReplicas
from kbroker.hosting.slots import SlotAssignments
from kbroker.ipc import calls
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.ipc.rpc import Pending, run

pytestmark = pytest.mark.unit

IO = Address(ProcessKind.IO_WORKER, 0)
NETWORK = Address(ProcessKind.NETWORK, 0)


class FakeProcesses:
    def __init__(self):
        self.incarnations = {IO: 1, NETWORK: 1}

    def incarnation(self, address):
        return self.incarnations[address]

    def of_kind(self, kind):
        return [address for address in self.incarnations if address.kind == kind]

    def is_ready(self, address):
        return True


class FakeRpc:
    """Calls stay pending until the test resolves them."""

    def __init__(self):
        self.open = []
        self.sleeping = []

    def call(self, to, operation, request, timeout_ms=None):
        assert operation in (calls.IMAGE, calls.STOP_REPLICAS)
        is_image = operation is calls.IMAGE
        delta = request.delta if is_image else {"topics": request.replicas}
        self.open.append((to, delta, Pending()))
        return self.open[-1][2]

    def call_each(self, to, operation, request, timeout_ms=None):
        return [self.call(one, operation, request, timeout_ms) for one in to]

    def sleep(self, delay_ms):
        self.sleeping.append(Pending())
        return self.sleeping[-1]

    def answer(self, error=None, taken=None):
        """Resolve the oldest call; returns its receiver and its topics, or replicas."""
        to, delta, pending = self.open.pop(0)
        pending.resolve(calls.ImageTaken(taken or {}), error)
        return to, delta.get("topics")


@pytest.fixture
def parts(tmp_path):
    slots = SlotAssignments(str(tmp_path), 10, 1)
    image, rpc, processes = HostImage(0, "c", HostedReplicas(0, slots)), FakeRpc(), FakeProcesses()
    publisher = Publisher(rpc, processes, image)
    for address in (IO, NETWORK):
        publisher.subscribe(address)
    return image, rpc, processes, publisher


SENDER = Sender(0, 1)


def add(image, name):
    ids = {name: name.encode() * 16}
    row = (name, 0, 1, 0, 0, [0], 0, [0])
    image.replicas.take(LeaderAndIsr(SENDER, [LedPartition(*row)], ids))
    live = {0: LiveBroker([], None)}
    image.metadata.take(UpdateMetadata(SENDER, [KnownPartition(*row)], ids, live))


def changed(*names):
    keys = [(name, 0) for name in names]
    return Changes(keys, keys)


def test_network_is_told_once_io_workers_have_replied(parts):
    image, rpc, _, publisher = parts
    add(image, "a")
    done = publisher.publish(changed("a"))
    assert [to for to, _, _ in rpc.open] == [IO]
    rpc.answer()
    assert [to for to, _, _ in rpc.open] == [NETWORK]
    assert not done.done
    rpc.answer()
    assert done.done


def test_changes_during_a_round_go_out_together_in_the_next(parts):
    image, rpc, _, publisher = parts
    add(image, "a")
    first = publisher.publish(changed("a"))
    add(image, "b")
    second = publisher.publish(changed("b"))
    image.topic_config["a"] = {"x": "1"}
    third = publisher.publish(Changes(topics=["a"]))
    assert list(rpc.answer()[1]) == ["a"]
    assert list(rpc.answer()[1]) == ["a"]
    assert first.done
    assert not second.done
    to, topics = rpc.answer()
    assert (to, sorted(topics), topics["a"]["config"]) == (IO, ["a", "b"], {"x": "1"})
    rpc.answer()
    assert second.done
    assert third.done
    assert rpc.open == []


def test_process_that_fails_does_not_hold_up_the_others(parts):
    image, rpc, _, publisher = parts
    add(image, "a")
    done = publisher.publish(changed("a"))
    rpc.answer(WireError(ErrorCode.REQUEST_TIMED_OUT))
    assert rpc.answer()[0] == NETWORK
    assert done.done


def test_process_of_another_incarnation_waits_for_its_hello(parts):
    image, rpc, processes, publisher = parts
    processes.incarnations[IO] = 2
    add(image, "a")
    publisher.publish(changed("a"))
    assert rpc.answer()[0] == NETWORK
    publisher.subscribe(IO)
    publisher.publish(changed("a"))
    assert rpc.answer()[0] == IO


def test_publishing_nothing_waits_for_what_is_under_way(parts):
    image, rpc, _, publisher = parts
    assert publisher.publish().done
    add(image, "a")
    publisher.publish(changed("a"))
    done = publisher.publish()
    rpc.answer()
    assert not done.done
    rpc.answer()
    assert done.done


REPLICA = calls.StoppedReplica("a", 0, 0, 1)


def test_order_is_repeated_for_a_worker_that_restarted_meanwhile(parts):
    _, rpc, processes, publisher = parts
    done = run(publisher.stop_replicas([REPLICA]))
    processes.incarnations[IO] = 2  # it replied, and restarted before the reply was read
    assert rpc.answer() == (IO, [REPLICA])
    assert not done.done
    publisher.subscribe(IO)
    rpc.sleeping.pop().resolve()
    assert rpc.answer() == (IO, [REPLICA])
    assert done.done


def test_order_goes_to_the_owners_of_the_slots_alone(parts):
    _, rpc, processes, publisher = parts
    other = Address(ProcessKind.IO_WORKER, 1)
    processes.incarnations[other] = 1
    publisher.subscribe(other)
    rows = [calls.StoppedReplica("a", number, number, 1) for number in range(3)]

    done = run(publisher.stop_replicas(rows))
    assert [rpc.answer(), rpc.answer()] == [(IO, [rows[0], rows[2]]), (other, [rows[1]])]
    assert done.done
    assert run(publisher.stop_replicas(rows[1:2])).done is False
    assert rpc.answer()[0] == other


def test_replica_without_a_slot_is_looked_for_by_every_io_worker(parts):
    """It may be open in any of them, or on disk alone."""
    _, rpc, processes, publisher = parts
    other = Address(ProcessKind.IO_WORKER, 1)
    processes.incarnations[other] = 1
    publisher.subscribe(other)
    row = calls.StoppedReplica("a", 0, -1, 0)

    done = run(publisher.stop_replicas([row]))

    assert [rpc.answer(), rpc.answer()] == [(IO, [row]), (other, [row])]
    assert done.done


def test_image_for_io_workers_names_a_topic_until_its_logs_are_gone(parts):
    image, *_ = parts
    add(image, "a")
    gone = KnownPartition("a", 0, 1, LEADER_DURING_DELETE, -2, [0], 0, [0])
    image.metadata.take(UpdateMetadata(SENDER, [gone], {"a": b"a" * 16}, image.metadata.brokers))
    assert "a" in image.snapshot(for_io_worker=True)["topics"]
    assert image.delta(changed("a"), for_io_worker=False)["topics"] == {"a": None}
    assert image.snapshot(for_io_worker=False)["topics"] == {}

    assert image.replicas.remove(("a", 0), slot_incarnation=1)
    assert image.snapshot(for_io_worker=True)["topics"] == {}
    assert image.delta(changed("a"), for_io_worker=True)["topics"] == {"a": None}


def test_codes_of_partitions_that_cannot_be_served_are_the_outcome(parts):
    image, rpc, _, publisher = parts
    add(image, "a")
    done = publisher.publish(changed("a"))
    rpc.answer(taken={"a-0": 56})
    rpc.answer()
    assert done.value == {"a-0": 56}


def test_order_that_a_process_took_while_it_restarted_is_told_again(parts, monkeypatch):
    """The old incarnation was ready, so nobody knows what the new one has opened by now."""
    image, rpc, processes, publisher = parts
    add(image, "a")

    def restart(address):
        processes.incarnations[IO] = 2
        publisher.subscribe(IO)
        monkeypatch.undo()
        return True

    monkeypatch.setattr(processes, "is_ready", restart)
    done = run(publisher.stop_replicas([REPLICA]))
    rpc.answer()
    assert rpc.open[0][0] == IO and not done.done
    rpc.answer()
    assert done.done


def test_acceptor_gets_settings_without_topics(parts):
    """It dropped the 15,500 partitions of a large cluster, after reading them."""
    image, rpc, processes, publisher = parts
    acceptor = Address(ProcessKind.ACCEPTOR, 0)
    processes.incarnations[acceptor] = 1
    publisher.subscribe(acceptor)
    add(image, "a")
    image.broker_config["default"]["max.connections"] = "7"
    publisher.publish(changed("a"))
    rpc.answer()
    assert [to for to, _, _ in rpc.open] == [NETWORK]  # nothing else has changed
    rpc.answer()

    publisher.publish(Changes(*changed("a")[:2], settings=True))
    rpc.answer()
    (_, whole, _), (to, delta, _) = rpc.open
    assert to == acceptor
    assert "topics" in whole
    assert delta.keys() == {"version", "broker_config"}
    assert delta["broker_config"]["default"] == {"max.connections": "7"}
