"""The controller process: what it publishes, in which order, and what survives its death."""

import time
from pathlib import Path

import pytest
from support.clients.wire_client import WireClient
from support.controller.controller_harness import IO_0, IO_1, NETWORK, ControllerHarness, topic

from kbroker.errors import ErrorCode
from kbroker.hosting.slots import JOURNAL_NAME
from kbroker.ipc import calls
from kbroker.ipc.process_table import CONTROLLER
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def start(tmp_path):
    harnesses = []

    def make(peers=True, **settings):
        harness = ControllerHarness(tmp_path, **settings)
        harnesses.append(harness)
        return harness.start(peers)

    yield make
    for harness in harnesses:
        harness.close()


def create(harness, *topics, **args):
    return harness.call("create_topics", topics=list(topics), **args)


def errors(results):
    return [result["error"] for result in results]


def test_hello_brings_cluster_broker_and_topics(start):
    harness = start()
    image = harness.peers[NETWORK].image
    assert image.cluster_id == "test-cluster"
    assert image.controller_id == 0
    assert [e[:2] for e in image.brokers[0].endpoints] == [("PLAINTEXT", "")]
    assert image.topics == {}
    create(harness, topic("t", 2, retention_ms="5"))
    image = harness.join(NETWORK).image
    assert image.topics["t"].config == {"retention.ms": "5"}
    assert len(image.topics["t"].partitions) == 2


def test_creation_reaches_io_workers_before_the_network_and_then_the_caller(start):
    harness = start()
    (result,) = create(harness, topic("t", 3))
    assert result["error"] == 0
    assert (result["partitions"], result["replication_factor"]) == (3, 1)
    assert {address for address, _ in harness.order[:2]} == {IO_0, IO_1}  # both at once
    assert harness.order[2][0] == NETWORK
    seen = harness.peers[NETWORK].image.topics["t"]
    assert seen.topic_id.hex() == result["topic_id"]
    assert sorted(p.slot for p in seen.partitions) == [0, 1, 2]
    assert {p.slot_incarnation for p in seen.partitions} == {1}


def test_topics_and_slots_survive_kill_9(start):
    harness = start()
    create(harness, topic("a", 3), topic("b", 2, segment_bytes="1000000"))
    before = harness.peers[NETWORK].image
    harness.kill()
    harness.start_controller()
    harness.await_ready()
    for peer in harness.peers.values():
        harness.turn_until(lambda peer=peer: peer.deltas and "snapshot" in peer.deltas[-1])
        assert peer.image.topics == before.topics
    create(harness, topic("c"))
    slots = [p.slot for t in harness.peers[IO_0].image.topics.values() for p in t.partitions]
    assert len(set(slots)) == 6


def test_topics_survive_a_restart_of_the_broker(start, tmp_path):
    harness = start()
    create(harness, topic("a", 3))
    before = harness.peers[NETWORK].image.topics["a"]
    assert harness.stop() == 0
    harness.close()
    after = start().peers[NETWORK].image.topics["a"]
    assert after.topic_id == before.topic_id
    assert len(after.partitions) == 3


def test_deletion_reaches_the_network_first_and_frees_slots(start):
    harness = start()
    create(harness, topic("t", 2))
    slots = {p.slot for p in harness.peers[NETWORK].image.topics["t"].partitions}
    harness.order.clear()
    (result,) = harness.call("delete_topics", topics=[{"name": "t"}])
    assert result["error"] == 0
    told = [address for address, _ in harness.order]
    assert (told[0], set(told[1:3]), set(told[3:5])) == (NETWORK, {IO_0, IO_1}, {IO_0, IO_1})
    assert told[5:] == []
    stopped = [replica for io in (IO_0, IO_1) for replica in harness.peers[io].stopped]
    assert {(one.topic, one.slot, one.slot_incarnation) for one in stopped} == {
        ("t", slot, 1) for slot in slots
    }
    assert all("t" not in peer.image.topics for peer in harness.peers.values())
    create(harness, topic("u", 2))
    again = harness.peers[NETWORK].image.topics["u"].partitions
    assert {p.slot for p in again} == slots
    assert {p.slot_incarnation for p in again} == {2}


def test_deletion_by_id(start):
    harness = start()
    (made,) = create(harness, topic("t"))
    (result,) = harness.call("delete_topics", topics=[{"topic_id": made["topic_id"]}])
    assert (result["error"], result["name"]) == (0, "t")
    (result,) = harness.call("delete_topics", topics=[{"topic_id": made["topic_id"]}])
    assert result["error"] == ErrorCode.UNKNOWN_TOPIC_ID


def test_deletion_is_finished_after_kill_9(start):
    harness = start()
    create(harness, topic("t", 2))
    harness.peers[IO_1].refuses = True
    harness.begin("delete_topics", topics=[{"name": "t"}])
    harness.turn_until(lambda: harness.peers[IO_0].stopped)
    harness.kill()
    harness.start_controller()
    told = harness.peers[IO_0].deltas
    harness.turn_until(lambda: any("snapshot" in d for d in told))
    assert any("t" in d["topics"] for d in told if "snapshot" in d)  # it has to drop it again
    assert "t" not in harness.peers[NETWORK].image.topics
    harness.peers[IO_1].refuses = False
    harness.join(IO_1)
    harness.turn_until(lambda: all("t" not in harness.peers[a].image.topics for a in (IO_0, IO_1)))
    deadline = time.monotonic() + 30
    while errors(create(harness, topic("t"))) == [ErrorCode.TOPIC_ALREADY_EXISTS]:
        assert time.monotonic() < deadline
    harness.kill()
    harness.start_controller()
    harness.await_ready()
    assert "t" in harness.join(NETWORK).image.topics


def test_worker_that_restarts_during_a_deletion_drops_the_topic_too(start):
    harness = start()
    create(harness, topic("t", 2))
    harness.peers[IO_1].refuses = True
    deletion = harness.begin("delete_topics", topics=[{"name": "t"}])
    harness.turn_until(lambda: harness.peers[IO_0].stopped)
    assert "t" in harness.join(IO_0).welcome["topics"]  # for it has a directory of it
    assert not harness.peers[IO_0].stopped
    harness.peers[IO_1].refuses = False
    harness.turn_until(lambda: deletion.done)
    assert harness.peers[IO_0].stopped
    assert [result.error for result in deletion.value] == [0]
    assert all("t" not in harness.peers[a].image.topics for a in (IO_0, IO_1))


def test_unfinished_creation_is_reported_at_the_client_timeout(start):
    harness = start()
    harness.peers[IO_0].rpc.serve(calls.IMAGE, lambda sender, change: never())
    begun = time.monotonic()
    assert errors(create(harness, topic("t"), within_ms=150)) == [ErrorCode.REQUEST_TIMED_OUT]
    assert time.monotonic() - begun < 20, "without the client's there is a limit of 30 s"


async def never():
    from kbroker.ipc.rpc import Pending

    await Pending()


def test_automatic_creation_of_an_existing_topic_is_a_success(start):
    harness = start(num_partitions=3)
    (made,) = create(harness, {"name": "t"}, auto=True)
    assert (made["error"], made["partitions"]) == (0, 3)
    (again,) = create(harness, {"name": "t"}, auto=True)
    assert again == made
    assert errors(create(harness, topic("t"))) == [ErrorCode.TOPIC_ALREADY_EXISTS]


def test_partitions_are_added_with_slots(start):
    harness = start()
    create(harness, topic("t"))
    wanted = {"name": "t", "count": 4, "assignments": None}
    assert errors(harness.call("create_partitions", topics=[wanted], validate_only=True)) == [0]
    assert len(harness.peers[NETWORK].image.topics["t"].partitions) == 1
    assert errors(harness.call("create_partitions", topics=[wanted])) == [0]
    for _ in range(2):
        partitions = harness.peers[NETWORK].image.topics["t"].partitions
        assert sorted(p.slot for p in partitions) == [0, 1, 2, 3]
        harness.kill()
        harness.start_controller()
        harness.await_ready()
        harness.join(NETWORK)


def test_table_that_is_full_refuses_with_a_remedy(start):
    harness = start(slots=4)
    (refused,) = create(harness, topic("t", 5))
    assert refused["error"] == ErrorCode.INVALID_PARTITIONS
    assert "partition.table.slots" in refused["message"]
    assert errors(create(harness, topic("t", 4))) == [0]
    assert errors(create(harness, topic("u"), validate_only=True)) == [ErrorCode.INVALID_PARTITIONS]


def test_producer_id_blocks_never_overlap_even_after_kill_9(start):
    harness = start()
    firsts = [harness.call("allocate_producer_ids")["first"] for _ in range(3)]
    harness.kill()
    harness.start_controller()
    harness.await_ready()
    firsts.append(harness.call("allocate_producer_ids")["first"])
    assert firsts == [0, 1000, 2000, 3000]


def test_deletion_can_be_switched_off(start):
    harness = start(delete_topic_enable="false")
    create(harness, topic("t"))
    results = harness.call("delete_topics", topics=[{"name": "t"}])
    assert errors(results) == [ErrorCode.TOPIC_DELETION_DISABLED]
    assert "t" in harness.join(NETWORK).image.topics


def test_topic_of_1000_partitions_is_made_in_no_time(start):
    harness = start()
    begun = time.monotonic()
    assert errors(create(harness, topic("t", 1000))) == [0]
    assert time.monotonic() - begun < 10  # tenths of a second; quadratic cost would be more


def test_store_of_another_cluster_is_refused(start, tmp_path):
    harness = start()
    harness.stop()
    harness.close()
    other = ControllerHarness(tmp_path)
    other.context.cluster_id = "another"
    other.start_controller()
    import os

    assert os.waitstatus_to_exitcode(os.waitpid(other.pid, 0)[1]) == 3
    other.pid = 0
    assert not other.table.is_ready(CONTROLLER)


def test_lost_journal_of_slots_stops_the_broker():
    """A controller process that assigned them again had two io workers write to one log."""
    with Broker(worker_restart_backoff_ms=1) as broker:
        with WireClient((broker.host, broker.port)) as client:
            client.create_topic("t")
        (journal,) = Path(broker.config["runtime.dir"]).glob(f"kbroker-*/{JOURNAL_NAME}")
        journal.unlink()

        broker.kill("controller", 0)
        wait_until(lambda: not broker.running)

        assert broker.stop() == 3
        assert f"{JOURNAL_NAME} was removed while the broker was running" in broker.log_text
        broker.start()
        with WireClient((broker.host, broker.port)) as client:
            assert client.metadata("t").topics[0].error_code == 0
