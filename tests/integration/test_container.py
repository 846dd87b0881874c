"""The image of config/Containerfile as podman runs it: names of settings, health, stops, refusals;
and testcontainers' Kafka modules, which start it as they start Kafka's images.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.containers import USER, Podman, free_port, podman_missing
from support.drivers.java import CACHE, JAVAC_OPTIONS, JVM_OPTIONS, SOURCES, java_missing

from kbroker.config.loader import BrokerConfig
from kbroker.testing import wait_until
from perf.kafka_distribution import maven_environment
from perf.maven import run_maven

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(podman_missing()), reason=podman_missing()),
]

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
VOLUME = "/var/lib/kbroker"
ALLOWED_S = 60
IDLE_STOP_S = 2
# What testcontainers' Kafka modules take for an image of Kafka; --with-kraft wants a version.
TESTED_TAG = "localhost/kbroker:7.6.0"


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    one = Podman(tmp_path_factory.mktemp("podman"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def image(podman: Podman) -> str:
    return podman.image()


def test_image_has_no_root_a_health_check_and_a_signal_to_stop(podman: Podman, image: str) -> None:
    config = podman.inspect(image, "image")["Config"]

    assert isinstance(config, dict)
    assert config["User"] == f"{USER}:{USER}"
    assert config["StopSignal"] in ("SIGTERM", "15")
    assert [*config["Volumes"]] == [VOLUME]
    check = podman.inspect(image, "image")["Healthcheck"]
    assert isinstance(check, dict)
    assert check["Test"] == ["CMD", "kbroker", "health"]


def test_settings_have_kafkas_names_and_clients_reach_the_broker(
    podman: Podman, image: str
) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    port = free_port()
    options = ["--publish", f"127.0.0.1:{port}:9092"]
    for name, text in (
        ("KAFKA_NUM_PARTITIONS", "3"),
        ("KAFKA_ADVERTISED_LISTENERS", f"PLAINTEXT://127.0.0.1:{port}"),
        ("CLUSTER_ID", CLUSTER_ID),
    ):
        options += ["--env", f"{name}={text}"]
    with podman.started(image, *options) as name:
        wait_until(lambda: podman.is_healthy(name), what="the health check of the image")
        settings = {"bootstrap.servers": f"127.0.0.1:{port}"}

        producer = confluent_kafka.Producer(settings)
        producer.produce("greetings", b"hello")
        assert producer.flush(30) == 0
        consumer = confluent_kafka.Consumer(
            {**settings, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["greetings"])
        message = wait_until(lambda: consumer.poll(1))
        metadata = consumer.list_topics("greetings", 30)
        consumer.close()

        assert message.value() == b"hello"
        assert len(metadata.topics["greetings"].partitions) == 3
        tool = "/opt/kafka/bin/kafka-cluster.sh"
        said = podman.must("exec", name, tool, "cluster-id", "--bootstrap-server", "localhost:9092")
        assert CLUSTER_ID in said


def test_idle_broker_stops_in_order_within_two_seconds(podman: Podman, image: str) -> None:
    """podman kills what does not; a machine that stalls has two more chances."""
    found = []
    for _ in range(3):
        with podman.started(image) as name:
            wait_until(lambda one=name: podman.is_healthy(one))
            found.append(podman.stop(name, IDLE_STOP_S))
        if found[-1][0] == 0:
            break
    print("idle stop: " + ", ".join(f"exit code {code} after {s:.2f} s" for code, s in found))

    assert found[-1][0] == 0
    assert BrokerConfig({})["shutdown.timeout.ms"] / 1000 < ALLOWED_S


def test_volume_keeps_topics_over_a_restart(podman: Podman, image: str, tmp_path: Path) -> None:
    os.chown(tmp_path, USER, USER)
    topics = "/opt/kafka/bin/kafka-topics.sh", "--bootstrap-server", "localhost:9092"
    with podman.started(image, "--volume", f"{tmp_path}:{VOLUME}") as name:
        wait_until(lambda: podman.is_healthy(name))
        podman.must("exec", name, *topics, "--create", "--topic", "kept")
        assert podman.stop(name, ALLOWED_S)[0] == 0
    with podman.started(image, "--volume", f"{tmp_path}:{VOLUME}") as name:
        wait_until(lambda: podman.is_healthy(name))
        assert "kept" in podman.must("exec", name, *topics, "--list").split()


LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \S+ (INFO|WARNING|ERROR) ")
REFUSALS = {
    "volume of another user": (["--volume", "{roots}:" + VOLUME], VOLUME),
    "read-only volume": (["--volume", "{users}:" + VOLUME + ":ro"], VOLUME),
    "address of another machine": (["--env", "KAFKA_LISTENERS=PLAINTEXT://192.0.2.1:9092"],
                                   "192.0.2.1"),
    "listener without protocol": (["--env", "KAFKA_LISTENERS=FOO://:9092"], "FOO"),
    "advertised to nobody": (["--env", "KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://0.0.0.0:9092"],
                             "0.0.0.0"),
    "no id of a cluster": (["--env", "CLUSTER_ID=xx"], "CLUSTER_ID=xx"),
    "no number": (["--env", "KAFKA_NUM_PARTITIONS=three"], "num.partitions=three"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSALS)
def test_what_cannot_be_used_is_refused_in_one_line(
    podman: Podman, image: str, tmp_path: Path, what: str
) -> None:
    roots, users = tmp_path / "roots", tmp_path / "users"
    roots.mkdir(mode=0o700)
    users.mkdir(mode=0o700)
    os.chown(users, USER, USER)
    options, said = REFUSALS[what]
    words = [word.format(roots=roots, users=users) for word in options]

    with podman.started(image, *words) as name:
        code = podman.must("wait", name).strip().splitlines()[-1]
        lines = podman.must("logs", name).strip().splitlines()

    assert code == "2", lines
    assert [line for line in lines if not LOG_LINE.match(line)] == lines[-1:]
    assert said in lines[-1]


PYTHON_MODULE = """
import sys
from confluent_kafka import Consumer, Producer
from testcontainers.kafka import KafkaContainer

for with_kraft in (False, True):
    one = KafkaContainer(image=sys.argv[1])
    with one.with_kraft() if with_kraft else one as container:
        settings = {"bootstrap.servers": container.get_bootstrap_server()}
        producer = Producer(settings)
        producer.produce("t", b"hello")
        assert producer.flush(30) == 0
        consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        message = consumer.poll(30)
        print("kraft" if with_kraft else "zookeeper", message.value().decode())
        consumer.close()
"""


def of_testcontainers(podman: Podman, image: str) -> dict[str, str]:
    """The environment for a program that uses them, and their tag for the image."""
    podman.must("tag", image, TESTED_TAG)
    return {
        **os.environ,
        "DOCKER_HOST": podman.serve(),
        "TESTCONTAINERS_RYUK_DISABLED": "true",
        "TESTCONTAINERS_CHECKS_DISABLE": "true",
        "TESTCONTAINERS_CONNECTION_MODE": "docker_host",
        "TESTCONTAINERS_HOST_OVERRIDE": "localhost",
    }


def ran(command: list[str], environment: dict[str, str]) -> list[str]:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout.splitlines()


def test_testcontainers_of_python_start_it(podman: Podman, image: str) -> None:
    pytest.importorskip("confluent_kafka")
    pytest.importorskip(
        "testcontainers.kafka", reason="needs testcontainers (pip install testcontainers)"
    )
    environment = of_testcontainers(podman, image)

    said = ran([sys.executable, "-c", PYTHON_MODULE, TESTED_TAG], environment)

    assert said == ["zookeeper hello", "kraft hello"]


@pytest.mark.skipif(bool(java_missing()), reason=java_missing())
def test_testcontainers_of_java_start_it(podman: Podman, image: str) -> None:
    """Each of its three modules: Apache's image, Confluent's, and Confluent's with ZooKeeper."""
    sources, home = SOURCES / "containers", CACHE / "testcontainers"
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "complete").exists():
        command = [
            "mvn",
            "-q",
            "-B",
            "-f",
            str(sources / "pom.xml"),
            "dependency:copy-dependencies",
        ]
        command += [f"-DoutputDirectory={home / 'lib'}"]
        run_maven("testcontainers", command, maven_environment())
        (home / "complete").touch()
    program = sources / "Containers.java"
    classes = str(home / "classes")
    ran(
        ["javac", *JAVAC_OPTIONS, "-d", classes, "-cp", f"{home}/lib/*", str(program)],
        {**os.environ},
    )
    environment = of_testcontainers(podman, image)

    path = f"{home}/lib/*:{classes}"
    said = ran(["java", *JVM_OPTIONS, "-cp", path, "Containers", TESTED_TAG], environment)

    assert said == ["apache hello", "confluent hello", "zookeeper hello"]
