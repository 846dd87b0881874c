"""Which stored configs take effect when some of them are invalid on this broker."""

from __future__ import annotations

import pytest

from kbroker.cluster.settings import effective_config
from kbroker.config.loader import BrokerConfig

pytestmark = pytest.mark.unit

FOREVER = {"log.retention.ms": "-1"}
STARTED_WITH = BrokerConfig({"log.dirs": "/d1", "log.cleaner.dedupe.buffer.size": "10000000"})


def effective(default: dict[str, str], own: dict[str, str] | None = None) -> BrokerConfig:
    return effective_config(STARTED_WITH, {"default": default, "3": own or {}}, 3)


def test_settings_that_nobody_has_changed_are_those_of_the_start():
    """A thousand objects in each process that are shared since the fork."""
    assert effective({}) is STARTED_WITH
    file = dict(STARTED_WITH.layers()[0][1])
    assert effective_config(STARTED_WITH, {"file": file}, 3) is STARTED_WITH
    file["log.retention.ms"] = "7"
    assert effective_config(STARTED_WITH, {"file": file}, 3)["log.retention.ms"] == 7


@pytest.mark.parametrize(
    "unusable",
    [
        {"cordoned.log.dirs": "/d1,/d2"},  # its disk was wiped and removed from log.dirs
        {"max.connections": "0"},
        {"log.segment.bytes": "many"},
        {"a.setting.of.another.version": "1"},
        {"log.cleaner.threads": "20"},  # rejected because of a config in the file
        {"log.cleaner.threads": "20", "max.connections": "0", "compression.type": "brotli"},
    ],
    ids=lambda settings: "+".join(settings),
)
def test_stored_setting_that_is_not_usable_leaves_the_others_in_force(unusable):
    """Without log.retention.ms=-1 the broker would delete data that is to be kept forever."""
    for config in (
        effective({**unusable, **FOREVER}),
        effective(FOREVER, unusable),
        effective(unusable, FOREVER),
    ):
        assert config["log.retention.ms"] == -1
        for name in unusable.keys() - {"a.setting.of.another.version"}:
            assert config[name] == STARTED_WITH[name]


def test_unusable_setting_of_one_broker_leaves_that_of_all_brokers_in_force():
    config = effective({"max.connections": "7", **FOREVER}, {"max.connections": "0"})

    assert config["max.connections"] == 7
    assert config["log.retention.ms"] == -1


def test_settings_that_go_together_only_are_kept_together():
    config = effective(
        {"log.cleaner.min.compaction.lag.ms": "50", "log.cleaner.max.compaction.lag.ms": "60"}
    )

    assert config["log.cleaner.max.compaction.lag.ms"] == 60


def test_store_that_no_listener_is_named_for_is_ignored(caplog):
    """Kafka's tools reject it, but ZooKeeper may have one."""
    found = effective({"log.retention.ms": "7"}, {"ssl.keystore.location": "/x"})
    assert found["ssl.keystore.location"] is None
    assert found["log.retention.ms"] == 7
    assert "can be dynamically updated only using listener prefix" in caplog.text
