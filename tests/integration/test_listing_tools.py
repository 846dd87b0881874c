"""``kafka-groups``, ``kafka-client-metrics`` and ``kafka-replay-log-producer``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kbroker.cli.kafka import table
from kbroker.client import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kbroker.client.admin.topics import NewTopic
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

Run = Callable[..., tuple[int, list[str], str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(group_initial_rebalance_delay_ms=0, num_partitions=2) as started:
        yield started


@pytest.fixture
def admin(broker: Broker) -> Iterator[KafkaAdminClient]:
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as made:
        yield made


@pytest.fixture
def run(broker: Broker, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a tool -> (exit code, lines of stdout, stderr)."""

    def call(name: str, *words: str) -> tuple[int, list[str], str]:
        code = table.main([*words, "--bootstrap-server", broker.bootstrap], name)
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err

    return call


def test_groups_of_all_types_are_listed_and_filtered(run, broker, admin):
    admin.create_topics([NewTopic("t", 1)])
    admin.alter_group_offsets("simple", {("t", 0): 0})
    with KafkaConsumer(
        bootstrap_servers=broker.bootstrap, group_id="new", group_protocol="consumer"
    ) as member:
        member.subscribe(["t"])
        while not member.assignment():
            member.poll(0.1)
        code, lines, _ = run("kafka-groups", "--list")
        assert code == 0
        assert lines[0] == f"{'GROUP':<20} {'TYPE':<20} {'PROTOCOL':<20}"
        rows = sorted(line.split() for line in lines[1:])
        assert rows == [["new", "Consumer", "consumer"], ["simple", "Classic"]]
        for words, groups in (
            (("--consumer",), ["new", "simple"]),
            (("--share",), []),
            (("--protocol", "consumer"), ["new"]),
            (("--group-type", "classic"), ["simple"]),
            (("--group-type", "classic", "--protocol", "consumer"), []),
        ):
            _, lines, _ = run("kafka-groups", "--list", *words)
            assert sorted(line.split()[0] for line in lines[1:]) == groups


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "exactly one action: --list"),
        (("--list", "--group-type", "x"), "--group-type must be a valid group type"),
        (("--list", "--consumer", "--share"), "can't be used with option"),
    ],
    ids=str,
)
def test_wrong_words_of_groups_are_refused(run, words, why):
    code, lines, errors = run("kafka-groups", *words)
    assert (code, lines) == (1, [])
    assert why in errors


def test_subscriptions_to_client_metrics_are_managed(run):
    tool = "kafka-client-metrics"
    words = ("--interval", "1000", "--metrics", "a.,b", "--match", "client_id=x")
    code, lines, _ = run(tool, "--alter", "--name", "sub", *words)
    assert (code, lines) == (0, ["Altered client metrics config for sub."])
    assert run(tool, "--list")[1] == ["sub"]
    assert run(tool, "--describe", "--name", "sub")[1] == [
        "Client metrics configs for sub are:",
        "  interval.ms=1000",
        "  match=client_id=x",
        "  metrics=a.,b",
    ]
    run(tool, "--alter", "--name", "sub", "--match", "")
    assert "  match=" in run(tool, "--describe")[1]
    assert run(tool, "--delete", "--name", "sub")[1] == ["Deleted client metrics config for sub."]
    assert run(tool, "--describe", "--name", "sub")[1] == [
        "The client metric resource sub doesn't exist and doesn't have dynamic config."
    ]
    code, lines, _ = run(tool, "--alter", "--name", "sub", "--interval", "1")
    assert code == 1
    assert lines[0].startswith("Error while executing client metrics command : ")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--list", "--describe"), "exactly one action"),
        (("--list", "--name", "x"), "can't be used with option"),
        (("--alter", "--interval", "1"), "One of --name or --generate-name"),
        (("--alter", "--name", "x", "--interval", "soon"), "Invalid interval value"),
        (("--delete",), "name must be specified with --delete"),
    ],
    ids=str,
)
def test_wrong_words_of_client_metrics_are_refused(run, words, why):
    code, lines, errors = run("kafka-client-metrics", *words)
    assert (code, lines) == (1, [])
    assert why in errors


@pytest.mark.parametrize("more", [(), ("--threads", "2"), ("--sync",)], ids=str)
def test_keys_and_values_of_a_topic_are_replayed(broker, admin, capsys, more):
    name = f"from{len(more)}{''.join(more).strip('-')}"
    admin.create_topics([NewTopic(name, 2), NewTopic(f"{name}-to", 1)])
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for partition in range(2):
            values = [b"%d" % n for n in range(50)]
            keys = [b"k%d" % n for n in range(50)] if partition else None
            producer.send_many(name, values, keys, partition=partition)
    # Each thread ends after so many; with one thread these are all.
    count = "50" if "2" in more else "100"
    words = ("--inputtopic", name, "--outputtopic", f"{name}-to", "--messages", count, *more)
    words += ("--property", "acks=all")
    tool = "kafka-replay-log-producer"
    assert table.main([*words, "--broker-list", broker.bootstrap], tool) == 0
    assert f"Sent {count} messages" in capsys.readouterr().err
    with KafkaConsumer(bootstrap_servers=broker.bootstrap) as consumer:
        consumer.assign([(f"{name}-to", 0)])
        consumer.seek_to_beginning()
        found: list[tuple[bytes | None, bytes | None]] = []
        while len(found) < 100:
            found += [(record.key, record.value) for record in consumer.poll(1.0)]
    without = [(None, b"%d" % n) for n in range(50)]
    assert sorted(found, key=str) == sorted(
        without + [(b"k" + value, value) for _, value in without], key=str
    )


def test_replay_says_what_is_wrong(broker, capsys):
    tool = "kafka-replay-log-producer"
    words = ["--broker-list", broker.bootstrap, "--inputtopic", "t"]
    assert table.main(words, tool) == 1
    assert 'Missing required argument "[outputtopic]"' in capsys.readouterr().err
    words += ["--outputtopic", "o"]
    assert table.main([*words, "--threads", "0"], tool) == 1
    assert "--threads must be at least 1" in capsys.readouterr().err
    assert table.main([*words, "--property", "no.such=1", "--messages", "0"], tool) == 0
