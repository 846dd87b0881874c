"""Configs in a store shared by several brokers: who changes them, and when they take effect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from support.controller.controllers import resolved

from kbroker.cluster.control_requests import (
    ControlRequest,
    ControlResponse,
    KnownPartition,
    Sender,
    UpdateMetadata,
)
from kbroker.config.dynamic import SET, AlterOp
from kbroker.config.loader import BrokerConfig
from kbroker.config.resource_types import BROKER, GROUP, TOPIC
from kbroker.controller.configs.config_admin import ConfigAdmin
from kbroker.controller.configs.stored_configs import (
    ConfiguredHosting,
    StoredConfigs,
)
from kbroker.controller.store.creations import Creations
from kbroker.controller.store.notices import KEPT_MS
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import IncrementalAlterConfigs, ResourceChanges
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.simulated import Faults, SimulatedEnsemble
from kbroker.metastore.store import StoreOperation
from kbroker.security.tls.listeners import TlsListeners

pytestmark = pytest.mark.unit

CALLER = Address(ProcessKind.NETWORK, 0)
ELSEWHERE = Sender(9, 1)


class Host:
    """A broker that gets its configs from the ensemble, and applies them."""

    def __init__(self, cluster: Cluster, number: int, runtime_dir: str) -> None:
        self.used: tuple[dict[str, Any], ...] = ({}, {}, {}, {}, {})
        self.topics: dict[str, Any] = {}  # changes it got, with the configs at that time
        self.store = cluster.ensemble.connect()
        self.stored = StoredConfigs(
            self.store,
            SettledStore(self.store),
            self,
            cluster.ensemble.sleep,
            lambda: cluster.ensemble.now_ms + cluster.wall_ahead_ms,
        )
        creations = Creations(SettledStore(self.store), self, cluster.ensemble.sleep)
        self.hosting = ConfiguredHosting(self, self.stored, creations, cluster.ensemble.sleep)
        self.admin = ConfigAdmin(
            self.stored, self, number, BrokerConfig({}), runtime_dir, TlsListeners()
        )
        self.stored.changed = self.admin.changed
        self.started = self.stored.start()
        self.controller_epoch = 0  # the latest that it has heard of

    def creation(self, name: str) -> bytes:
        return b""

    def learn_creations(self, found: Mapping[str, bytes]) -> None:
        """Its own controller is not simulated."""

    def set_configs(
        self,
        topics: Mapping[str, Any] = {},
        brokers: Mapping[str, Any] = {},
        groups: Mapping[str, Any] = {},
        quotas: Mapping[str, Any] = {},
        client_metrics: Mapping[str, Any] = {},
    ) -> Pending[dict[str, int]]:
        all_changed = (topics, brokers, groups, quotas, client_metrics)
        for used, changed in zip(self.used, all_changed, strict=True):
            used.update(changed)
        return resolved({})

    def topic(self, name: str) -> str:
        return name

    def has_topic(self, name: str) -> bool:
        return name in self.topics

    def take(self, request: ControlRequest) -> Pending[ControlResponse]:
        for row in request.partitions:
            self.topics[row.topic] = self.used[0].get(row.topic)
        return resolved(ControlResponse())


class Cluster:
    def __init__(self, runtime_dir: str) -> None:
        self.ensemble = SimulatedEnsemble(1, Faults(delay_max_ms=5))
        self.wall_ahead_ms = 0
        self.session_id = self.ensemble.begin_session()
        self.apply(*[StoreOperation("create", path) for path in paths.PERSISTENT_PATHS])
        for name in ("t", "u"):
            self.apply(
                StoreOperation("create", paths.topic(name), paths.encode_topic(None, {0: [0]})),
                StoreOperation(
                    "create", paths.topic_config(name), paths.encode_config({"a": name})
                ),
            )
        self.hosts = [Host(self, number, runtime_dir) for number in (0, 1)]
        self.ensemble.run_until(lambda: all(host.started.done for host in self.hosts))
        assert [host.started.error for host in self.hosts] == [None, None]

    def apply(self, *operations: StoreOperation) -> None:
        self.ensemble.apply(list(operations), self.session_id)

    def write(self, path: str, config: dict[str, str], notice: bytes | None) -> None:
        """Write as Kafka's tools do."""
        kind = "create" if self.ensemble.tree.exists(path) is None else "set"
        self.apply(StoreOperation(kind, path, paths.encode_config(config)))
        if notice is not None:
            self.apply(StoreOperation("create", paths.CONFIG_CHANGE, notice, sequential=True))

    def notices(self) -> list[bytes]:
        below = self.ensemble.tree.subtree(paths.CONFIG_CHANGES)
        return [node.data for node in sorted(below)]

    def settle(self, within_ms: int = 400) -> None:
        waited = self.ensemble.sleep(within_ms)
        self.ensemble.run_until(lambda: waited.done)

    def alter(self, number: int, kind: int, name: str, setting: str, value: str) -> list[Any]:
        asked = IncrementalAlterConfigs(
            [ResourceChanges(kind, name, [AlterOp(setting, SET, value)])]
        )
        outcome = run(self.hosts[number].admin.incremental_alter_configs(CALLER, asked))
        self.ensemble.run_until(lambda: outcome.done)
        if outcome.error is not None:
            raise outcome.error
        return [result.error for result in outcome.value]


@pytest.fixture
def cluster(tmp_path: Any) -> Cluster:
    return Cluster(str(tmp_path))


def told(name: str) -> UpdateMetadata:
    row = KnownPartition(name, 0, 1, 0, 0, [0], 0, [0])
    return UpdateMetadata(ELSEWHERE, [row], {}, {})


@pytest.mark.parametrize(
    ("kind", "name", "setting", "path", "entity"),
    [
        (TOPIC, "t", "retention.ms", paths.topic_config("t"), "topics/t"),
        (BROKER, "", "log.retention.ms", paths.broker_config("default"), "brokers/<default>"),
        (BROKER, "1", "log.retention.ms", paths.broker_config("1"), "brokers/1"),
    ],
)
def test_settings_that_one_broker_changes_are_used_by_all(
    cluster: Cluster, kind: int, name: str, setting: str, path: str, entity: str
) -> None:
    assert cluster.alter(1, kind, name, setting, "77000") == [0]
    cluster.settle()
    stored = paths.decode_config(cluster.ensemble.tree.get(path).data)
    assert stored[setting] == "77000"
    for host in cluster.hosts:
        used = host.used[0 if kind == TOPIC else 1]
        assert used[name or "default"] == stored
    assert cluster.notices() == [f'{{"version":2,"entity_path":"{entity}"}}'.encode()]


def test_broker_settings_of_all_are_in_effect_in_every_controller(cluster: Cluster) -> None:
    """Its own operations use them, too: the limits of a topic depend on broker configs."""
    assert cluster.alter(0, BROKER, "", "log.retention.ms", "77000") == [0]
    cluster.settle()
    assert [host.admin.config["log.retention.ms"] for host in cluster.hosts] == [77000, 77000]


def test_settings_of_another_broker_are_changed_there(cluster: Cluster) -> None:
    assert cluster.alter(0, BROKER, "1", "log.retention.ms", "1") == [ErrorCode.INVALID_REQUEST]


def test_two_brokers_that_change_a_topic_lose_nothing(cluster: Cluster) -> None:
    """The second has not got the first change yet, and decides again."""
    asked = [
        IncrementalAlterConfigs([ResourceChanges(TOPIC, "t", [AlterOp(setting, SET, "77000")])])
        for setting in ("retention.ms", "segment.ms")
    ]
    outcomes = [
        run(host.admin.incremental_alter_configs(CALLER, one))
        for host, one in zip(cluster.hosts, asked, strict=True)
    ]
    cluster.ensemble.run_until(lambda: all(outcome.done for outcome in outcomes))
    cluster.settle()
    expected = {"a": "t", "retention.ms": "77000", "segment.ms": "77000"}
    assert [host.used[0]["t"] for host in cluster.hosts] == [expected, expected]


def test_topic_that_was_deleted_meanwhile_gets_no_settings(cluster: Cluster) -> None:
    cluster.apply(
        StoreOperation("delete", paths.topic("t")),
        StoreOperation("delete", paths.topic_config("t")),
    )
    with pytest.raises(AssertionError):  # rejected in each of its attempts
        assert cluster.alter(0, TOPIC, "t", "retention.ms", "77000") == [0]
    assert cluster.ensemble.tree.exists(paths.topic_config("t")) is None


def test_settings_of_groups_are_told_without_a_notice(cluster: Cluster) -> None:
    """Kafka 2.7 would not process any later notification."""
    setting = "consumer.session.timeout.ms"
    assert cluster.alter(0, GROUP, "g/1", setting, "50000") == [0]
    cluster.settle()
    assert [host.used[2]["g/1"] for host in cluster.hosts] == [{setting: "50000"}] * 2
    assert cluster.notices() == []


@pytest.mark.parametrize(
    "notice",
    [
        b'{"version":1,"entity_type":"topics","entity_name":"t"}',
        b'{"version":2,"entity_path":"topics/t"}',
    ],
)
def test_notices_of_any_kafka_are_taken(cluster: Cluster, notice: bytes) -> None:
    cluster.write(paths.topic_config("t"), {"a": "2"}, notice)
    cluster.settle()
    assert [host.used[0]["t"] for host in cluster.hosts] == [{"a": "2"}, {"a": "2"}]


def test_notices_that_nobody_understands_hold_up_no_other(cluster: Cluster) -> None:
    for damaged in (b"", b"{}", b'{"version":2,"entity_path":"users/u/clients/c"}', b"[1]"):
        cluster.apply(StoreOperation("create", paths.CONFIG_CHANGE, damaged, sequential=True))
    cluster.write(
        paths.topic_config("t"), {"a": "2"}, paths.encode_config_change("/config/topics/t")
    )
    cluster.settle()
    assert [host.used[0]["t"] for host in cluster.hosts] == [{"a": "2"}, {"a": "2"}]


def test_other_nodes_among_the_notices_hold_up_none(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.apply(StoreOperation("create", f"{paths.CONFIG_CHANGES}/backup"))
    cluster.write(
        paths.topic_config("t"), {"a": "2"}, paths.encode_config_change("/config/topics/t")
    )
    cluster.settle()
    cluster.hosts[1].store.lose(100)
    cluster.settle(5_000)

    assert [host.used[0]["t"] for host in cluster.hosts] == [{"a": "2"}, {"a": "2"}]
    assert caplog.text.count(f"{paths.CONFIG_CHANGES}/backup") == 2  # a broker each


def test_value_that_is_not_allowed_is_named(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.write(
        paths.topic_config("t"),
        {"retention.ms": "for ever", "segment.bytes": "1048576"},
        paths.encode_config_change("/config/topics/t"),
    )
    cluster.settle()

    assert "ignoring a config of topic t in the store: retention.ms=for ever" in caplog.text
    assert "segment.bytes" not in caplog.text


def test_after_a_lost_connection_all_settings_are_read(cluster: Cluster) -> None:
    """A notification may have been created and deleted meanwhile."""
    cluster.hosts[1].store.lose(3_000)
    cluster.settle(100)
    cluster.write(paths.topic_config("t"), {"a": "2"}, None)
    cluster.apply(StoreOperation("delete", paths.topic_config("u")))
    cluster.settle(5_000)
    assert cluster.hosts[0].used[0] == {"t": {"a": "t"}, "u": {"a": "u"}}
    assert cluster.hosts[1].used[0] == {"t": {"a": "2"}, "u": {}}


def test_old_notices_are_removed_and_young_ones_kept(cluster: Cluster) -> None:
    cluster.alter(0, TOPIC, "t", "retention.ms", "1")
    cluster.settle(60_000)
    cluster.alter(0, TOPIC, "u", "retention.ms", "2")
    cluster.settle()
    assert len(cluster.notices()) == 2
    cluster.wall_ahead_ms = KEPT_MS - 30_000
    cluster.alter(0, TOPIC, "u", "retention.ms", "3")
    cluster.settle()
    assert [json.loads(notice)["entity_path"] for notice in cluster.notices()] == ["topics/u"] * 2


def test_settings_of_a_new_topic_are_known_before_it_is(cluster: Cluster) -> None:
    """Kafka sends no notification for them; a log would be opened with the broker's configs."""
    cluster.write(paths.topic_config("new"), {"cleanup.policy": "compact"}, None)
    outcome = cluster.hosts[1].hosting.take(told("new"))
    cluster.ensemble.run_until(lambda: outcome.done)
    assert cluster.hosts[1].topics == {"new": {"cleanup.policy": "compact"}}


def test_settings_of_topics_that_were_not_told_are_completed(cluster: Cluster) -> None:
    """A broker that is elected opens logs of topics that it has not heard of before."""
    cluster.write(paths.topic_config("new"), {"cleanup.policy": "compact"}, None)
    stored = cluster.hosts[1].stored
    outcome = stored.complete(["t", "new", "bare"])
    cluster.ensemble.run_until(lambda: outcome.done)
    assert stored.configs.topic("new") == {"cleanup.policy": "compact"}
    assert cluster.hosts[1].used[0]["new"] == {"cleanup.policy": "compact"}
    assert stored.configs.topics["bare"] == {}


@pytest.mark.parametrize("is_known", [False, True])
def test_controller_is_heard_once_the_store_knows_its_epoch(
    cluster: Cluster, is_known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody who can connect could say that he is the controller."""
    cluster.apply(StoreOperation("create", paths.CONTROLLER_EPOCH, b"1"))
    request = told("t")
    epoch = 2
    request = request._replace(sender=request.sender._replace(controller_epoch=epoch))
    outcome = cluster.hosts[1].hosting.take(request)
    cluster.settle(2_000)
    assert not outcome.done and "t" not in cluster.hosts[1].topics

    if is_known:  # the server that this broker reads from was behind
        cluster.apply(StoreOperation("set", paths.CONTROLLER_EPOCH, b"2"))
    cluster.ensemble.run_until(lambda: outcome.done)

    expected = ErrorCode.NONE if is_known else ErrorCode.STALE_CONTROLLER_EPOCH
    assert outcome.value.error is expected
    assert ("t" in cluster.hosts[1].topics) is is_known
    assert ("rejected controller" in caplog.text) is not is_known


def test_topic_made_again_has_its_new_settings(cluster: Cluster) -> None:
    cluster.apply(StoreOperation("delete", paths.topic_config("t")))
    outcome = cluster.hosts[1].hosting.take(told("t"))
    cluster.ensemble.run_until(lambda: outcome.done)
    assert cluster.hosts[1].topics == {"t": {}}


def test_without_a_connection_topics_are_taken_all_the_same(cluster: Cluster) -> None:
    cluster.write(paths.topic_config("new"), {"a": "1"}, None)
    cluster.hosts[1].store.lose(8_000)
    cluster.ensemble.run_until(lambda: not cluster.hosts[1].stored.is_connected)
    assert cluster.hosts[1].hosting.take(told("new")).done
    with pytest.raises(WireError) as failed:
        cluster.alter(1, TOPIC, "t", "retention.ms", "1")
    assert failed.value.code is ErrorCode.REQUEST_TIMED_OUT
    cluster.settle(10_000)
    assert cluster.hosts[1].used[0]["new"] == {"a": "1"}


def test_connection_lost_at_any_moment_of_the_start_hides_no_change(tmp_path: Any) -> None:
    """Also after one of two topics is read."""
    cluster = Cluster(str(tmp_path))
    for moment in range(50):
        host = Host(cluster, 2, str(tmp_path))
        for _ in range(moment):
            cluster.ensemble.step()
        host.store.lose(100)
        for name in ("t", "u"):
            path = paths.topic_config(name)
            cluster.write(path, {"a": str(moment)}, paths.encode_config_change(path))
        waited = cluster.ensemble.sleep(400)
        cluster.ensemble.run_until(lambda waited=waited: waited.done)
        assert host.used[0] == {name: {"a": str(moment)} for name in ("t", "u")}, moment
        host.store.crash()
