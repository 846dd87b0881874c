"""Configs of topics and brokers: changed by request and by SIGHUP, published and stored."""

import os
import signal
from itertools import count
from pathlib import Path

import pytest
from support.controller.controller_harness import IO_0, NETWORK, ControllerHarness, topic

from kbroker.cluster.settings import effective_config
from kbroker.config.dynamic import APPEND, DELETE, SET, SUBTRACT
from kbroker.config.group_config import HEARTBEAT_INTERVAL_MS as HEARTBEAT
from kbroker.config.group_config import SESSION_TIMEOUT_MS as SESSION
from kbroker.controller.configs.config_admin import BROKER, GROUP, TOPIC
from kbroker.errors import ErrorCode

pytestmark = pytest.mark.integration


# Of groups that nobody has joined.
NAMES = ["g", "a/b", ".", "..", "größe", " ", "%2E", "x" * 5000]
SIZES = count(2000)


@pytest.fixture
def harness(tmp_path):
    harness = started(tmp_path)
    yield harness
    harness.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """For tests whose changes are refused or undone; no process of it ends."""
    harness = started(tmp_path_factory.mktemp("shared"))
    harness.call("create_topics", topics=[topic("u")])
    yield harness
    harness.close()


def started(directory):
    """With a topic that has settings of its own."""
    harness = ControllerHarness(directory).start()
    harness.call("create_topics", topics=[topic("t", retention_ms="5", segment_bytes="1000000")])
    return harness


def alter(harness, *resources, **args):
    return outcome(harness.call("alter_configs", resources=list(resources), **args))


def change(harness, *resources, **args):
    results = harness.call("incremental_alter_configs", resources=list(resources), **args)
    return outcome(results)


def outcome(results):
    return [(result["error"], result["message"]) for result in results]


def of_topic(name, *configs):
    return {"type": TOPIC, "name": name, "configs": [list(entry) for entry in configs]}


def of_broker(name, *configs):
    return {"type": BROKER, "name": name, "configs": [list(entry) for entry in configs]}


def of_group(name, *configs):
    return {"type": GROUP, "name": name, "configs": [list(entry) for entry in configs]}


def config_of(harness, name="t"):
    return harness.peers[NETWORK].image.topics[name].config


def restart(harness):
    harness.kill()
    harness.start_controller()
    harness.await_ready()
    harness.join(NETWORK)


def test_alter_replaces_all_settings_of_a_topic(harness):
    assert alter(harness, of_topic("t", ("cleanup.policy", "compact"))) == [(0, None)]
    assert config_of(harness) == {"cleanup.policy": "compact"}
    assert harness.peers[IO_0].image.topics["t"].config == {"cleanup.policy": "compact"}
    restart(harness)
    assert config_of(harness) == {"cleanup.policy": "compact"}


def test_incremental_changes_single_settings(harness):
    changes = of_topic(
        "t",
        ("retention.ms", DELETE, None),
        ("segment.ms", SET, "60000"),
        ("cleanup.policy", APPEND, "compact"),
    )
    assert change(harness, changes) == [(0, None)]
    assert config_of(harness) == {
        "segment.bytes": "1000000", "segment.ms": "60000", "cleanup.policy": "delete,compact"
    }  # fmt: skip
    assert change(harness, of_topic("t", ("cleanup.policy", SUBTRACT, "delete"))) == [(0, None)]
    assert config_of(harness)["cleanup.policy"] == "compact"
    restart(harness)
    assert config_of(harness)["cleanup.policy"] == "compact"


def test_groups_may_have_settings_before_they_are_there(harness):
    for name in NAMES:
        assert change(harness, of_group(name, (SESSION, SET, "50000"))) == [(0, None)]
    for address in (IO_0, NETWORK):
        image = harness.peers[address].image
        assert image.group_config == {name: {SESSION: "50000"} for name in NAMES}
    for name in NAMES:
        assert alter(harness, of_group(name, (HEARTBEAT, "6000"))) == [(0, None)]
    restart(harness)
    left = {name: {HEARTBEAT: "6000"} for name in NAMES}
    assert harness.peers[NETWORK].image.group_config == left
    for name in NAMES:
        assert change(harness, of_group(name, (HEARTBEAT, DELETE, None))) == [(0, None)]
        del left[name]
        assert harness.peers[NETWORK].image.group_config == left
    restart(harness)
    assert harness.peers[NETWORK].image.group_config == {}


def test_group_is_not_changed_when_it_is_only_asked_whether_it_could(shared):
    changes = of_group("asked", (SESSION, SET, "50000"))
    assert change(shared, changes, validate_only=True) == [(0, None)]
    assert shared.peers[NETWORK].image.group_config == {}


@pytest.mark.parametrize(
    ("resource", "code", "words"),
    [
        (of_topic("t", ("retention.ms", SET, "soon")), ErrorCode.INVALID_CONFIG, "retention.ms"),
        (of_topic("t", ("retention.mss", SET, "5")), ErrorCode.INVALID_CONFIG, "did you mean"),
        (of_topic("t", ("retention.ms", APPEND, "5")), ErrorCode.INVALID_CONFIG, "list"),
        (of_topic("t", ("retention.ms", SET, None)), ErrorCode.INVALID_REQUEST, "Null"),
        (of_topic("t", ("retention.ms", 9, "5")), ErrorCode.INVALID_CONFIG, "operation"),
        (of_topic("t", ("a", SET, "1"), ("a", SET, "2")), ErrorCode.INVALID_REQUEST, "once"),
        (of_topic("x", ("a", SET, "1")), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "'x'"),
        (of_broker("7", ("num.partitions", SET, "5")), ErrorCode.INVALID_REQUEST, "'7'"),
        # As Apache Kafka 3.9.1 answered these.
        (of_broker("", ("broker.id", SET, "5")), ErrorCode.INVALID_REQUEST, "restart"),
        (of_broker("0", ("log.dirs", SET, "/x")), ErrorCode.INVALID_REQUEST, "restart"),
        (of_broker("", ("log.retention.ms", SET, "soon")), ErrorCode.INVALID_REQUEST, "64 bits"),
        (of_broker("0", ("log.cleanup.policy", APPEND, "x")), ErrorCode.INVALID_REQUEST, "any of"),
        (of_broker("0", ("num.io.threads", 9, "3")), ErrorCode.INVALID_REQUEST, ""),
        (of_broker("0", ("num.io.threads", APPEND, "3")), ErrorCode.INVALID_CONFIG, "list"),
        (of_broker("0", ("ssl.key.password", SUBTRACT, "x")), ErrorCode.INVALID_CONFIG, "(hidden)"),
        (
            of_group("", (SESSION, SET, "50000")),
            ErrorCode.INVALID_REQUEST,
            "default group settings",
        ),
        (of_group("g", (SESSION, SET, "44999")), ErrorCode.INVALID_CONFIG, "from 45000"),
        (of_group("g", (SESSION, SET, "60001")), ErrorCode.INVALID_CONFIG, "to 60000"),
        (of_group("g", (HEARTBEAT, SET, "4999")), ErrorCode.INVALID_CONFIG, "from 5000"),
        (of_group("g", (HEARTBEAT, SET, "15001")), ErrorCode.INVALID_CONFIG, "to 15000"),
        (of_group("g", (HEARTBEAT, SET, "often")), ErrorCode.INVALID_CONFIG, HEARTBEAT),
        (of_group("g", (SESSION, SET, None)), ErrorCode.INVALID_REQUEST, "Null"),
        (
            of_group("g", ("retention.ms", SET, "1")),
            ErrorCode.INVALID_CONFIG,
            "Unknown group config name: retention.ms",
        ),
        (of_group("g", (SESSION, APPEND, "1")), ErrorCode.INVALID_CONFIG, "list"),
        ({"type": 8, "name": "0", "configs": []}, ErrorCode.INVALID_REQUEST, "broker logger"),
    ],
)
def test_refused_change_leaves_neighbours_alone(shared, resource, code, words):
    size = str(next(SIZES))
    good = of_topic("u" if resource["name"] == "t" else "t", ("max.message.bytes", SET, size))
    before = dict(config_of(shared))
    refused, accepted = change(shared, resource, good)
    assert refused[0] == code
    assert words in refused[1]
    assert accepted == (0, None)
    assert config_of(shared, good["name"])["max.message.bytes"] == size
    if resource["name"] == "t":
        assert config_of(shared) == before


def test_replaced_settings_of_a_broker_that_are_not_valid_are_an_invalid_request(shared):
    """AlterConfigs behaves like IncrementalAlterConfigs, and like Apache Kafka 3.9.1."""
    refused, of_a_topic = alter(
        shared,
        of_broker("0", ("log.retention.ms", "soon")),
        of_topic("t", ("retention.ms", "soon")),
    )
    assert refused[0] == ErrorCode.INVALID_REQUEST
    assert of_a_topic[0] == ErrorCode.INVALID_CONFIG


def test_resource_named_twice_is_refused(shared):
    twice = of_topic("t", ("retention.ms", SET, "7"))
    assert [code for code, _ in change(shared, twice, twice)] == [ErrorCode.INVALID_REQUEST] * 2
    assert config_of(shared)["retention.ms"] == "5"


def test_validate_only_changes_nothing(shared):
    wanted = of_topic("t", ("retention.ms", SET, "7"))
    assert change(shared, wanted, validate_only=True) == [(0, None)]
    assert alter(shared, of_topic("t"), validate_only=True) == [(0, None)]
    assert config_of(shared)["retention.ms"] == "5"


def test_broker_settings_reach_everybody_and_count_for_new_topics(harness):
    assert change(harness, of_broker("", ("log.retention.ms", SET, "77000"))) == [(0, None)]
    assert change(harness, of_broker("0", ("log.retention.ms", SET, "88000"))) == [(0, None)]
    for _ in range(2):
        image = harness.peers[NETWORK].image
        assert image.broker_config["default"] == {"log.retention.ms": "77000"}
        assert image.broker_config["0"] == {"log.retention.ms": "88000"}
        config = effective_config(harness.context.config, image.broker_config, 0)
        assert config.topic_defaults["retention.ms"] == 88000
        restart(harness)
    assert alter(harness, of_broker("0")) == [(0, None)]
    layers = harness.peers[NETWORK].image.broker_config
    config = effective_config(harness.context.config, layers, 0)
    assert config.topic_defaults["retention.ms"] == 77000


def test_sighup_publishes_what_may_change_and_survives_kill_9(harness):
    Path(harness.config_path).write_text("log.retention.ms=1234\nnum.network.threads=7\n")
    os.kill(harness.pid, signal.SIGHUP)
    harness.turn_until(lambda: "file" in harness.peers[NETWORK].image.broker_config)
    for _ in range(2):
        layers = harness.peers[NETWORK].image.broker_config
        config = effective_config(harness.context.config, layers, 0)
        assert config.topic_defaults["retention.ms"] == 1234
        assert config["num.network.threads"] == harness.context.config["num.network.threads"]
        restart(harness)


def make_bad(path: Path) -> None:
    path.write_text("log.retention.ms=never\n")


def make_empty(path: Path) -> None:
    """As an editor, or a full disk, leaves it for a moment."""
    path.write_text("# log.retention.ms=1234\n")


def make_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def make_endless(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [make_bad, make_empty, make_fifo, make_endless])
def test_sighup_with_a_bad_file_changes_nothing(harness, make):
    """The controller read a FIFO, or a file without end, forever."""
    make(Path(harness.config_path))
    os.kill(harness.pid, signal.SIGHUP)
    assert change(harness, of_topic("t", ("retention.ms", SET, "6"))) == [(0, None)]
    assert "file" not in harness.join(NETWORK).image.broker_config
