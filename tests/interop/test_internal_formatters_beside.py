"""Records of internal topics, printed by ``kafka-console-consumer`` and by Kafka's own."""

from __future__ import annotations

from interop.beside import BESIDE, Beside

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.testing import Broker

pytestmark = BESIDE

CONSUMER = "kafka-console-consumer", "org.apache.kafka.tools.consumer.ConsoleConsumer"
FORMATTERS = "org.apache.kafka.tools.consumer."


def test_records_of_groups_and_transactions_print_alike() -> None:
    settings = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
    with Broker(**settings) as broker:
        bootstrap = {"bootstrap_servers": broker.bootstrap}
        with KafkaProducer(transactional_id="pays", **bootstrap) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("orders", b"v")
            producer.commit_transaction()
        for protocol in ("classic", "consumer"):
            with KafkaConsumer(
                group_id=protocol,
                group_protocol=protocol,
                auto_offset_reset="earliest",
                **bootstrap,
            ) as consumer:
                consumer.subscribe(["orders"])
                while not consumer.poll(1.0):
                    pass
                consumer.commit_sync()
        both = Beside(broker.bootstrap)
        words = ("--partition", "0", "--from-beginning", "--timeout-ms", "3000")

        def same(topic: str, formatter: str) -> str:
            where = ("--topic", topic, "--formatter", f"{FORMATTERS}{formatter}")
            return both.same(*CONSUMER, *where, *words).stdout

        assert '"commitTimestamp":' in same("__consumer_offsets", "OffsetsMessageFormatter")
        assert '"protocolType":' in same("__consumer_offsets", "GroupMetadataMessageFormatter")
        same("__transaction_state", "TransactionLogMessageFormatter")
        both.close()
