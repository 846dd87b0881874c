"""Which control requests a broker accepts and rejects, and the order in which it applies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kbroker.cluster.control_requests import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    NO_BROKER_EPOCH,
    NO_LEADER,
    NO_LEADER_EPOCH,
    ControlRequest,
    ControlResponse,
    KnownPartition,
    LeaderAndIsr,
    LedPartition,
    LiveBroker,
    Sender,
    StoppedPartition,
    StopReplica,
    UpdateMetadata,
)
from kbroker.cluster.image import PartitionImage
from kbroker.errors import ErrorCode
from kbroker.hosting.hosting import Hosting
from kbroker.hosting.image import Changes, HostImage
from kbroker.hosting.slots import SlotAssignments
from kbroker.ipc.calls import StoppedReplica
from kbroker.ipc.pending import Pending
from kbroker.storage.dirs.creation_note import creation_of
from kbroker.types import BrokerId

pytestmark = pytest.mark.unit

CONTROLLER = Sender(9, 5, 100)
IDS = {"t": b"t" * 16, "u": b"u" * 16}
BROKERS = {0: LiveBroker([], None), 1: LiveBroker([], "r1")}
KEY = ("t", 0)


class Processes:
    """Apply everything at once, unless the test delays it."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.unavailable: dict[str, int] = {}
        self.orders: list[Pending[None]] | None = None  # not None: they wait

    def publish(self, changes: Changes = Changes()) -> Pending[dict[str, int]]:
        self.told.append(changes)
        done: Pending[dict[str, int]] = Pending()
        done.resolve(self.unavailable)
        return done

    async def stop_replicas(self, replicas: Sequence[StoppedReplica]) -> None:
        self.told.append(list(replicas))
        if self.orders is not None:
            self.orders.append(Pending())
            await self.orders[-1]


class Broker:
    def __init__(self, directory: Any, slots: int = 10) -> None:
        self.slots = SlotAssignments(str(directory), slots, 1)
        self.hosting = Hosting(BrokerId(0), "c", self.slots)
        self.hosting.broker_epoch = 100
        self.processes = Processes()
        self.hosting.publish_to(self.processes)

    def ask(self, request: ControlRequest) -> ControlResponse:
        outcome = self.hosting.take(request)
        assert outcome.error is None and outcome.done
        return outcome.value

    def role(self, key: tuple[str, int] = KEY) -> tuple[int, int] | None:
        replica = self.hosting.replicas.replica(key)
        return None if replica is None else (replica.told.leader, replica.told.leader_epoch)


@pytest.fixture
def broker(tmp_path: Any) -> Broker:
    return Broker(tmp_path)


def led(epoch: int, *, leader: int = 0, replicas: Sequence[int] = (0, 1), topic: str = "t",
        number: int = 0, sender: Sender = CONTROLLER) -> LeaderAndIsr:  # fmt: skip
    isr = list(replicas)
    row = LedPartition(topic, number, sender.controller_epoch, leader, epoch, isr, epoch, isr)
    return LeaderAndIsr(sender, [row], IDS)


def known(epoch: int = 0, *, leader: int = 0, topic: str = "t", number: int = 0,
          sender: Sender = CONTROLLER) -> UpdateMetadata:  # fmt: skip
    row = KnownPartition(topic, number, sender.controller_epoch, leader, epoch, [0, 1], 0, [0, 1])
    return UpdateMetadata(sender, [row], IDS, BROKERS)


def stop(epoch: int, *, delete: bool, sender: Sender = CONTROLLER) -> StopReplica:
    return StopReplica(sender, [StoppedPartition(*KEY, epoch, delete)])


REQUESTS = [led(3), known(3), stop(3, delete=True), stop(EPOCH_DURING_DELETE, delete=True)]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
@pytest.mark.parametrize(
    ("sender", "error"),
    [
        (Sender(8, 4, 100), ErrorCode.STALE_CONTROLLER_EPOCH),
        (Sender(9, 6, 99), ErrorCode.STALE_BROKER_EPOCH),
    ],
)
def test_stale_sender_is_refused_and_nothing_changes(
    broker: Broker, request_: Any, sender: Sender, error: ErrorCode
) -> None:
    broker.ask(led(2))
    broker.ask(known(2))
    before = broker.hosting.image.snapshot(True), broker.hosting.image.snapshot(False)
    broker.processes.told.clear()
    response = broker.ask(request_._replace(sender=sender))
    assert (response.error, response.partitions) == (error, {})
    assert before == (broker.hosting.image.snapshot(True), broker.hosting.image.snapshot(False))
    assert broker.processes.told == []
    assert broker.hosting.controller_epoch == 5


@pytest.mark.parametrize("broker_epoch", [NO_BROKER_EPOCH, 100, 101])
def test_controller_may_not_know_the_broker_epoch_or_know_it_before_the_broker(
    broker: Broker, broker_epoch: int
) -> None:
    response = broker.ask(led(1, sender=Sender(9, 5, broker_epoch)))
    assert (response.error, response.partitions) == (ErrorCode.NONE, {})
    assert broker.role() == (0, 1)


@pytest.mark.parametrize("epoch", [2, 1])
def test_leader_epoch_only_grows(broker: Broker, epoch: int) -> None:
    broker.ask(led(2))
    response = broker.ask(led(epoch, leader=1))
    assert response.partitions == {KEY: ErrorCode.STALE_CONTROLLER_EPOCH}
    assert broker.role() == (0, 2)
    assert broker.ask(led(3, leader=1)).partitions == {}
    assert broker.role() == (1, 3)


def test_partition_that_is_assigned_to_others_is_none_of_this_broker(broker: Broker) -> None:
    response = broker.ask(led(1, leader=1, replicas=[1, 2]))
    assert response.partitions == {KEY: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert broker.role() is None
    assert broker.slots.free_count == 10


def test_refused_partition_does_not_keep_the_others_from_their_roles(broker: Broker) -> None:
    broker.ask(led(2))
    both = led(2)
    both.partitions.extend(led(0, number=1).partitions)
    assert list(broker.ask(both).partitions) == [KEY]
    assert broker.role(("t", 1)) == (0, 0)


def test_partition_without_a_slot_is_a_storage_error(tmp_path: Any) -> None:
    broker = Broker(tmp_path, slots=1)
    broker.ask(led(1))
    response = broker.ask(led(1, topic="u"))
    assert response.partitions == {("u", 0): ErrorCode.KAFKA_STORAGE_ERROR}
    assert broker.role(("u", 0)) is None


def test_log_that_cannot_be_opened_is_in_the_response(broker: Broker) -> None:
    broker.processes.unavailable = {"t-0": int(ErrorCode.KAFKA_STORAGE_ERROR), "u-0": 1}
    assert broker.ask(led(1)).partitions == {KEY: ErrorCode.KAFKA_STORAGE_ERROR}


def partitions(image: HostImage, *, for_io_worker: bool) -> list[PartitionImage]:
    """Those of the topic, as a process is told when it starts."""
    document = image.snapshot(for_io_worker)["topics"]["t"]
    assert document is not None
    return [PartitionImage(*fields) for fields in document["partitions"]]


def test_io_workers_go_by_roles_and_others_by_the_metadata(broker: Broker) -> None:
    """The two may differ for seconds."""
    broker.ask(led(1, leader=0))
    image = broker.hosting.image
    assert image.snapshot(for_io_worker=False)["topics"] == {}
    broker.ask(known(0, leader=1))
    (theirs,) = partitions(image, for_io_worker=False)
    (roles,) = partitions(image, for_io_worker=True)
    assert (theirs.leader, theirs.leader_epoch, theirs.slot) == (1, 0, 0)
    assert (roles.leader, roles.leader_epoch, roles.slot) == (0, 1, 0)


def test_each_process_is_told_once_of_what_concerns_it(broker: Broker) -> None:
    broker.ask(known(0, number=1))  # another broker has it
    broker.ask(led(1))
    broker.ask(known(1))
    broker.ask(known(1))  # once more
    told = [(list(c.of_io_workers), list(c.of_others)) for c in broker.processes.told]
    first, second = ("t", 0), ("t", 1)
    assert told == [([second], [second]), ([first], []), ([], [first])]
    image = broker.hosting.image
    assert [one.leader for one in partitions(image, for_io_worker=True)] == [0, 0]


def test_partition_between_others_of_which_nothing_is_known_has_no_leader(broker: Broker) -> None:
    broker.ask(led(1, number=1))
    first, second = partitions(broker.hosting.image, for_io_worker=True)
    assert (first.leader, first.replicas, first.slot) == (-1, [], -1)
    assert (second.leader, second.slot) == (0, 0)


def test_broker_that_is_gone_is_null_once(broker: Broker) -> None:
    broker.ask(known())
    broker.ask(known()._replace(live_brokers={0: BROKERS[0]}))
    delta = broker.hosting.image.delta(broker.processes.told[-1], for_io_worker=True)
    assert delta is not None and delta["brokers"] == {"1": None}


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_order_of_an_old_leader_epoch_is_fenced(broker: Broker, epoch: int) -> None:
    """Also one of the current epoch, as in Kafka 2.7."""
    broker.ask(led(2))
    response = broker.ask(stop(epoch, delete=True))
    assert response.partitions == {KEY: ErrorCode.FENCED_LEADER_EPOCH}
    assert broker.role() == (0, 2)


@pytest.mark.parametrize("epoch", [3, EPOCH_DURING_DELETE, NO_LEADER_EPOCH])
def test_log_is_deleted_by_order_and_its_slot_is_free(broker: Broker, epoch: int) -> None:
    broker.ask(led(2))
    assert broker.ask(stop(epoch, delete=True)).partitions == {}
    assert [StoppedReplica("t", 0, 0, 1)] in broker.processes.told
    assert broker.role() is None
    assert broker.slots.free_count == 10
    assert broker.ask(led(0)).partitions == {}
    replica = broker.hosting.replicas.replica(KEY)
    assert replica is not None and replica.slot_incarnation == 2


def test_partition_that_is_stopped_keeps_its_log_and_serves_nobody(broker: Broker) -> None:
    broker.ask(led(2))
    assert broker.ask(stop(3, delete=False)).partitions == {}
    assert broker.role() == (-1, 2)
    assert not any(isinstance(told, list) for told in broker.processes.told)
    assert broker.slots.free_count == 9
    assert broker.ask(led(3)).partitions == {}
    assert broker.role() == (0, 3)


def test_topic_that_is_deleted_stays_for_io_workers_until_its_logs_are_gone(
    broker: Broker,
) -> None:
    broker.ask(led(1))
    broker.ask(known(1))
    broker.processes.orders = []
    image = broker.hosting.image
    broker.ask(known(EPOCH_DURING_DELETE, leader=LEADER_DURING_DELETE))
    outcome = broker.hosting.take(stop(EPOCH_DURING_DELETE, delete=True))
    assert image.snapshot(for_io_worker=False)["topics"] == {}
    assert list(image.snapshot(for_io_worker=True)["topics"]) == ["t"]
    assert not outcome.done
    broker.processes.orders[0].resolve()
    assert outcome.done
    assert image.snapshot(for_io_worker=True)["topics"] == {}


def test_partition_given_back_waits_until_its_old_log_is_gone(broker: Broker) -> None:
    """Reassigned away and back: the deletion must not affect the new replica."""
    broker.ask(led(2))
    broker.processes.orders = []
    deleted = broker.hosting.take(stop(3, delete=True))
    back = led(4)
    back.partitions.extend(led(0, topic="u").partitions)
    response = broker.hosting.take(back)
    assert broker.role(("u", 0)) == (0, 0)
    assert not response.done
    broker.processes.orders[0].resolve()
    assert deleted.done and response.value.partitions == {}
    assert broker.role() == (0, 4)
    replica = broker.hosting.replicas.replica(KEY)
    assert replica is not None and (replica.slot, replica.slot_incarnation) != (0, 1)


@pytest.mark.parametrize("later", ["stop", "controller"])
def test_partition_that_waits_is_overtaken(broker: Broker, later: str) -> None:
    broker.ask(led(2))
    broker.processes.orders = []
    broker.hosting.take(stop(3, delete=True))
    response = broker.hosting.take(led(4))
    if later == "stop":
        broker.hosting.take(stop(5, delete=True))
    else:
        broker.ask(known(sender=Sender(7, 6, 100)))
    for order in broker.processes.orders:
        order.resolve()
    assert response.value.partitions == {KEY: ErrorCode.STALE_CONTROLLER_EPOCH}
    assert broker.role() is None


def test_order_that_comes_twice_takes_no_later_replica(broker: Broker) -> None:
    broker.ask(led(2))
    broker.processes.orders = []
    first = broker.hosting.take(stop(EPOCH_DURING_DELETE, delete=True))
    second = broker.hosting.take(stop(EPOCH_DURING_DELETE, delete=True))
    held = broker.hosting.take(led(0))
    broker.processes.orders[0].resolve()
    assert first.done and not held.done
    broker.processes.orders[1].resolve()
    assert second.done and held.done
    assert broker.role() == (0, 0)
    assert broker.slots.free_count == 9


def test_version_grows_with_every_change_and_with_the_controller(broker: Broker) -> None:
    """Results are recorded with it, so it must not start again with a new process."""
    broker.ask(led(1))
    first = broker.hosting.image.version
    assert first >= 5 << 32
    broker.ask(known(1))
    assert broker.hosting.image.version > first
    broker.ask(led(2, sender=Sender(9, 6, 100)))
    assert broker.hosting.image.version >= 6 << 32


def test_settings_wait_for_their_topic(broker: Broker) -> None:
    broker.hosting.set_configs({"t": {"a": "1"}}, {"0": {"b": "2"}}, {"g": {"c": "3"}})
    assert list(broker.processes.told[-1].topics) == []
    broker.ask(led(0))
    image = broker.hosting.image.snapshot(for_io_worker=True)
    assert image["topics"]["t"]["config"] == {"a": "1"}
    assert image["broker_config"]["0"] == {"b": "2"}
    assert image["group_config"] == {"g": {"c": "3"}}
    broker.hosting.set_configs({"t": {}}, {}, {"g": {}})
    delta = broker.hosting.image.delta(broker.processes.told[-1], for_io_worker=True)
    assert delta is not None
    assert (delta["topics"]["t"]["config"], delta["group_config"]) == ({}, {"g": None})


def test_change_of_a_users_credentials_alone_changes_the_image(broker: Broker) -> None:
    """Network processes keep credentials for as long as their image is the same."""
    for quotas in ({"producer_byte_rate": 5.0}, {}):
        broker.hosting.set_configs(quotas={"users/carol": quotas})
        broker.hosting.set_configs(quotas={"users/carol": quotas})

        delta = broker.hosting.image.delta(broker.processes.told[-1], for_io_worker=False)
        assert delta is not None
        assert delta["quotas"] == {"users/carol": quotas or None}


def test_offline_replicas_are_told_to_whoever_serves_metadata(broker: Broker) -> None:
    broker.ask(led(0))
    request = known(0)
    row = request.partitions[0]._replace(offline_replicas=[1])
    broker.ask(request._replace(partitions=[row]))
    image = broker.hosting.image
    assert [one.offline for one in partitions(image, for_io_worker=False)] == [[1]]
    assert [one.offline for one in partitions(image, for_io_worker=True)] == [()]


def test_two_topics_of_one_name_are_not_mixed(broker: Broker) -> None:
    """One was deleted and recreated while this broker was disconnected from the controller."""
    broker.ask(known(7, number=1))
    again = {"t": b"2" * 16}
    broker.ask(led(0)._replace(topic_ids=again))
    image = broker.hosting.image
    (theirs, other) = partitions(image, for_io_worker=False)
    hosted = image.snapshot(for_io_worker=True)["topics"]["t"]
    assert (theirs.slot, other.leader_epoch) == (-1, 7)
    assert (hosted["id"], len(hosted["partitions"])) == (again["t"].hex(), 1)
    response = broker.ask(led(9, number=1))
    assert response.partitions == {("t", 1): ErrorCode.INCONSISTENT_TOPIC_ID}
    assert broker.ask(known(0)._replace(topic_ids=again)).error == ErrorCode.NONE
    (now,) = partitions(image, for_io_worker=False)
    assert now.slot == PartitionImage(*hosted["partitions"][0]).slot


def test_broker_that_will_stop_leads_on_but_follows_nobody_any_more(broker: Broker) -> None:
    """Its leader would count it as in sync, and wait for it when it has stopped."""
    broker.ask(led(2))
    broker.hosting.is_leaving = True

    assert broker.ask(led(3)).partitions == {}
    assert broker.role() == (0, 3)
    assert broker.ask(led(4, leader=1)).partitions == {}
    assert broker.role() == (NO_LEADER, 4)


# -- deltas --


def delta_of(broker: Broker, *, for_io_worker: bool) -> Any:
    """Topic t in the delta of the last change."""
    delta = broker.hosting.image.delta(broker.processes.told[-1], for_io_worker)
    return None if delta is None else delta.get("topics", {}).get("t")


@pytest.mark.parametrize("for_io_worker", [True, False])
def test_delta_has_the_changed_partitions_of_a_topic_that_the_processes_have(
    broker: Broker, for_io_worker: bool
) -> None:
    for number in range(3):
        broker.ask(led(1, number=number))
        broker.ask(known(1, number=number))
    broker.hosting.image.delta(Changes(topics=["t"]), for_io_worker)

    broker.ask(led(2, number=1) if for_io_worker else known(2, number=1))

    ((number, row),) = delta_of(broker, for_io_worker=for_io_worker)["changed"]
    assert (number, PartitionImage(*row).leader_epoch) == (1, 2)


def test_delta_has_the_changed_partition_of_a_topic_that_io_workers_had_before_it_was_known(
    broker: Broker,
) -> None:
    """The first leader that changes among thousands of partitions of a new topic."""
    for number in range(3):
        broker.ask(led(1, number=number))
    assert len(delta_of(broker, for_io_worker=True)["partitions"]) == 3
    for number in range(3):
        broker.ask(known(1, number=number))
        assert delta_of(broker, for_io_worker=True) is None

    broker.ask(led(2, number=1))

    ((number, row),) = delta_of(broker, for_io_worker=True)["changed"]
    assert (number, PartitionImage(*row).leader_epoch) == (1, 2)


def test_io_workers_learn_of_the_partitions_between_theirs_when_the_topic_is_known(
    broker: Broker,
) -> None:
    for number in (0, 2):
        broker.ask(led(1, number=number))
    (_, between, _) = delta_of(broker, for_io_worker=True)["partitions"]
    assert PartitionImage(*between).leader == NO_LEADER

    broker.ask(known(4, number=1))

    ((number, row),) = delta_of(broker, for_io_worker=True)["changed"]
    assert (number, PartitionImage(*row).leader_epoch) == (1, 4)


def test_delta_has_the_whole_topic_when_it_has_grown_or_its_settings_change(
    broker: Broker,
) -> None:
    broker.ask(known(1))
    assert len(delta_of(broker, for_io_worker=False)["partitions"]) == 1
    broker.ask(known(1, number=1))
    assert len(delta_of(broker, for_io_worker=False)["partitions"]) == 2
    broker.hosting.set_configs({"t": {"retention.ms": "1"}})
    assert delta_of(broker, for_io_worker=False)["config"] == {"retention.ms": "1"}


def test_delta_has_the_whole_topic_after_a_snapshot_with_more_of_it(broker: Broker) -> None:
    """A process that starts has had partitions by then that no other knows, and loses them."""
    image = broker.hosting.image
    broker.ask(known(1))
    image.delta(Changes(of_others=[KEY]), for_io_worker=False)
    broker.ask(known(1, number=1))
    image.snapshot(for_io_worker=False)
    deleted = known(EPOCH_DURING_DELETE, leader=LEADER_DURING_DELETE, number=1)
    broker.ask(deleted)

    assert len(delta_of(broker, for_io_worker=False)["partitions"]) == 1


def test_delta_has_the_whole_topic_when_its_first_replica_comes_here(broker: Broker) -> None:
    """It may have been known by an id that no replica here had."""
    for number in range(2):
        broker.ask(known(1, number=number))
    image = broker.hosting.image
    image.delta(Changes(topics=["t"]), for_io_worker=False)
    broker.ask(led(1))

    assert len(delta_of(broker, for_io_worker=False)["partitions"]) == 2


@pytest.mark.parametrize("epoch", [3, EPOCH_DURING_DELETE])
def test_deletion_of_a_replica_that_is_not_known_is_looked_for_on_disk(
    broker: Broker, epoch: int
) -> None:
    """From an earlier run. A topic of that name would serve its records."""
    broker.processes.orders = []
    answer = broker.hosting.take(stop(epoch, delete=True))

    assert not answer.done
    assert broker.processes.told[-1] == [StoppedReplica(*KEY, -1, 0)]
    again = broker.hosting.take(led(3))
    assert broker.role() is None and not again.done

    broker.processes.orders[0].resolve()
    assert answer.value == ControlResponse() and again.value == ControlResponse()
    assert broker.role() == (0, 3)


def test_replica_that_is_only_stopped_is_not_looked_for(broker: Broker) -> None:
    broker.ask(stop(3, delete=False))
    assert not any(isinstance(told, list) for told in broker.processes.told)


def test_topic_that_was_created_again_does_not_get_the_log_of_the_last_one(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """No StopReplica has come: its nodes were removed by hand."""
    first, second = creation_of(1, 10), creation_of(1, 20)
    broker.ask(led(7)._replace(creations={"t": first}))
    broker.ask(led(8)._replace(creations={"t": first}))
    assert broker.hosting.creation("t") == first
    replica = broker.hosting.replicas.replica(KEY)
    assert replica is not None

    response = broker.ask(led(0)._replace(creations={"t": second}))

    assert response == ControlResponse()
    kept = StoppedReplica(*KEY, replica.slot, replica.slot_incarnation, is_kept=True)
    assert [kept] in broker.processes.told
    assert broker.role() == (0, 0) and broker.hosting.creation("t") == second
    assert "created again" in caplog.text
    topics = broker.hosting.image.snapshot(True)["topics"]
    assert topics["t"]["creation"] == second.hex()


def test_creation_that_is_learned_later_is_told_to_io_workers(broker: Broker) -> None:
    broker.ask(led(1))
    assert "creation" not in broker.hosting.image.snapshot(True)["topics"]["t"]

    broker.hosting.learn_creations({"t": creation_of(1, 10), "gone": creation_of(1, 11)})
    assert broker.processes.told[-1].of_io_workers == [KEY]

    delta = broker.hosting.image.delta(Changes([KEY]), for_io_worker=True)
    assert delta is not None and delta["topics"]["t"]["creation"] == creation_of(1, 10).hex()
