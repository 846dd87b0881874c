"""Changes of settings while the broker runs."""

from __future__ import annotations

import pytest
from support.running.counting_text import CountingText

from kbroker.config import dynamic
from kbroker.config.dynamic import (
    APPEND,
    DELETE,
    ONLY_OF_A_LISTENER,
    SET,
    SUBTRACT,
    UNKNOWN_CHARS_MAX,
    UNKNOWN_MAX,
    UNKNOWN_TOTAL_CHARS_MAX,
    AlterOp,
    RefusedName,
    alter_broker,
    alter_client_metrics,
    alter_group,
    alter_topic,
    reload,
    replace_broker,
    replace_topic,
)
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError

pytestmark = pytest.mark.unit

BROKER = BrokerConfig({})


def op(operation: int, name: str, value: str | None = None) -> AlterOp:
    return AlterOp(name, operation, value)


# -- topics ----------------------------------------------------------------------------------------


def test_set_and_delete_change_only_what_they_name():
    current = {"retention.ms": "5", "segment.ms": "6"}

    changed = alter_topic(current, [op(SET, "retention.ms", "7"), op(DELETE, "segment.ms")], BROKER)

    assert changed == {"retention.ms": "7"}
    assert current == {"retention.ms": "5", "segment.ms": "6"}


def test_delete_of_what_is_not_set_changes_nothing():
    assert alter_topic({}, [op(DELETE, "retention.ms")], BROKER) == {}


def test_append_adds_to_the_inherited_list_without_doubles():
    changed = alter_topic({}, [op(APPEND, "cleanup.policy", "compact")], BROKER)
    assert changed == {"cleanup.policy": "delete,compact"}

    changed = alter_topic(changed, [op(APPEND, "cleanup.policy", "compact")], BROKER)
    assert changed == {"cleanup.policy": "delete,compact"}


def test_append_starts_from_the_brokers_list():
    compacting = BrokerConfig({"log.cleanup.policy": "compact"})

    changed = alter_topic({}, [op(APPEND, "cleanup.policy", "delete")], compacting)

    assert changed == {"cleanup.policy": "compact,delete"}


def test_subtract_takes_items_away():
    current = {"cleanup.policy": "delete,compact"}

    changed = alter_topic(current, [op(SUBTRACT, "cleanup.policy", "delete")], BROKER)

    assert changed == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    "bad",
    [
        op(SET, "retention.ms", "soon"),
        op(SET, "retention.ms", None),
        op(SET, "no.such", "1"),
        op(APPEND, "no.such", "1"),
        op(APPEND, "retention.ms", "1"),
        op(SUBTRACT, "segment.bytes", "1"),
        op(APPEND, "cleanup.policy", "shred"),
        op(APPEND, "cleanup.policy", None),
        op(4, "retention.ms", "1"),
        op(SET, "min.compaction.lag.ms", str(2**63 - 1) + "0"),
    ],
)
def test_bad_operation_is_refused_and_nothing_changes(bad):
    current = {"segment.ms": "6"}

    with pytest.raises(ConfigError):
        alter_topic(current, [op(SET, "segment.ms", "7"), bad], BROKER)

    assert current == {"segment.ms": "6"}


def test_deletion_of_what_is_not_there_changes_nothing():
    """As Kafka 3.9 and 4.3, whatever the resource."""
    gone = [op(DELETE, "no.such")]
    assert alter_topic({"segment.ms": "6"}, gone, BROKER) == {"segment.ms": "6"}
    assert alter_group({}, gone, BROKER) == {}
    assert alter_client_metrics({}, gone) == {}
    for name in ("no.such", "log.dirs", "log.retention.ms"):
        assert alter_broker({}, [op(DELETE, name)], BROKER, per_broker=True) == {}


@pytest.mark.parametrize("per_broker", [True, False])
def test_brokers_setting_of_any_name_is_kept(per_broker):
    """It may be that of a plug-in."""
    stored = {"no.such": "1"}
    assert alter_broker({}, [op(SET, "no.such", "1")], BROKER, per_broker=per_broker) == stored
    assert replace_broker(stored, BROKER, per_broker=per_broker) == stored
    with pytest.raises(ConfigError, match="known setting"):
        alter_broker({}, [op(APPEND, "no.such", "1")], BROKER, per_broker=per_broker)


def test_brokers_settings_of_any_name_are_bounded():
    most = {f"x{n}": "1" for n in range(UNKNOWN_MAX)}
    longest = {"x" * UNKNOWN_CHARS_MAX: "v" * (UNKNOWN_TOTAL_CHARS_MAX - UNKNOWN_CHARS_MAX)}
    assert replace_broker(most, BROKER, per_broker=True) == most
    assert replace_broker(longest, BROKER, per_broker=True) == longest

    for current, name in ((most, "y"), (longest, "y"), ({}, "x" * (UNKNOWN_CHARS_MAX + 1))):
        with pytest.raises(RefusedName, match="at most"):
            replace_broker(current | {name: "1"}, BROKER, per_broker=True)
        with pytest.raises(RefusedName, match="at most"):
            alter_broker(current, [op(SET, name, "1")], BROKER, per_broker=True)


def test_more_than_we_would_store_does_not_keep_the_others_from_changing():
    """Somebody else may have stored them."""
    stored = {f"x{n}": "1" for n in range(UNKNOWN_MAX + 2)} | {"x" * 300: "1", "a\nb": "1"}
    for change in (op(SET, "log.cleaner.threads", "1"), op(DELETE, "x0"), op(DELETE, "a\nb")):
        changed = alter_broker(stored, [change], BROKER, per_broker=True)
        assert {"a\nb", "x" * 300} - {change.name} <= changed.keys()
        assert ("log.cleaner.threads" in changed) == (change.operation == SET)


@pytest.mark.parametrize("per_broker", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        "config.providers",
        "config.providers.file.class",
        "config.providers.file.param.allowed.paths",
        "listener.name.x.config.providers.file.class",
        "",
        "a\nb",
        "a\0",
        "\ud800",
        "\u202eevil",
        "x" * 32_767,
    ],
    ids=lambda name: ascii(name)[:40],
)
def test_name_that_would_be_code_or_is_no_text_is_refused(name, per_broker):
    """Names of config providers have a Kafka that shares the store make objects."""
    with pytest.raises(RefusedName) as altered:
        alter_broker({}, [op(SET, name, "hunter2")], BROKER, per_broker=per_broker)
    with pytest.raises(RefusedName) as replaced:
        replace_broker({name: "hunter2"}, BROKER, per_broker=per_broker)

    for text in (altered.value.client_text, replaced.value.client_text):
        assert text.isprintable() and text.isascii() and len(text) < 400 and "hunter2" not in text
    assert alter_broker({name: "1"}, [op(DELETE, name)], BROKER, per_broker=per_broker) == {}


def test_setting_named_twice_in_a_request_is_refused():
    with pytest.raises(ConfigError, match="once"):
        alter_topic({}, [op(SET, "segment.ms", "7"), op(DELETE, "segment.ms")], BROKER)


def test_name_from_elsewhere_stays_until_it_is_deleted():
    current = {"from.the.future": "1"}

    assert alter_topic(current, [op(SET, "segment.ms", "7")], BROKER)["from.the.future"] == "1"
    assert alter_topic(current, [op(DELETE, "from.the.future")], BROKER) == {}


def test_replace_topic_checks_all():
    assert replace_topic({"segment.ms": "7"}, BROKER) == {"segment.ms": "7"}
    for bad in ({"segment.ms": None}, {"segment.ms": "0"}, {"no.such": "1"}):
        with pytest.raises(ConfigError):
            replace_topic(bad, BROKER)


# -- brokers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_broker", [True, False])
def test_cluster_wide_setting_may_change_at_both_levels(per_broker):
    ops = [op(SET, "log.segment.bytes", "1000")]

    assert alter_broker({}, ops, BROKER, per_broker=per_broker) == {"log.segment.bytes": "1000"}


def test_per_broker_setting_may_not_change_for_all():
    ops = [op(SET, "ssl.client.auth", "required")]

    assert alter_broker({}, ops, BROKER, per_broker=True) == {"ssl.client.auth": "required"}
    with pytest.raises(ConfigError, match="one broker"):
        alter_broker({}, ops, BROKER, per_broker=False)


@pytest.mark.parametrize(
    "name",
    ["log.dirs", "listeners", "num.io.threads", "runtime.dir", "log.retention.hours"],
)
def test_setting_that_may_not_change_is_refused(name):
    with pytest.raises(ConfigError):
        alter_broker({}, [op(SET, name, "1")], BROKER, per_broker=True)
    with pytest.raises(ConfigError):
        replace_broker({name: "1"}, BROKER, per_broker=True)


@pytest.mark.parametrize(
    ("name", "per_broker"),
    [
        ("delegation.token.master.key", True),
        ("password.encoder.secret", True),
        ("ssl.key.password", False),
        ("listener.name.x.ssl.key.password", False),
    ],
)
def test_secret_that_is_refused_is_not_repeated(name, per_broker):
    """Some are read at the start only; all others are those of one broker."""
    with pytest.raises(ConfigError) as altered:
        alter_broker({}, [op(SET, name, "hunter2")], BROKER, per_broker=per_broker)
    with pytest.raises(ConfigError) as replaced:
        replace_broker({name: "hunter2"}, BROKER, per_broker=per_broker)

    assert "hunter2" not in str(altered.value) + str(replaced.value)


@pytest.mark.parametrize("name", sorted(ONLY_OF_A_LISTENER))
def test_store_changes_for_a_listener_only(name):
    """As in Kafka, which has the new one of a listener without a prefix only after a restart."""
    value = "1" if name.endswith("type") else "/x"
    with pytest.raises(ConfigError, match=f"listener.name.<name>.{name}"):
        alter_broker({}, [op(SET, name, value)], BROKER, per_broker=True)
    with pytest.raises(ConfigError, match=f"listener.name.<name>.{name}"):
        replace_broker({name: value}, BROKER, per_broker=True)
    assert alter_broker({name: value}, [op(DELETE, name)], BROKER, per_broker=True) == {}
    prefixed = f"listener.name.x.{name}"
    ops = [op(SET, prefixed, value)]
    assert alter_broker({}, ops, BROKER, per_broker=True) == {prefixed: value}


PASSWORD_NAMES = ["listener.name.x.ssl.key.password", "listener.name.x.plain.sasl.jaas.config"]


@pytest.mark.parametrize("name", PASSWORD_NAMES)
def test_secret_of_one_broker_may_change(name):
    assert alter_broker({}, [op(SET, name, "x")], BROKER, per_broker=True) == {name: "x"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("principal.builder.class", "os.system"),
        ("listener.name.x.ssl.engine.factory.class", "os.system"),
        ("ssl.keystore.location", "http://elsewhere/key.pem"),
        ("listener.name.x.ssl.truststore.location", "file:///etc/passwd"),
    ],
)
def test_code_and_url_cannot_be_named_while_the_broker_runs(name, value):
    with pytest.raises(ConfigError):
        alter_broker({}, [op(SET, name, value)], BROKER, per_broker=True)
    with pytest.raises(ConfigError):
        replace_broker({name: value}, BROKER, per_broker=True)

    assert alter_broker({name: value}, [op(DELETE, name)], BROKER, per_broker=True) == {}


def test_setting_that_became_read_only_can_be_deleted():
    assert alter_broker({"log.dirs": "/d"}, [op(DELETE, "log.dirs")], BROKER, per_broker=True) == {}


def test_layer_is_checked_with_the_rest_of_the_configuration():
    lagging = BrokerConfig({"log.cleaner.min.compaction.lag.ms": "10"})

    with pytest.raises(ConfigError):
        alter_broker(
            {}, [op(SET, "log.cleaner.max.compaction.lag.ms", "9")], lagging, per_broker=False
        )
    with pytest.raises(ConfigError):
        replace_broker({"log.retention.ms": "0"}, BROKER, per_broker=True)


# -- reload ----------------------------------------------------------------------------------------


def test_reload_takes_what_may_change_and_names_what_waits():
    running = BrokerConfig(
        {"log.dirs": "/a", "log.segment.bytes": "100", "log.retention.hours": "1"},
        dynamic_default={"log.index.interval.bytes": "7"},
    )
    fresh = BrokerConfig({"log.dirs": "/b", "log.segment.bytes": "200", "message.max.bytes": "9"})

    config, applied, waiting = reload(running, fresh)

    assert applied == ["log.retention.hours", "log.segment.bytes", "message.max.bytes"]
    assert waiting == ["log.dirs"]
    assert config.log_dirs == ["/a"]
    assert config["log.segment.bytes"] == 200
    assert config["message.max.bytes"] == 9
    assert config.topic_defaults["retention.ms"] == 7 * 24 * 3_600_000
    assert config["log.index.interval.bytes"] == 7


def test_reload_of_the_same_file_changes_nothing():
    config, applied, waiting = reload(BROKER, BrokerConfig({}))

    assert (applied, waiting) == ([], [])
    assert config.layers() == BrokerConfig({}).layers()


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_items_of_a_list_are_not_compared_with_each_other(
    monkeypatch: pytest.MonkeyPatch, operation: int
) -> None:
    """Adding 8,000 items to as many took the controller half a second, for one topic of many."""
    split = dynamic.split_list
    monkeypatch.setattr(dynamic, "split_list", lambda text: tuple(map(CountingText, split(text))))
    name = "leader.replication.throttled.replicas"
    current = {name: ",".join(f"{number}:0" for number in range(300))}
    change = ",".join(f"{number}:1" for number in range(300)) + ",7:0"
    CountingText.compared = 0

    changed = alter_topic(current, [op(operation, name, change)], BROKER)

    assert CountingText.compared <= 10 * 300
    assert changed[name].count(":0") == (300 if operation == APPEND else 299)
    assert changed[name].count(":1") == (300 if operation == APPEND else 0)
