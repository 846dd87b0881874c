"""Levels of loggers by API, in all processes of a broker."""

from __future__ import annotations

import sys

import pytest
from support.brokers.process_harness import health, http_get

from kbroker.client.admin import configs as config_admin
from kbroker.client.admin.configs import BROKER_LOGGER
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import RejectedError
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-m", "kbroker.cli.start"]


def levels(cluster: Cluster) -> dict[str, str | None]:
    found = config_admin.describe_configs(cluster, BROKER_LOGGER, ["0"])["0"]
    assert not isinstance(found, RejectedError)
    return {setting.name: setting.value for setting in found}


def restarts(broker: Broker) -> int:
    return sum(entry["restarts"] for entry in health(broker)["processes"])


def test_levels_are_changed_in_all_processes_and_survive_a_restart_of_one() -> None:
    with Broker(command=COMMAND) as broker, Cluster(broker.bootstrap) as cluster:
        assert levels(cluster)["root"] == "INFO"
        change = {"kbroker.ipc.rpc": "WARN", "kbroker": "ERROR"}
        config_admin.alter_configs(cluster, BROKER_LOGGER, "0", change)
        found = levels(cluster)
        assert (found["kbroker.ipc.rpc"], found["kbroker.handlers.dispatch"]) == ("WARN", "ERROR")
        before = broker.log_text.count("owns ")
        broker.kill("io", 0)  # the next one says at INFO what it owns
        wait_until(lambda: restarts(broker) == 1 and http_get(broker, "/health")[0] == 200)
        assert broker.log_text.count("owns ") == before
        config_admin.alter_configs(cluster, BROKER_LOGGER, "0", {"kbroker": None})
        assert levels(cluster)["kbroker.handlers.dispatch"] == "INFO"
        for change, reason in (
            ({"kafka.server.KafkaApis": "INFO"}, "does not exist"),
            ({"kbroker": "LOUD"}, "TRACE, DEBUG"),
        ):
            with pytest.raises(RejectedError, match=reason):
                config_admin.alter_configs(cluster, BROKER_LOGGER, "0", change)
        with pytest.raises(RejectedError, match="root"):
            config_admin.alter_configs(cluster, BROKER_LOGGER, "0", {"root": None})
