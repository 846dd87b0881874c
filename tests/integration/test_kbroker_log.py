"""``kbroker-log`` on the data of a real broker: no errors before and after."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.running.grids import some_of
from support.storage.log_files import run, run_json

from kbroker.testing import Broker

pytestmark = pytest.mark.integration


def produce_and_commit(broker: Broker) -> None:
    """Transactions, every third aborted, and a group's committed offset."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "mine"})
    producer.init_transactions(30)
    for number in range(30):
        producer.begin_transaction()
        for value in range(10):
            producer.produce("orders", b"v" * 100, key=b"%d" % value)
        producer.flush()
        end = producer.abort_transaction if number % 3 == 0 else producer.commit_transaction
        end(30)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    try:
        consumer.commit(offsets=[TopicPartition("orders", 0, 42)], asynchronous=False)
    finally:
        consumer.close()


@pytest.mark.parametrize("clean", some_of([True, False], [False]))
@pytest.mark.slow
def test_kbroker_log_on_a_stopped_broker_finds_nothing_wrong(clean):
    with Broker(log_segment_bytes=16384, log_index_interval_bytes=1024) as broker:
        produce_and_commit(broker)
        wanted = {path.name: path.stat().st_mtime_ns for path in broker.data_dir.rglob("*.index")}
        assert run("rebuild", broker.data_dir)[0] == 2
        found = {path.name: path.stat().st_mtime_ns for path in broker.data_dir.rglob("*.index")}
        assert found == wanted
        broker.stop() if clean else broker.kill_all()

        code, lines = run_json("verify", broker.data_dir)
        assert code == 0, [line for line in lines if line["level"] == "damage"]

        code, text = run("rebuild", broker.data_dir)
        assert code == 0, text
        assert run("verify", broker.data_dir)[0] == 0

        (commit,) = [
            line
            for path in broker.data_dir.glob("__consumer_offsets-*")
            for line in run_json("dump", "--offsets-decoder", path)[1]
            if line["type"] == "record" and line["key"]["type"] == "OffsetCommitKey"
        ]
        assert (commit["key"]["group"], commit["payload"]["offset"]) == ("readers", 42)

        broker.start()
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "after",
                "auto.offset.reset": "earliest",
            }
        )
        try:
            consumer.subscribe(["orders"])
            assert len(consumer.consume(200, 30)) == 200
        finally:
            consumer.close()
