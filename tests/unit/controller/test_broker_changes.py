"""How the controller reacts when brokers join, fail and change, and which requests it sends."""

from __future__ import annotations

import pytest
from support.controller.controlled import Controlled

from kbroker.cluster.control_requests import (
    ControlRequest,
    ControlResponse,
    LeaderAndIsr,
    UpdateMetadata,
)
from kbroker.controller.configs.configs import ConfigsChanged
from kbroker.controller.replicas.partition_writes import GROUP
from kbroker.controller.state.state import PartitionState
from kbroker.errors import ErrorCode
from kbroker.metastore import paths
from kbroker.metastore.store import StoreOperation

pytestmark = pytest.mark.unit

KEY = ("t", 0)


@pytest.fixture
def cluster() -> Controlled:
    """Brokers 0, 1 and 2; a topic with replicas on all, which broker 0 leads."""
    made = Controlled()
    made.register(0, 1, 2)
    made.create_topic("t", [0, 1, 2], states={0: PartitionState(0, 3, [0, 1, 2], [0, 1, 2])})
    made.start()
    return made


def test_all_brokers_are_told_all_there_is_at_the_start(cluster: Controlled) -> None:
    for broker_id in (0, 1, 2):
        sent = [type(request) for to, request in cluster.sent if to == broker_id]
        # A coordinator takes a partition that is in no metadata for a deleted one.
        assert sent == [UpdateMetadata, LeaderAndIsr]
        assert cluster.leaders(broker_id) == {KEY: (0, [0, 1, 2], False)}
        assert cluster.known(broker_id) == {KEY: (0, [])}
        request = cluster.told(broker_id, UpdateMetadata)[-1]
        assert sorted(request.live_brokers) == [0, 1, 2]
        assert request.sender.broker_epoch == cluster.state.brokers[broker_id].epoch
    assert sorted(cluster.live[-1]) == [0, 1, 2]


def test_leader_that_is_gone_is_replaced_and_all_are_told(cluster: Controlled) -> None:
    cluster.forget()
    cluster.leave(0)
    cluster.settle()
    assert cluster.stored() == (1, 4, [1, 2])
    assert not cluster.told(0, LeaderAndIsr)
    assert cluster.leaders(1) == cluster.leaders(2) == {KEY: (1, [1, 2], False)}
    assert cluster.known(2) == {KEY: (1, [0])}
    assert sorted(cluster.told(1, UpdateMetadata)[-1].live_brokers) == [1, 2]
    assert sorted(cluster.live[-1]) == [1, 2]


def test_broker_that_returns_is_told_of_all_its_partitions(cluster: Controlled) -> None:
    cluster.leave(2)
    cluster.settle()
    cluster.forget()
    cluster.register(2)
    cluster.settle()
    assert cluster.leaders(2) == {KEY: (0, [0, 1], False)}
    assert cluster.known(2) == cluster.known(0) == {KEY: (0, [])}
    assert not cluster.told(0, LeaderAndIsr)  # nothing is new to it but the broker


def test_broker_that_has_registered_again_is_not_in_sync(cluster: Controlled) -> None:
    """Nobody may have noticed its failure; its log may have lost its end."""
    cluster.leave(0)
    cluster.register(0)
    cluster.settle()
    assert cluster.stored() == (1, 4, [1, 2])
    epoch = cluster.state.brokers[0].epoch
    sent = [r for r in cluster.told(0, LeaderAndIsr) if r.sender.broker_epoch == epoch]
    assert [(row.leader, row.isr) for row in sent[-1].partitions] == [(1, [1, 2])]


def test_last_replica_in_sync_leads_again_when_it_returns(cluster: Controlled) -> None:
    cluster.leave(1, 2)
    cluster.settle()
    cluster.leave(0)
    cluster.register(1)
    cluster.settle()
    assert cluster.stored() == (-1, 5, [0])
    assert cluster.known(1)[KEY] == (-1, [0, 2])
    cluster.register(0)
    cluster.settle()
    assert cluster.stored() == (0, 6, [0])


def test_unclean_election_only_where_the_topic_allows_it(cluster: Controlled) -> None:
    cluster.create_topic("u", [0, 1], states={0: PartitionState(0, 0, [0], [0, 1])})
    document = paths.encode_config({"unclean.leader.election.enable": "true"})
    cluster.apply(StoreOperation("set", paths.topic_config("u"), document))
    cluster.start()
    cluster.leave(0)
    cluster.settle()
    assert cluster.stored("u") == (1, 1, [1])


@pytest.mark.parametrize("of_topic", [True, False])
def test_unclean_election_that_is_enabled_later_is_held_then(
    cluster: Controlled, of_topic: bool
) -> None:
    """As in Kafka: an operator who enables it waits for the partition."""
    cluster.leave(1, 2)
    cluster.settle()
    cluster.leave(0)
    cluster.register(1)
    cluster.settle()
    assert cluster.stored()[0] == -1
    enabled = {"unclean.leader.election.enable": "true"}
    changed = ConfigsChanged({"t": enabled}) if of_topic else ConfigsChanged(brokers={"0": enabled})
    cluster.state.configs.enter(changed)
    cluster.settings["unclean.leader.election.enable"] = not of_topic
    cluster.background.configs_changed(ConfigsChanged({"none": enabled}))
    cluster.background.configs_changed(changed)
    cluster.settle()
    assert (cluster.stored()[0], cluster.stored()[2]) == (1, [1])


def test_other_endpoints_are_told_to_all(cluster: Controlled) -> None:
    cluster.forget()
    document = paths.encode_broker([["P", "elsewhere", 9093, "PLAINTEXT"]], "r", 0)
    cluster.apply(StoreOperation("set", paths.broker(1), document))
    cluster.settle()
    (request,) = cluster.told(2, UpdateMetadata)
    assert request.live_brokers[1].endpoints == [["P", "elsewhere", 9093, "PLAINTEXT"]]
    assert request.live_brokers[1].rack == "r"
    assert cluster.live[-1][1].live == request.live_brokers[1]


def test_registration_that_nobody_can_read_is_ignored(
    cluster: Controlled, caplog: pytest.LogCaptureFixture
) -> None:
    session = cluster.ensemble.begin_session()
    damaged = StoreOperation("create", paths.broker(7), b"{", ephemeral=True)
    cluster.ensemble.apply([damaged], session)
    cluster.settle()
    assert sorted(cluster.state.brokers) == [0, 1, 2]
    assert paths.broker(7) in caplog.text


def test_states_are_written_many_at_a_time() -> None:
    cluster = Controlled()
    cluster.register(0, 1)
    count = GROUP * 2 + 1
    states = {n: PartitionState(0, 0, [0, 1], [0, 1]) for n in range(count)}
    cluster.create_topic("t", *[[0, 1]] * count, states=states)
    cluster.start()
    written: list[int] = []
    apply = cluster.ensemble.apply

    def counting(operations: list[StoreOperation], session_id: int) -> list[str]:
        written.append(len(operations))
        return apply(operations, session_id)

    cluster.ensemble.apply = counting  # type: ignore[method-assign]
    cluster.forget()
    cluster.leave(0)
    cluster.settle(5_000)
    assert written == [GROUP, GROUP, 1]
    assert len(cluster.told(1, LeaderAndIsr)) == 1  # of one event
    assert len(cluster.leaders(1)) == count


def test_state_that_another_client_changed_is_read_and_decided_on_again(
    cluster: Controlled,
) -> None:
    """An older leader has removed broker 1 from the ISR, unnoticed."""
    document = paths.encode_partition_state(0, 3, [0, 2], 5)
    cluster.apply(StoreOperation("set", paths.partition_state(*KEY), document))
    cluster.leave(0)
    cluster.settle()
    assert cluster.stored() == (2, 4, [2])


def test_failed_log_directory_of_a_leader_has_another_lead(cluster: Controlled) -> None:
    def answer(broker_id: int, request: ControlRequest) -> ControlResponse:
        if broker_id == 0 and isinstance(request, LeaderAndIsr):
            return ControlResponse(partitions={KEY: ErrorCode.KAFKA_STORAGE_ERROR})
        return ControlResponse()

    cluster.answers = answer
    cluster.leave(2)  # has LeaderAndIsr sent
    cluster.settle()
    assert cluster.stored() == (1, 5, [1])
    assert cluster.known(1)[KEY] == (1, [0, 2])
    assert cluster.stopped(0) == [(KEY, False)]


def test_log_says_why_leaders_and_in_sync_replicas_change(
    cluster: Controlled, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cluster.leave(0)
    cluster.settle()
    led = "t-0 is now led by broker 1 instead of 0, in sync: [1, 2] (epoch 4)"
    assert f"{led}: the registration of broker 0 ended" in caplog.text
    cluster.background.shutdowns.shut_down(2, cluster.state.brokers[2].epoch)
    cluster.settle()
    isr = "t-0: leader 1 now has in-sync replicas [1] (epoch 5)"
    assert f"{isr}: broker 2 is shutting down" in caplog.text


# -- brokers that are removed before their sessions have ended --


def remove_early(cluster: Controlled, broker_id: int, epoch: int | None = None) -> None:
    known = cluster.state.brokers[broker_id].epoch if epoch is None else epoch
    cluster.run(cluster.background.brokers.remove_early(broker_id, known, "it is gone"))


def test_broker_removed_early_is_replaced_although_it_is_registered(cluster: Controlled) -> None:
    cluster.forget()
    remove_early(cluster, 0)
    assert cluster.stored() == (1, 4, [1, 2])
    assert cluster.leaders(1) == cluster.leaders(2) == {KEY: (1, [1, 2], False)}
    assert sorted(cluster.told(1, UpdateMetadata)[-1].live_brokers) == [1, 2]
    cluster.register(7)  # another change of the registrations, among which it still is
    cluster.settle()
    assert sorted(cluster.state.brokers) == [1, 2, 7]
    assert not cluster.told(0, LeaderAndIsr)


def test_other_registration_than_the_one_that_is_gone_is_left_alone(cluster: Controlled) -> None:
    """It has come back in the meantime."""
    remove_early(cluster, 0, cluster.state.brokers[0].epoch - 1)
    assert cluster.stored() == (0, 3, [0, 1, 2])
    assert 0 in cluster.state.brokers


def test_broker_that_registers_again_is_welcome(cluster: Controlled) -> None:
    remove_early(cluster, 0)
    cluster.leave(0)
    cluster.register(0)
    cluster.forget()
    cluster.settle()
    assert sorted(cluster.state.brokers) == [0, 1, 2]
    assert cluster.state.removed_early == {}
    assert cluster.leaders(0) == {KEY: (1, [1, 2], False)}


def test_broker_that_lives_after_all_is_readmitted_in_its_session(cluster: Controlled) -> None:
    epoch = cluster.state.brokers[0].epoch
    remove_early(cluster, 0)
    cluster.forget()
    cluster.run(cluster.background.brokers.readmit(0, epoch - 1))
    assert 0 not in cluster.state.brokers
    cluster.run(cluster.background.brokers.readmit(0, epoch))
    assert cluster.state.brokers[0].epoch == epoch
    assert cluster.leaders(0) == {KEY: (1, [1, 2], False)}


def test_no_unclean_election_before_the_session_has_ended(cluster: Controlled) -> None:
    """The broker may live: its records are not given up for evidence alone."""
    cluster.create_topic("u", [0, 1], states={0: PartitionState(0, 0, [0], [0, 1])})
    document = paths.encode_config({"unclean.leader.election.enable": "true"})
    cluster.apply(StoreOperation("set", paths.topic_config("u"), document))
    cluster.start()
    remove_early(cluster, 0)
    assert cluster.stored("u") == (-1, 1, [0])
    cluster.leave(0)
    cluster.settle()
    assert cluster.stored("u") == (1, 2, [1])
