"""When the controller finalizes features, and how brokers learn of them."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from support.controller.controlled import Controlled
from support.controller.controllers import resolved

from kbroker.cluster.features import NONE, SUPPORTED, Finalized
from kbroker.controller.replicas.features import SAFE_DOWNGRADE, UNSAFE_DOWNGRADE, UPGRADE
from kbroker.controller.store.stored_features import StoredFeatures, UnsupportedFeatures
from kbroker.errors import ErrorCode
from kbroker.ipc.calls import FeatureResult, UpdateFeatures, WantedFeature
from kbroker.ipc.pending import Pending
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import NoNode, StoreOperation

pytestmark = pytest.mark.unit

CLIENT = Address(ProcessKind.NETWORK, 0)
REJECTED = int(ErrorCode.INVALID_UPDATE_VERSION)
KAFKA = {"version": 5, "endpoints": ["PLAINTEXT://k:9092"], "listener_security_protocol_map": {}}


class Cluster(Controlled):
    def register_as(self, broker_id: int, **rest: Any) -> None:
        """A broker that is no kbroker of this release."""
        session = self.sessions[broker_id] = self.ensemble.begin_session()
        document = json.dumps(KAFKA | rest).encode()
        created = StoreOperation("create", paths.broker(broker_id), document, ephemeral=True)
        self.ensemble.apply([created], session)

    @property
    def finalized(self) -> dict[str, int] | None:
        try:
            return paths.decode_features(self.ensemble.tree.get(paths.FEATURES).data)
        except NoNode:
            return None

    @property
    def guard(self) -> Any:
        """What a Kafka 2.7 reads."""
        return json.loads(self.ensemble.tree.get(paths.KAFKAS_FEATURES).data)

    def update(self, *wanted: tuple[str, int, int], validate: bool = False) -> list[FeatureResult]:
        updates = [WantedFeature(*one) for one in wanted]
        asked = UpdateFeatures(updates, validate_only=validate)
        outcome = self.run(self.background.features.serve(CLIENT, asked))
        assert outcome.error is None, outcome.error
        found: list[FeatureResult] = outcome.value
        return found


def started(*brokers: int, **settings: Any) -> Cluster:
    made = Cluster()
    made.settings |= {name.replace("_", "."): value for name, value in settings.items()}
    made.register(*brokers)
    made.start()
    return made


def test_features_are_off_until_somebody_enables_them() -> None:
    cluster = started(0, 1)
    assert cluster.finalized is None
    assert cluster.update(("group.version", 1, UPGRADE)) == [(0, None)]
    assert cluster.finalized == {"group.version": 1}
    assert cluster.guard == {
        "version": 1, "status": 1,
        "features": {"group.version": {"min_version_level": 1, "max_version_level": 1}},
    }  # fmt: skip
    assert cluster.update(("transaction.version", 2, UPGRADE)) == [(0, None)]
    assert cluster.finalized == SUPPORTED


def test_new_cluster_enables_them_by_itself_if_it_is_told_to() -> None:
    assert started(0, cluster_features_enable=True).finalized == SUPPORTED


def test_kafka_among_the_brokers_keeps_them_off() -> None:
    cluster = Cluster()
    cluster.settings["cluster.features.enable"] = True
    cluster.register(0)
    cluster.register_as(1)
    cluster.start()
    assert cluster.finalized is None
    ((code, text),) = cluster.update(("group.version", 1, UPGRADE))
    assert code == REJECTED
    assert text is not None and "broker 1 is not a kbroker" in text
    cluster.leave(1)
    cluster.settle()
    assert cluster.finalized == SUPPORTED


def test_broker_with_replicas_that_is_away_may_be_a_kafka() -> None:
    cluster = Cluster()
    cluster.settings["cluster.features.enable"] = True
    cluster.register(0)
    cluster.create_topic("t", [0, 7])
    cluster.start()
    assert cluster.finalized is None
    ((code, text),) = cluster.update(("group.version", 1, UPGRADE))
    assert (code, text and text.endswith("broker 7, which has replicas, is away")) == (
        REJECTED, True
    )  # fmt: skip
    cluster.register(7)
    cluster.settle()
    assert cluster.finalized == SUPPORTED


@pytest.mark.parametrize("own", [{"features": {"group.version": 1}}, {"features": 7}, {}])
def test_kbroker_that_supports_less_keeps_them_off(own: dict[str, Any]) -> None:
    cluster = started(0)
    cluster.register_as(1, kbroker=own)
    cluster.settle()
    ((code, text),) = cluster.update(("transaction.version", 2, UPGRADE))
    assert code == REJECTED
    assert text is not None and "broker 1 does not support transaction.version 2" in text
    assert sorted(cluster.state.brokers) == [0, 1]


def test_protocol_at_which_kafka_does_not_look_keeps_them_off() -> None:
    """A Kafka that joins would not notice that it cannot read the internal topics."""
    cluster = started(0, cluster_features_enable=True, inter_broker_protocol_version="2.6")
    assert cluster.finalized is None
    assert cluster.update(("group.version", 1, UPGRADE))[0].error == REJECTED


def test_only_an_unsafe_downgrade_disables_a_feature() -> None:
    cluster = started(0, cluster_features_enable=True)
    for kind in (UPGRADE, SAFE_DOWNGRADE):
        assert cluster.update(("group.version", 0, kind))[0].error == REJECTED
    assert cluster.finalized == SUPPORTED
    assert cluster.update(("group.version", 0, UNSAFE_DOWNGRADE)) == [(0, None)]
    assert cluster.finalized == {"transaction.version": 2}
    assert list(cluster.guard["features"]) == ["transaction.version"]
    cluster.register(1)
    cluster.settle()
    assert cluster.finalized == {"transaction.version": 2}  # somebody has decided so


def test_rejected_update_stops_the_others() -> None:
    cluster = started(0)
    wanted = [("group.version", 1, UPGRADE), ("group.version", 2, UPGRADE), ("x", 1, UPGRADE)]
    results = cluster.update(*wanted)
    assert [result.error for result in results] == [0, REJECTED, REJECTED]
    assert cluster.finalized is None
    assert cluster.update(("group.version", 1, SAFE_DOWNGRADE))[0].error == REJECTED


def test_validation_changes_nothing() -> None:
    cluster = started(0)
    assert cluster.update(("group.version", 1, UPGRADE), validate=True) == [(0, None)]
    assert cluster.finalized is None


def test_kafka_that_joins_nevertheless_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    cluster = started(0, cluster_features_enable=True)
    with caplog.at_level(logging.ERROR):
        cluster.register_as(3)
        cluster.settle()
    assert "broker 3 does not support group.version 1 and transaction.version 2" in caplog.text


# -- the brokers --


class Learning:
    """A broker's features."""

    def __init__(self, cluster: Controlled) -> None:
        self.told: list[Finalized] = []
        self.failures: list[BaseException] = []
        self.store = cluster.ensemble.connect()
        self.stored = StoredFeatures(
            self.store,
            SettledStore(self.store),
            self,
            cluster.ensemble.sleep,
            self.failures.append,
        )
        self.started = self.stored.start()
        cluster.ensemble.run_until(lambda: self.started.done)

    def set_features(self, features: Finalized) -> Pending[Any]:
        self.told.append(features)
        return resolved(None)


def write(cluster: Controlled, data: bytes, kind: str = "set") -> None:
    cluster.apply(StoreOperation(kind, paths.FEATURES, data))
    cluster.settle()


def test_brokers_learn_of_every_change_with_a_higher_epoch() -> None:
    cluster = started(0)
    broker = Learning(cluster)
    assert (broker.started.error, broker.told) == (None, [])
    cluster.update(("group.version", 1, UPGRADE))
    cluster.settle()
    cluster.update(("transaction.version", 2, UPGRADE))
    cluster.settle()
    assert broker.told == [Finalized({"group.version": 1}, 1), Finalized(SUPPORTED, 2)]
    assert Learning(cluster).told == broker.told[1:]


def test_change_while_the_connection_was_lost_is_noticed() -> None:
    cluster = started(0)
    broker = Learning(cluster)
    broker.store.lose(1_000)
    cluster.update(("group.version", 1, UPGRADE))
    cluster.settle(3_000)
    assert broker.told == [Finalized({"group.version": 1}, 1)]


def test_broker_that_lacks_a_feature_ends() -> None:
    cluster = started(0, cluster_features_enable=True)
    broker = Learning(cluster)
    write(cluster, paths.encode_features({"group.version": 2}))
    assert {type(failure) for failure in broker.failures} == {UnsupportedFeatures}
    assert "group.version 2" in str(broker.failures[0])
    assert isinstance(Learning(cluster).started.error, UnsupportedFeatures)


def test_damaged_node_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    cluster = started(0, cluster_features_enable=True)
    broker = Learning(cluster)
    with caplog.at_level(logging.ERROR):
        write(cluster, b"[]")
    assert broker.told == [Finalized(SUPPORTED, 1)]
    assert f"ignoring the features {paths.FEATURES}" in caplog.text


def test_features_of_a_deleted_node_are_gone() -> None:
    cluster = started(0, cluster_features_enable=True)
    broker = Learning(cluster)
    write(cluster, b"", kind="delete")
    assert broker.told[-1] == NONE
