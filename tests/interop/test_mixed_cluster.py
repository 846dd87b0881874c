"""kbroker and Apache Kafka 2.7.2 in one cluster: either is the controller, and either leads."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator

import pytest
from interop.mixed import MixedCluster, leaders, read, texts, waited, write
from support.brokers.kafka_servers import Kafka27
from support.clients.writing import Writing

from kbroker.metastore import paths
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

KAFKA, KBROKER = 1, 2
NAMES = (f"t{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """One broker of each. The first is Kafka, so that it lays out the nodes."""
    with MixedCluster(tmp_path_factory.mktemp("cluster")) as started:
        started.kafka(KAFKA)
        started.kbroker(KBROKER)
        yield started


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


@pytest.fixture
def kafka(cluster: MixedCluster) -> Kafka27:
    member = cluster.members[KAFKA]
    assert isinstance(member, Kafka27)
    return member


@pytest.fixture
def kbroker(cluster: MixedCluster) -> Broker:
    member = cluster.members[KBROKER]
    assert isinstance(member, Broker)
    return member


@pytest.fixture
def topic() -> str:
    return next(NAMES)


@pytest.mark.slow
def test_kbroker_joins_a_cluster_that_kafka_controls(
    cluster: MixedCluster, kafka: Kafka27, kbroker: Broker, topic: str
) -> None:
    cluster.have_control(KAFKA)
    cluster.create(topic, {0: [KAFKA], 1: [KBROKER], 2: [KAFKA], 3: [KBROKER]})

    write(kafka.bootstrap, topic, texts(40, "a"), 4)
    registration = cluster.store.exists(f"/brokers/ids/{KBROKER}").czxid
    kbroker.kill(
        "controller", 0
    )  # Kafka's controller does not notice, and sends again what it must
    cluster.create(f"{topic}-later", {0: [KBROKER]})
    write(kbroker.bootstrap, topic, texts(40, "b"), 4)
    assert cluster.store.exists(f"/brokers/ids/{KBROKER}").czxid == registration
    assert [cluster.state(topic, number)["leader_epoch"] for number in range(4)] == [0] * 4

    expected = texts(40, "a") + texts(40, "b")
    assert read(kafka.bootstrap, topic, 80, 4) == expected
    assert read(kbroker.bootstrap, topic, 80, 4) == expected
    cluster.delete(topic)
    assert not cluster.log_path(KBROKER, topic).parent.exists()


@pytest.mark.slow
def test_kbroker_follows_a_partition_that_kafka_leads(
    cluster: MixedCluster, kafka: Kafka27, kbroker: Broker, topic: str
) -> None:
    """Its copy has the same bytes, also after its processes were killed and it was restarted; and
    what was acknowledged by both is read from it when Kafka is gone."""
    cluster.create(topic, {0: [KAFKA, KBROKER]}, min_insync_replicas="2", segment_bytes="4000")
    waited(lambda: cluster.isr(topic) == {KAFKA, KBROKER}, "kbroker is in sync")

    write(kafka.bootstrap, topic, texts(100, "a"), linger_ms=0, batch_size=200)
    for index in (0, 1):
        kbroker.kill("io", index)
    write(kafka.bootstrap, topic, texts(100, "b"), linger_ms=0, batch_size=200)
    kbroker.restart()
    waited(lambda: cluster.isr(topic) == {KAFKA, KBROKER}, "kbroker is in sync again")
    write(kafka.bootstrap, topic, texts(100, "c"), linger_ms=0, batch_size=200)

    cluster.assert_same_logs(topic)
    last = sorted(cluster.log_path(KBROKER, topic).parent.glob("*.log"))[-1]
    dumped = kafka.run("kafka.tools.DumpLogSegments", "--deep-iteration", "--files", str(last))
    assert "isvalid: true" in dumped and "isvalid: false" not in dumped

    kafka.stop()
    waited(lambda: cluster.leader(topic) == KBROKER, "kbroker leads")
    expected = [*texts(100, "a"), *texts(100, "b"), *texts(100, "c")]
    assert read(kbroker.bootstrap, topic, 300) == expected
    kafka.start()
    cluster.wait_ready()


def test_kafka_follows_a_partition_that_kbroker_leads(
    cluster: MixedCluster, kafka: Kafka27, kbroker: Broker, topic: str
) -> None:
    """Through deaths of the leader's processes; and what was acknowledged by both is read from
    Kafka when kbroker is gone."""
    cluster.create(topic, {0: [KBROKER, KAFKA]}, min_insync_replicas="2", segment_bytes="4000")
    waited(lambda: cluster.isr(topic) == {KAFKA, KBROKER}, "Kafka is in sync")

    write(kafka.bootstrap, topic, texts(100, "a"), linger_ms=0, batch_size=200)
    for kind, index in (("io", 0), ("network", 1), ("io", 1), ("network", 0)):
        kbroker.kill(kind, index)
    write(kafka.bootstrap, topic, texts(100, "b"), linger_ms=0, batch_size=200)
    assert kafka.verified_replicas(topic) == "max lag is 0"

    cluster.assert_same_logs(topic)
    kbroker.stop()
    waited(lambda: cluster.leader(topic) == KAFKA, "Kafka leads")
    assert read(kafka.bootstrap, topic, 200) == texts(100, "a") + texts(100, "b")
    kbroker.start()
    waited(lambda: cluster.isr(topic) == {KAFKA, KBROKER}, "kbroker is in sync again")
    write(kafka.bootstrap, topic, texts(100, "c"), linger_ms=0, batch_size=200)
    cluster.assert_same_logs(topic)


@pytest.mark.slow
def test_controllers_of_both_kinds_take_over_from_each_other_while_clients_continue(
    cluster: MixedCluster, kafka: Kafka27, kbroker: Broker, topic: str
) -> None:
    """Each reads what the other has written, and leads what it led before."""
    cluster.create(topic, {0: [KAFKA], 1: [KBROKER]})
    before = leaders(kbroker.bootstrap, topic)
    with Writing(cluster.bootstrap, topic, partitions=2) as writing:
        first = cluster.controller or KAFKA
        for number in (KAFKA + KBROKER - first, first):
            cluster.have_control(number)
            writing.wait_for_more(20)
    waited(lambda: leaders(kafka.bootstrap, topic) == before, "all lead what they led")
    found = read(kbroker.bootstrap, topic, len(writing.acknowledged), 2)
    assert found == sorted(writing.acknowledged)


@pytest.mark.slow
def test_kafka_joins_a_cluster_that_kbroker_controls(
    cluster: MixedCluster, kafka: Kafka27, kbroker: Broker, topic: str
) -> None:
    cluster.have_control(KBROKER)
    cluster.create(topic, {0: [KAFKA], 1: [KBROKER]})

    write(kafka.bootstrap, topic, texts(20, "a"), 2)
    write(kbroker.bootstrap, topic, texts(20, "b"), 2)

    expected = texts(20, "a") + texts(20, "b")
    assert read(kafka.bootstrap, topic, 40, 2) == expected
    assert read(kbroker.bootstrap, topic, 40, 2) == expected
    cluster.delete(topic)
    waited(lambda: not cluster.log_path(KAFKA, topic).parent.exists(), "Kafka has renamed its log")


def under_replicated(kafka: Kafka27, member: Broker) -> str:
    """What Kafka's tool says."""
    main, option = "kafka.admin.TopicCommand", "--under-replicated-partitions"
    return kafka.run(main, "--bootstrap-server", member.bootstrap, "--describe", option)


@pytest.mark.slow
def test_member_is_replaced_in_place_by_kbroker_and_back(
    cluster: MixedCluster, kafka: Kafka27, kbroker: Broker, topic: str
) -> None:
    """On the same directories, with the same file of settings."""
    cluster.create(topic, {0: [KAFKA, KBROKER]}, min_insync_replicas="2")
    waited(lambda: cluster.isr(topic) == {KAFKA, KBROKER}, "both are in sync")
    write(kafka.bootstrap, topic, texts(100, "a"))

    kafka.stop()
    assert f"Topic: {topic}" in under_replicated(kafka, kbroker)
    replacement = cluster.replace(KAFKA, kafka)
    waited(lambda: cluster.isr(topic) == {KAFKA, KBROKER}, "the replacement is in sync")
    assert f"Topic: {topic}" not in under_replicated(kafka, kbroker)
    write(replacement.bootstrap, topic, texts(100, "b"))
    assert read(replacement.bootstrap, topic, 200) == texts(100, "a") + texts(100, "b")
    cluster.assert_same_logs(topic)

    assert replacement.stop() == 0
    cluster.members[KAFKA] = kafka
    kafka.start()
    waited(lambda: cluster.isr(topic) == {KAFKA, KBROKER}, "Kafka is in sync")
    write(kbroker.bootstrap, topic, texts(100, "c"))
    cluster.assert_same_logs(topic)
    kbroker.stop()
    waited(lambda: cluster.leader(topic) == KAFKA, "Kafka leads")
    expected = [*texts(100, "a"), *texts(100, "b"), *texts(100, "c")]
    assert read(kafka.bootstrap, topic, 300) == expected
    kbroker.start()
    cluster.wait_ready()


@pytest.mark.slow
def test_replica_that_kafka_removes_while_the_broker_has_no_session_is_set_aside(
    cluster: MixedCluster, kbroker: Broker, topic: str
) -> None:
    """Kafka tells nobody of a replica on a broker that it takes for dead, then or later."""
    cluster.have_control(KAFKA)
    cluster.create(topic, {0: [KAFKA, KBROKER]})
    write(cluster.bootstrap, topic, texts(20))
    cluster.assert_same_logs(topic)
    registration = f"/brokers/ids/{KBROKER}"
    # The supervisor first: it would restart the other.
    pids = [kbroker.pid, kbroker.pids["controller-0"]]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        waited(lambda: cluster.store.exists(registration) is None, "its session has expired")
        node = paths.encode_reassignment({(topic, 0): [KAFKA]})
        cluster.store.create(paths.REASSIGN_PARTITIONS, node)
        waited(
            lambda: (
                cluster.document(f"/brokers/topics/{topic}")["partitions"] == {"0": [KAFKA]}
                and cluster.store.exists(paths.REASSIGN_PARTITIONS) is None
            ),
            "it is reassigned",
        )
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
    cluster.wait_ready()

    directory = cluster.log_dir(KBROKER)
    wait_until(lambda: list(directory.glob(f"{topic}-0.*-stray")), 120, "it is set aside")
    assert not (directory / f"{topic}-0").exists()
    assert f"other brokers have {topic}-0 now" in kbroker.log_text
    assert read(cluster.bootstrap, topic, 20) == texts(20)
