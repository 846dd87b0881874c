"""``kafka-configs --zookeeper`` and ``kafka-acls`` with AclAuthorizer's properties write into
ZooKeeper themselves: before any broker runs, and whatever the brokers allow.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.brokers.zookeeper import path_of_its_own

from kbroker.cli.kafka import table
from kbroker.client.admin.topics import NewTopic, create_topics
from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.security import Security
from kbroker.client.errors import ClientError
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

Run = Callable[..., tuple[int, list[str], str]]
WARNING = [
    "Warning: --zookeeper is deprecated and will be removed in a future version of Kafka.",
    "Use --bootstrap-server instead to specify a broker to connect to.",
]
JAAS = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="broker" password="broker-secret";'
)


@pytest.fixture
def place() -> str:
    """A path in ZooKeeper that is not there yet."""
    return path_of_its_own()


@pytest.fixture
def configs(place: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """kafka-configs in a chroot of its own, which is not there yet."""
    where = ("--zookeeper", f"{place}/below")

    def run(*words: str) -> tuple[int, list[str], str]:
        code = table.main([*where, *words], "kafka-configs")
        captured = capsys.readouterr()
        lines = captured.out.splitlines()
        assert lines[:2] in (WARNING, [])
        return code, lines[2:], captured.err

    return run


def user(name: str) -> tuple[str, ...]:
    return ("--entity-type", "users", "--entity-name", name)


def test_brokers_that_log_in_by_scram_start_with_a_user_of_the_tool(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As docs/security.md begins such a cluster."""
    connect = place
    words = (
        "--zookeeper", connect, "--alter", "--add-config",
        "SCRAM-SHA-512=[password=broker-secret]", *user("broker"),
    )  # fmt: skip
    assert table.main(words, "kafka-configs") == 0
    acl = ("--authorizer-properties", f"zookeeper.connect={connect}")
    allowed = ("--allow-principal", "User:alice", "--operation", "Describe", "--topic", "orders")
    assert table.main([*acl, "--add", *allowed], "kafka-acls") == 0
    assert "principal=User:alice" in capsys.readouterr().out
    settings = {
        "zookeeper.connect": connect,
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": JAAS,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:broker",
        "offsets.topic.replication.factor": "1",
    }
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}

    def logged_in(name: str, password: str, address: str) -> Cluster:
        options = {**login, "sasl.username": name, "sasl.password": password}
        return Cluster(address, Security.from_options(options), deadline=20)

    with Broker(settings) as broker:
        address = f"127.0.0.1:{broker.port}"

        def created() -> bool:
            try:
                with logged_in("broker", "broker-secret", address) as cluster:
                    create_topics(cluster, [NewTopic("orders", 1)])
                    return "orders" in cluster.topics()
            except ClientError:
                return False

        wait_until(created, 60)
        # Whatever the brokers allow: this user of theirs is nobody yet.
        words = (
            "--zookeeper", connect, "--alter", "--add-config",
            "SCRAM-SHA-512=[password=alices]", *user("alice"),
        )  # fmt: skip
        assert table.main(words, "kafka-configs") == 0

        def sees() -> bool:
            try:
                with logged_in("alice", "alices", address) as cluster:
                    return "orders" in cluster.topics()
            except ClientError:
                return False

        wait_until(sees, 30, "alice has logged in, and sees the topic by her ACL")
        assert table.main([*acl, "--remove", "--force", "--topic", "orders"], "kafka-acls") == 0
        wait_until(lambda: not sees(), 30, "the broker has heard that the ACL is gone")


def test_entities_are_altered_and_described_in_the_words_of_27(configs: Run) -> None:
    both = "SCRAM-SHA-512=[iterations=5000,password=pw],producer_byte_rate=5"
    done = "Completed updating config for entity: "
    assert configs("--alter", "--add-config", both, *user("al ice")) == (
        0, [f"{done}user-principal 'al ice'."], ""
    )  # fmt: skip
    code, [line], _ = configs("--describe", "--entity-type", "users")
    assert (code, line.startswith("Configs for user-principal 'al ice' are SCRAM-SHA-512=salt=")) \
        == (0, True)  # fmt: skip
    assert line.endswith(",iterations=5000,producer_byte_rate=5")
    clients = ("--entity-type", "clients")
    rate = ("--alter", "--add-config", "consumer_byte_rate=7")
    assert configs(*rate, *clients, "--entity-default")[1] == [f"{done}default client-id."]
    of_bob = (*user("bob"), *clients, "--entity-name", "c")
    assert configs(*rate, *of_bob)[1] == [f"{done}user-principal 'bob', client-id 'c'."]
    assert configs("--describe", "--entity-type", "users", *clients)[1] == [
        "Configs for user-principal 'bob', client-id 'c' are consumer_byte_rate=7"
    ]
    everyone = ("--entity-type", "brokers", "--entity-default")
    threads = ("--alter", "--add-config", "log.cleaner.threads=2", *everyone)
    assert configs(*threads)[1] == [f"{done}default brokers."]
    assert configs("--alter", "--delete-config", "log.cleaner.threads", *everyone)[0] == 0
    assert configs("--describe", *everyone) == (0, ["Configs for default brokers are "], "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--delete-config", "producer_byte_rate", *user("a")), "Invalid config(s): producer_byte"),
        (("--add-config", "producer_byte_rate=x", *user("a")), "producer_byte_rate='x' is not a n"),
        (("--add-config", "foo=1", *user("a")), "Unknown Dynamic Configuration: Set(foo)."),
        (("--add-config", "SCRAM-SHA-512=[password=]", *user("a")), "SCRAM-SHA-512 is empty"),
        (("--add-config", "retention.ms=5", "--entity-type", "topics", "--entity-name", "t"),
         "Topic 't' does not exist."),
        (("--add-config", "listener.name.x.ssl.key.password=p", "--entity-type", "brokers",
          "--entity-name", "0"), "password.encoder.secret must be specified"),
        (("--add-config", "a=b", "--entity-type", "groups", "--entity-name", "g"),
         "must be one of topics,clients,users,brokers,ips with the --zookeeper argument"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_one_line(
    configs: Run, words: tuple[str, ...], said: str
) -> None:
    code, lines, errors = configs("--alter", *words)
    assert (code, lines) == (1, [])
    assert said in errors
    assert len(errors.splitlines()) == 1


def test_setting_that_is_not_set_cannot_be_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    """It is a slip of the pen, or was never set: what was wanted did not happen."""
    with Broker() as broker:
        with Cluster(broker.bootstrap) as cluster:
            create_topics(cluster, [NewTopic("t", 1)])

        def configs(*words: str) -> tuple[int, str]:
            code = table.main(
                ["--bootstrap-server", broker.bootstrap, "--alter", *words], "kafka-configs"
            )
            return code, capsys.readouterr().err

        kinds = {
            "--topic=t": "retention.ms",
            "--broker=0": "log.cleaner.threads",
            "--broker-defaults": "log.cleaner.threads",
            "--group=g": "consumer.session.timeout.ms",
            "--client-metrics=m": "interval.ms",
        }
        for entity, key in kinds.items():
            gone = (entity, "--delete-config", key)
            assert configs(*gone) == (1, f"Invalid config(s): {key}\n")
            value = "2" if key == "log.cleaner.threads" else "50000"
            assert configs(entity, "--add-config", f"{key}={value}") == (0, "")
            assert configs(*gone) == (0, "")
