"""Quotas and credentials of users, client ids and addresses in a store of several brokers."""

from __future__ import annotations

from typing import Any

import pytest
from support.controller.controllers import resolved

from kbroker.controller.configs.entity_admin import EntityAdmin
from kbroker.controller.configs.stored_configs import StoredConfigs
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import AlterQuotas, EntityChange, SettingValue
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.simulated import Faults, SimulatedEnsemble
from kbroker.metastore.store import StoreOperation

pytestmark = pytest.mark.unit

CALLER = Address(ProcessKind.NETWORK, 0)
RATE = "producer_byte_rate"
SCRAM = "SCRAM-SHA-256"


class Broker:
    """Its configs, and the quotas that its processes have got."""

    def __init__(self, ensemble: SimulatedEnsemble) -> None:
        self.ensemble = ensemble
        self.quotas: dict[str, dict[str, float]] = {}
        self.store = ensemble.connect()
        self.stored = StoredConfigs(
            self.store, SettledStore(self.store), self, ensemble.sleep, lambda: ensemble.now_ms
        )
        self.admin = EntityAdmin(self.stored)
        self.started = self.stored.start()

    def set_configs(self, *configs: Any) -> Pending[dict[str, int]]:
        self.quotas |= configs[3]
        return resolved({})

    def alter(self, entity: str, **configs: str | None) -> None:
        changed = {name.replace("__", "-"): value for name, value in configs.items()}
        outcome = run(self.admin.alter({entity: changed}))
        self.ensemble.run_until(lambda: outcome.done)
        if outcome.error is not None:
            raise outcome.error


class Cluster:
    def __init__(self, *existing: StoreOperation) -> None:
        self.ensemble = SimulatedEnsemble(1, Faults(delay_max_ms=5))
        self.session_id = self.ensemble.begin_session()
        self.apply(*[StoreOperation("create", path) for path in paths.PERSISTENT_PATHS], *existing)
        self.brokers = [Broker(self.ensemble) for _ in range(2)]
        self.ensemble.run_until(lambda: all(broker.started.done for broker in self.brokers))
        assert [broker.started.error for broker in self.brokers] == [None, None]

    def apply(self, *operations: StoreOperation) -> None:
        self.ensemble.apply(list(operations), self.session_id)

    def settle(self) -> None:
        waited = self.ensemble.sleep(400)
        self.ensemble.run_until(lambda: waited.done)

    def stored(self, entity: str) -> dict[str, str]:
        return paths.decode_config(self.ensemble.tree.get(f"/config/{entity}").data)

    def notices(self) -> list[str]:
        below = self.ensemble.tree.subtree(paths.CONFIG_CHANGES)
        return [paths.decode_config_change(node.data) for node in sorted(below)]

    def quotas(self, entity: str) -> list[Any]:
        return [broker.quotas.get(entity) for broker in self.brokers]


def node(path: str, config: dict[str, str]) -> StoreOperation:
    return StoreOperation("create", path, paths.encode_config(config))


@pytest.mark.parametrize(
    "entity", ["users/u", "users/<default>", "clients/c", "users/u/clients/c%2F1"]
)
def test_quotas_that_one_broker_sets_are_used_by_all(entity: str) -> None:
    cluster = Cluster()
    cluster.brokers[1].alter(entity, producer_byte_rate="1024")
    cluster.settle()
    assert cluster.stored(entity) == {RATE: "1024"}
    assert cluster.quotas(entity) == [{RATE: 1024.0}] * 2
    assert cluster.notices() == [f"/config/{entity}"]

    cluster.brokers[0].alter(entity, producer_byte_rate=None)
    cluster.settle()
    assert cluster.stored(entity) == {}
    assert cluster.quotas(entity) == [{}, {}]


def test_change_of_one_kind_keeps_configs_of_the_others() -> None:
    """A user's node has credentials and quotas; who alters one must not remove the other."""
    cluster = Cluster()
    first, second = cluster.brokers
    first.alter("users/u", SCRAM__SHA__256="salt=...", producer_byte_rate="1")
    cluster.settle()
    second.alter("users/u", producer_byte_rate=None, consumer_byte_rate="2")
    second.alter("users/u", SCRAM__SHA__512="salt")
    cluster.settle()
    expected = {SCRAM: "salt=...", "SCRAM-SHA-512": "salt", "consumer_byte_rate": "2"}
    assert cluster.stored("users/u") == expected
    for broker in cluster.brokers:
        assert broker.stored.configs.entities["users/u"] == expected


def test_credentials_leave_the_controller_process_in_no_quota() -> None:
    cluster = Cluster()
    cluster.brokers[0].alter("users/u", SCRAM__SHA__256="secret", request_percentage="12.5")
    cluster.settle()
    assert cluster.quotas("users/u") == [{"request_percentage": 12.5}] * 2


def test_two_brokers_that_alter_a_user_at_once_lose_nothing() -> None:
    cluster = Cluster()
    keys = ("producer_byte_rate", "consumer_byte_rate")
    outcomes = [
        run(broker.admin.alter({"users/u": {key: "7"}}))
        for broker, key in zip(cluster.brokers, keys, strict=True)
    ]
    cluster.ensemble.run_until(lambda: all(outcome.done for outcome in outcomes))
    assert [outcome.error for outcome in outcomes] == [None, None]
    cluster.settle()
    assert cluster.stored("users/u") == dict.fromkeys(keys, "7")
    assert cluster.quotas("users/u") == [dict.fromkeys(keys, 7.0)] * 2


def test_quotas_of_addresses_are_told_without_a_notice() -> None:
    """Kafka 2.7 has no such quotas, and would not process any later notification."""
    cluster = Cluster()
    cluster.brokers[0].alter("ips/192.0.2.1", connection_creation_rate="5")
    cluster.settle()
    cluster.brokers[1].alter("ips/<default>", connection_creation_rate="6")
    cluster.settle()
    assert cluster.quotas("ips/192.0.2.1") == [{"connection_creation_rate": 5.0}] * 2
    assert cluster.quotas("ips/<default>") == [{"connection_creation_rate": 6.0}] * 2
    assert cluster.notices() == []


@pytest.mark.parametrize(
    "notice",
    [
        b'{"version":1,"entity_type":"clients","entity_name":"c"}',
        b'{"version":2,"entity_path":"clients/c"}',
    ],
)
def test_what_kafkas_tools_write_takes_effect(notice: bytes) -> None:
    cluster = Cluster()
    cluster.apply(
        node("/config/clients/c", {RATE: "99"}),
        StoreOperation("create", paths.CONFIG_CHANGE, notice, sequential=True),
    )
    cluster.settle()
    assert cluster.quotas("clients/c") == [{RATE: 99.0}] * 2


def test_present_quotas_are_read_at_the_start() -> None:
    cluster = Cluster(
        node("/config/users/u", {RATE: "1", SCRAM: "salt"}),
        StoreOperation("create", "/config/users/v"),  # as Kafka creates a parent
        StoreOperation("create", "/config/users/v/clients"),
        node("/config/users/v/clients/c", {RATE: "2"}),
        StoreOperation("create", "/config/ips"),
        node("/config/ips/<default>", {"connection_creation_rate": "3"}),
    )
    found = cluster.brokers[0].quotas
    assert {path: quotas for path, quotas in found.items() if quotas} == {
        "users/u": {RATE: 1.0},
        "users/v/clients/c": {RATE: 2.0},
        "ips/<default>": {"connection_creation_rate": 3.0},
    }


def test_value_that_is_no_number_is_ignored_alone(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(node("/config/clients/c", {RATE: "fast", "consumer_byte_rate": "5"}))
    assert cluster.quotas("clients/c") == [{"consumer_byte_rate": 5.0}] * 2
    assert "producer_byte_rate='fast' is not a number" in caplog.text


def test_quota_that_is_there_already_is_not_written_again() -> None:
    cluster = Cluster(node("/config/clients/c", {RATE: "5"}))
    cluster.brokers[0].alter("clients/c", producer_byte_rate="5")
    assert cluster.notices() == []
    assert cluster.ensemble.tree.get("/config/clients/c").stat.version == 0


def test_without_the_store_nothing_is_altered() -> None:
    cluster = Cluster()
    cluster.brokers[0].store.lose(1_000)
    with pytest.raises(WireError) as caught:
        cluster.brokers[0].alter("clients/c", producer_byte_rate="5")
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT


def test_request_changes_all_of_its_entities(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    asked = AlterQuotas(
        [EntityChange(f"clients/{n}", [SettingValue(RATE, str(n))]) for n in (1, 2)], "User:alice"
    )
    with caplog.at_level("INFO"):
        outcome = run(cluster.brokers[0].admin.alter_quotas(CALLER, asked))
        cluster.ensemble.run_until(lambda: outcome.done)
    assert outcome.error is None
    assert [cluster.stored(f"clients/{n}") for n in (1, 2)] == [{RATE: "1"}, {RATE: "2"}]
    assert "configs of clients/1 changed: producer_byte_rate for User:alice" in caplog.text
