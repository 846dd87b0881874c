"""Loading a configuration: values, layers, warnings, errors, and Kafka's own samples."""

from __future__ import annotations

import os
from contextlib import nullcontext

import pytest

from kbroker.config import loader
from kbroker.config.key import LONG_MAX
from kbroker.config.loader import (
    BrokerConfig,
    ConfigSource,
    PropertiesError,
    load,
    load_properties,
    parse_overrides,
    parse_properties,
)
from kbroker.config.table.rules import RACK_AWARE_SELECTOR
from kbroker.errors import ConfigError

pytestmark = pytest.mark.unit

# The settings of Apache Kafka's config/server.properties, without its comments.
SAMPLE_COMMON = """
broker.id=0
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kafka-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.retention.check.interval.ms=300000
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""
SAMPLE_27 = SAMPLE_COMMON + "log.segment.bytes=1073741824\n"
SAMPLE_39 = SAMPLE_COMMON
SAMPLE_39_KRAFT = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,\
SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
log.dirs=/tmp/kraft-combined-logs
log.segment.bytes=1073741824
"""
# The production settings of the 0.8.2 documentation.
SAMPLE_082 = """
num.replica.fetchers=4
replica.fetch.max.bytes=1048576
replica.fetch.wait.max.ms=500
replica.high.watermark.checkpoint.interval.ms=5000
replica.socket.timeout.ms=30000
replica.socket.receive.buffer.bytes=65536
replica.lag.time.max.ms=10000
replica.lag.max.messages=4000
controller.socket.timeout.ms=30000
controller.message.queue.size=10
num.partitions=8
message.max.bytes=1000000
auto.create.topics.enable=true
log.index.interval.bytes=4096
log.index.size.max.bytes=10485760
log.retention.hours=168
log.flush.interval.ms=10000
log.flush.interval.messages=20000
log.flush.scheduler.interval.ms=2000
log.roll.hours=168
log.retention.check.interval.ms=300000
log.segment.bytes=1073741824
zookeeper.connection.timeout.ms=6000
zookeeper.sync.time.ms=2000
num.io.threads=8
num.network.threads=8
socket.request.max.bytes=104857600
socket.receive.buffer.bytes=1048576
socket.send.buffer.bytes=1048576
queued.max.requests=16
fetch.purgatory.purge.interval.requests=100
producer.purgatory.purge.interval.requests=100
"""


def config(**settings: str) -> BrokerConfig:
    return BrokerConfig({name.replace("_", "."): text for name, text in settings.items()})


def load_text(text: str, **overrides: str) -> tuple[BrokerConfig, list[str]]:
    named = {name.replace("_", "."): value for name, value in overrides.items()}
    return load_properties(parse_properties(text), named)


# -- Kafka's own files -----------------------------------------------------------------------------


@pytest.mark.parametrize("text", [SAMPLE_27, SAMPLE_39, SAMPLE_39_KRAFT, SAMPLE_082])
def test_sample_of_kafka_loads_and_knows_every_key(text):
    loaded, warnings = load_text(text)

    assert not [line for line in warnings if "unknown" in line]
    for name, _ in parse_properties(text):
        assert loaded.is_set(name)


@pytest.mark.parametrize("text", ["admin", "User:admin;bob", ":admin", "User:"])
def test_super_users_that_are_no_principals_refuse_the_start(text):
    with pytest.raises(ConfigError, match="type:name"):
        load_text(SAMPLE_27 + f"super.users={text}")


def test_super_users_without_an_authorizer_are_named_as_without_effect():
    _, warnings = load_text(SAMPLE_27 + "super.users=User:admin; User:CN=broker,O=x;")

    assert [line for line in warnings if line.startswith("super.users has no effect")]


def test_group_protocols_are_what_is_offered():
    with pytest.raises(ConfigError, match="classic"):
        load_text("group.coordinator.rebalance.protocols=consumer")
    _, warnings = load_text("group.coordinator.rebalance.protocols=classic,consumer,streams")
    assert [line for line in warnings if "lists streams" in line]


def test_sample_of_kraft_opens_no_controller_listener():
    loaded, warnings = load_text(SAMPLE_39_KRAFT)

    assert [str(listener) for listener in loaded.listeners] == ["PLAINTEXT://:9092"]
    told = [str(listener) for listener in loaded.advertised_listeners]
    assert told == ["PLAINTEXT://localhost:9092"]
    assert loaded.broker_id == loaded["broker.id"] == 1
    for name in ("process.roles", "controller.quorum.voters"):
        [line] = [line for line in warnings if line.startswith(f"{name}=")]
        assert "has no effect: kbroker has no KRaft" in line


VOTERS = "1@localhost:9093"


@pytest.mark.parametrize(
    ("given", "instead", "named"),
    [
        ("process.roles=broker,controller", "process.roles=broker", "process.roles=broker is"),
        ("process.roles=broker,controller", "process.roles=controller", "process.roles=controller"),
        (f"quorum.voters={VOTERS}", f"quorum.voters={VOTERS},2@other:9093", "2@other:9093 is not"),
        (f"quorum.voters={VOTERS}", "quorum.voters=2@other:9093", "this node alone (1@host:port)"),
        ("node.id=1", "node.id=2", "this node alone (2@host:port)"),
        (f"quorum.voters={VOTERS}", "quorum.bootstrap.servers=a:9093,b:9093", "b:9093 is not"),
        (f"quorum.voters={VOTERS}", "quorum.bootstrap.servers=localhost:9193", "9193 is not"),
    ],
)
def test_node_of_a_kraft_cluster_is_refused(given, instead, named):
    """Three of them would serve as three clusters, each with its own topics of the same names."""
    text = SAMPLE_39_KRAFT.replace(given, instead)
    assert text != SAMPLE_39_KRAFT

    with pytest.raises(ConfigError) as caught:
        load_text(text)

    assert named in str(caught.value)
    assert "needs zookeeper.connect" in str(caught.value)
    load_text(text, zookeeper_connect="h:2181")  # it is in that cluster


@pytest.mark.parametrize(
    ("bound", "told", "server", "is_refused"),
    [
        (":9093", "node2:9093", "node1:9093", True),
        ("node2:9093", None, "node1:9093", True),
        (":9093", "node2:9093", "node2:9093", False),
        (":9093", "node2:19093", "node2:19093", False),
        (":9093", "node2:9093", "localhost:9093", False),
        (":9093", None, "node1:9093", False),  # its name is not known
        ("127.0.0.1:9093", None, "node1:9093", False),
        ("[::1]:9093", None, "node1:9093", False),
        (":0", None, "localhost:9093", False),
    ],
)
def test_controller_on_another_node_is_refused(bound, told, server, is_refused):
    text = (
        "process.roles=broker,controller\nnode.id=2\nlog.dirs=/d\n"
        "controller.listener.names=CONTROLLER\n"
        f"listeners=PLAINTEXT://:9092,CONTROLLER://{bound}\n"
        f"controller.quorum.bootstrap.servers={server}\n"
    )
    if told is not None:
        text += f"advertised.listeners=PLAINTEXT://node2:9092,CONTROLLER://{told}\n"

    with pytest.raises(ConfigError, match=server) if is_refused else nullcontext():
        load_text(text)


@pytest.mark.parametrize(
    "instead",
    ["", "controller.quorum.bootstrap.servers=localhost:9093"],
)
def test_node_that_is_a_kraft_cluster_of_its_own_starts(instead):
    """Kafka 4 ships the second."""
    load_text(SAMPLE_39_KRAFT.replace(f"controller.quorum.voters={VOTERS}", instead))


# -- names -----------------------------------------------------------------------------------------


def test_unknown_setting_is_ignored_and_the_nearest_named():
    loaded, warnings = load_text("log.dirs=/d\nlog.segmnt.bytes=1\n")

    assert loaded["log.segment.bytes"] == 1 << 30
    [line] = [line for line in warnings if "unknown" in line]
    assert "log.segmnt.bytes" in line
    assert "log.segment.bytes?" in line


def test_unknown_setting_like_nothing_has_no_hint():
    _, warnings = load_text("log.dirs=/d\nzzzzzz=1\n")

    assert warnings == ["unknown setting 'zzzzzz' is ignored"]


def test_unknown_setting_cannot_forge_a_log_line():
    _, warnings = load_text("log.dirs=/d\nqqqq\\nERROR\\ all\\ is\\ lost=1\n")

    assert all("\n" not in line for line in warnings)


def test_alias_stands_for_its_setting():
    loaded, _ = load_text("log.delete.delay.ms=5")

    assert loaded["log.segment.delete.delay.ms"] == 5


def test_later_setting_warns_only_when_not_default():
    _, warnings = load_text("log.dirs=/d\nlog.dir.failure.timeout.ms=30000")
    assert warnings == []

    _, warnings = load_text("log.dirs=/d\nlog.dir.failure.timeout.ms=2")
    text = "log.dir.failure.timeout.ms=2 has no effect yet: the feature is not supported"
    assert warnings == [text]


def test_warning_hides_a_password():
    _, warnings = load_text("log.dirs=/d\nzookeeper.ssl.truststore.password=hunter2")

    assert len(warnings) == 1
    assert "hunter2" not in warnings[0]


def test_setting_of_one_listener_is_checked_like_the_brokers():
    with pytest.raises(ConfigError, match=r"listener\.name\.plaintext\.ssl\.client\.auth=often"):
        load_text("listener.name.plaintext.ssl.client.auth=often")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("listener.name.x.ssl.client.auth", "the broker has no listener X"),
        ("listener.name.PLAINTEXT.ssl.client.auth", "lower case"),
        ("listener.name.plaintext.ssl.client.auht", "unknown setting"),
        ("listener.name.plaintext.log.dirs", "unknown setting"),
        ("listener.name.plaintext.plain.ssl.client.auth", "unknown setting"),
        ("listener.name.plaintext.max.connections", "only max.connections of the broker"),
    ],
)
def test_setting_of_one_listener_that_cannot_count_is_warned_about(name, told):
    """Kafka ignores it without a word, and the listener is more open than meant."""
    value = "5" if name.endswith("connections") else "required"
    _, warnings = load_text(f"log.dirs=/d\n{name}={value}")

    assert len(warnings) == 1
    assert told in warnings[0]


def test_setting_twice_warns_and_the_last_counts():
    loaded, warnings = load_text("log.dirs=/d\nnum.partitions=2\nnum.partitions=3")

    assert loaded["num.partitions"] == 3
    assert warnings == ["num.partitions is set more than once; the last value is used"]


@pytest.mark.parametrize("order", [1, -1])
def test_older_setting_beside_its_successor_is_named(tmp_path, order):
    """COMPAT: as in Kafka the order does not matter: a listener with TLS stays one."""
    lines = ["listeners=PLAINTEXT://h:1,SSL://h:3", "port=2", "log.dirs=/a,/b", "log.dir=/c"]
    path = tmp_path / "server.properties"
    path.write_text("\n".join(lines[::order]))

    config, warnings = load(str(path))

    assert [each.port for each in config.listeners] == [1, 3]
    assert config.log_dirs == ["/a", "/b"]
    assert "log.dir=/c is ignored: log.dirs=/a,/b is set, too" in warnings[0]
    assert warnings[1].startswith("port=2 is ignored: listeners=PLAINTEXT://h:1,SSL://h:3 is set")
    path.write_text("port=2\nlog.dir=/c")
    assert load(str(path), {"listeners": "PLAINTEXT://h:1", "log.dirs": "/d"})[1] == []


def test_bad_value_names_key_value_and_allowed():
    with pytest.raises(ConfigError) as raised:
        load_text("num.partitions=0")

    assert (raised.value.key, raised.value.value) == ("num.partitions", "0")
    assert "at least 1" in raised.value.allowed


def test_name_that_does_not_exist_is_a_key_error():
    with pytest.raises(KeyError):
        config()["no.such.setting"]


# -- files and overrides ---------------------------------------------------------------------------


def test_load_reads_a_file_and_lays_overrides_over_it(tmp_path):
    path = tmp_path / "server.properties"
    path.write_text("log.dirs=/a\nlog.retention.ms=5\nbroker.id=3\n")

    loaded, _ = load(str(path), {"log.retention.hours": "1", "node.id": "4"})

    assert loaded.log_dirs == ["/a"]
    assert loaded.topic_defaults["retention.ms"] == 3_600_000
    assert loaded.broker_id == 4


def test_load_without_file_gives_defaults_and_says_where_data_goes():
    loaded, warnings = load(None)

    assert loaded["num.partitions"] == 1
    assert len(warnings) == 1
    assert "/tmp/kafka-logs" in warnings[0]


def test_load_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(str(tmp_path / "none"))


def test_parse_overrides_splits_at_the_first_equals():
    assert parse_overrides(["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    for bad in ("a", "=b"):
        with pytest.raises(PropertiesError):
            parse_overrides([bad])


# -- layers ----------------------------------------------------------------------------------------


def test_layers_override_each_other_in_order():
    static = config(log_segment_bytes="100", num_partitions="2")

    changed = static.with_dynamic({"log.segment.bytes": "200"}, {"log.segment.bytes": "300"})

    assert static["log.segment.bytes"] == 100
    assert changed["log.segment.bytes"] == 300
    assert changed.source("log.segment.bytes") == ConfigSource.DYNAMIC_BROKER
    assert changed.source("num.partitions") == ConfigSource.STATIC_BROKER
    assert changed.source("fetch.max.bytes") == ConfigSource.DEFAULT
    assert changed.with_dynamic({}, {})["log.segment.bytes"] == 100


def test_dynamic_value_replaces_static_ones_in_other_units():
    static = BrokerConfig({"log.retention.ms": "5"})

    changed = static.with_dynamic({"log.retention.hours": "1"}, {})

    assert changed.topic_defaults["retention.ms"] == 3_600_000
    assert not changed.is_set("log.retention.ms")


# -- derived values --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "retention_ms"),
    [
        ("", 7 * 24 * 3_600_000),
        ("log.retention.hours=1", 3_600_000),
        ("log.retention.hours=1\nlog.retention.minutes=1", 60_000),
        ("log.retention.hours=1\nlog.retention.minutes=1\nlog.retention.ms=1", 1),
        ("log.retention.ms=-1", -1),
        ("log.retention.hours=-5", -1),
        ("log.retention.hours=2147483647", 2147483647 * 3_600_000),
    ],
)
def test_retention_takes_the_finest_unit(text, retention_ms):
    assert load_text(text)[0].topic_defaults["retention.ms"] == retention_ms


def test_roll_and_flush_times():
    defaults = load_text("log.roll.hours=2\nlog.roll.jitter.hours=1")[0].topic_defaults

    assert (defaults["segment.ms"], defaults["segment.jitter.ms"]) == (7_200_000, 3_600_000)
    assert load_text("log.roll.ms=9\nlog.roll.hours=2")[0].topic_defaults["segment.ms"] == 9


@pytest.mark.parametrize(
    ("text", "flush_ms"),
    [
        ("", 1000),
        ("log.flush.interval.ms=5", 5),
        ("log.flush.scheduler.interval.ms=7", 7),
        ("log.flush.scheduler.interval.ms=7\nlog.flush.interval.ms=5", 5),
        (f"log.flush.interval.ms={LONG_MAX}", LONG_MAX),
    ],
)
def test_flush_interval_defaults_to_a_second(text, flush_ms):
    assert load_text(text)[0].log_flush_interval_ms == flush_ms


def test_log_dirs_are_absolute_and_each_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    loaded = load_text("log.dirs=a, b ,a,,/c")[0]

    assert loaded.log_dirs == [str(tmp_path / "a"), str(tmp_path / "b"), "/c"]
    assert load_text("log.dir=/x")[0].log_dirs == ["/x"]
    assert load_text("log.dir=/x\nlog.dirs=/y")[0].log_dirs == ["/y"]


@pytest.mark.parametrize("text", ["log.dirs=", "log.dir=", "log.dirs= , ", "log.dirs=\nlog.dir=/x"])
def test_log_dirs_that_name_none_are_refused(text):
    """They became /tmp/kafka-logs: ``--override log.dirs=$DATA`` with an unset variable."""
    with pytest.raises(ConfigError, match="at least one directory"):
        load_text(text)


def test_queued_bytes_hold_at_least_one_request():
    assert config().queued_max_request_bytes == 256 << 20
    assert load_text("queued.max.request.bytes=-1")[0].queued_max_request_bytes == 256 << 20
    loaded, warnings = load_text("log.dirs=/d\nqueued.max.request.bytes=1000")
    assert loaded.queued_max_request_bytes == 104857600
    assert len(warnings) == 1


def test_runtime_dir_is_stable_and_one_per_data_directory(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    one, two = config(log_dirs="/a"), config(log_dirs="/b")

    assert one.runtime_dir == config(log_dirs="/a").runtime_dir
    assert one.runtime_dir != two.runtime_dir
    assert os.path.dirname(one.runtime_dir) == str(tmp_path)
    assert config(runtime_dir="/r").runtime_dir == "/r"


@pytest.mark.parametrize(("mode", "base"), [(0o755, "{run}"), (0o777, "/tmp"), (None, "/tmp")])
def test_runtime_dir_without_a_session_is_in_run_if_only_this_user_writes_there(
    tmp_path, monkeypatch, mode, base
):
    run = tmp_path / "run"
    if mode is not None:
        run.mkdir()
        run.chmod(mode)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(loader, "SYSTEM_RUNTIME_DIR", str(run))

    expected = f"{base.format(run=run)}/kbroker-{os.getuid()}-"
    assert config().runtime_dir.startswith(expected)


def test_runtime_dir_is_not_in_the_session_of_another_user(tmp_path, monkeypatch):
    """``sudo -E`` keeps the variable."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    assert config().runtime_dir.startswith("/tmp/")


def test_connection_overrides_are_a_dict():
    text = "max.connections.per.ip.overrides=127.0.0.1:5, ::1:6"

    assert load_text(text)[0].max_connections_per_ip_overrides == {"127.0.0.1": 5, "::1": 6}


# -- listeners -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("", ["PLAINTEXT://127.0.0.1:9092"]),
        ("port=9093", ["PLAINTEXT://127.0.0.1:9093"]),
        ("host.name=", ["PLAINTEXT://:9092"]),
        ("host.name=h\nport=0", ["PLAINTEXT://h:0"]),
        ("listeners=plaintext://:9092", ["PLAINTEXT://:9092"]),
        ("listeners=PLAINTEXT://[::1]:9092", ["PLAINTEXT://[::1]:9092"]),
        ("listeners=PLAINTEXT://h:1\nhost.name=i\nport=2", ["PLAINTEXT://h:1"]),
        (
            "listener.security.protocol.map=IN:PLAINTEXT,OUT:PLAINTEXT\n"
            "listeners=IN://127.0.0.1:9092, OUT://127.0.0.2:9092",
            ["IN://127.0.0.1:9092", "OUT://127.0.0.2:9092"],
        ),
    ],
)
def test_listeners_are_those_configured(text, bound):
    assert [str(listener) for listener in load_text(text)[0].listeners] == bound


@pytest.mark.parametrize(
    "text",
    [
        "listeners=",
        "listeners=localhost:9092",
        "listeners=PLAINTEXT://h",
        "listeners=PLAINTEXT://h:65536",
        "listeners=PLAINTEXT://h:-1",
        "listeners=PLAINTEXT://h:٩",
        "listeners=PLAINTEXT://a b:1",
        "listeners=OTHER://h:1",
        "listeners=PLAINTEXT://h:1,PLAINTEXT://h:2",
        "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT\nlisteners=A://:1,B://h:1",
        "listeners=CONTROLLER://:1\ncontroller.listener.names=CONTROLLER",
        "listeners=PLAINTEXT://:1\nadvertised.listeners=OTHER://h:1",
        "listeners=PLAINTEXT://:1\nadvertised.listeners=PLAINTEXT://0.0.0.0:1",
        "listeners=PLAINTEXT://:1\nadvertised.listeners=PLAINTEXT://:1",
        "listener.security.protocol.map=A:NOTHING",
    ],
)
def test_listeners_that_cannot_work_are_refused(text):
    with pytest.raises(ConfigError):
        load_text(text)


def test_listener_for_tls_is_opened_for_clients_and_brokers():
    text = "listeners=PLAINTEXT://:9092,SASL_SSL://:9093\n"
    config, _ = load_text(text)
    assert [(each.uses_tls, each.uses_sasl) for each in config.listeners] == [
        (False, False),
        (True, True),
    ]
    between = "zookeeper.connect=z:2181\ninter.broker.listener.name=SASL_SSL\n"
    config, _ = load_text(text + between)
    assert config.security_protocol(config.inter_broker_listener) == "SASL_SSL"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", []),
        ("listeners=PLAINTEXT://:1", []),
        (
            "listeners=PLAINTEXT://:1\nadvertised.listeners=PLAINTEXT://h:2",
            ["PLAINTEXT://h:2"],
        ),
        ("host.name=\nadvertised.host.name=h", ["PLAINTEXT://h:9092"]),
        ("host.name=a\nadvertised.port=7", ["PLAINTEXT://a:7"]),
    ],
)
def test_advertised_listeners_are_empty_unless_configured(text, told):
    assert [str(listener) for listener in load_text(text)[0].advertised_listeners] == told


# -- limits over several settings ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("broker.id=1001", "broker.id"),
        ("broker.id=-2", "broker.id"),
        ("broker.id.generation.enable=false", "broker.id"),
        ("broker.id=1\nnode.id=2", "node.id"),
        ("log.retention.ms=0", "log.retention.ms"),
        ("log.roll.ms=0", "log.roll.ms"),
        ("log.dirs=,", "log.dirs"),
        ("socket.send.buffer.bytes=0", "socket.send.buffer.bytes"),
        ("connections.max.idle.ms=0", "connections.max.idle.ms"),
        ("max.connections=0", "max.connections"),
        ("max.connections.per.ip=0", "max.connections.per.ip"),
        ("max.connection.creation.rate=0", "max.connection.creation.rate"),
        ("log.message.timestamp.difference.max.ms=-1", "log.message.timestamp.difference.max.ms"),
        ("replica.fetch.wait.max.ms=40000", "replica.fetch.wait.max.ms"),
        ("replica.lag.time.max.ms=100", "replica.fetch.wait.max.ms"),
        ("offsets.commit.required.acks=4", "offsets.commit.required.acks"),
        ("group.max.session.timeout.ms=1", "group.max.session.timeout.ms"),
        ("group.consumer.session.timeout.ms=44999", "group.consumer.session.timeout.ms"),
        ("group.consumer.heartbeat.interval.ms=15001", "group.consumer.heartbeat.interval.ms"),
        ("group.consumer.max.session.timeout.ms=1", "group.consumer.max.session.timeout.ms"),
        (
            "group.consumer.max.heartbeat.interval.ms=45000\n"
            "group.consumer.heartbeat.interval.ms=45000",
            "group.consumer.heartbeat.interval.ms",
        ),
        ("log.cleaner.dedupe.buffer.size=1000", "log.cleaner.dedupe.buffer.size"),
        ("worker.restart.backoff.ms=99999", "worker.restart.backoff.ms"),
        ("replica.selector.class=com.example.Nearest", "replica.selector.class"),
        (f"replica.selector.class={RACK_AWARE_SELECTOR},", "replica.selector.class"),
    ],
)
def test_limit_that_does_not_hold_names_the_setting(text, key):
    with pytest.raises(ConfigError) as raised:
        load_text(text)

    assert raised.value.key == key


def test_limits_hold_at_their_edge():
    assert load_text("broker.id=1000")[0].broker_id == 1000
    assert load_text("node.id=5000")[0].broker_id == 5000
    assert load_text("reserved.broker.max.id=2000\nbroker.id=1500")[0].broker_id == 1500
    only_local = "max.connections.per.ip=0\nmax.connections.per.ip.overrides=127.0.0.1:5"
    assert load_text(only_local)[0]["max.connections.per.ip"] == 0
    for selector in ("", RACK_AWARE_SELECTOR):
        loaded, warnings = load_text(f"log.dirs=/d\nreplica.selector.class={selector}")
        assert (loaded["replica.selector.class"], warnings) == (selector, [])


def test_more_processes_than_cores_are_advised_against():
    _, warnings = load_text("log.dirs=/d\nnum.io.threads=4096")

    assert len(warnings) == 1
    assert "4096 io processes" in warnings[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log.dir.failure.timeout.ms", "7"),
    ],
)
def test_setting_whose_feature_is_not_built_is_said_to_have_no_effect(name, value):
    _, warnings = load_properties([("log.dirs", "/data"), (name, value)])

    (warning,) = warnings
    assert warning.startswith(f"{name}={value} has no effect yet: ")
    assert load_properties([("log.dirs", "/data"), ("broker.rack", "r1")])[1] == []


def test_broker_without_a_cleaner_is_said_to_keep_all_offsets():
    """Every broker has a topic that needs compaction, whatever the policy of the others."""
    wanted = [("log.dirs", "/data")]
    assert load_properties(wanted)[1] == []

    (warning,) = load_properties([*wanted, ("log.cleaner.enable", "false")])[1]
    assert warning.startswith("log.cleaner.enable=false: ") and "__consumer_offsets" in warning
