"""The clients of 0.8 on a broker: what they acknowledge is there, over restarts, too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.security.secured import PASSWORDS, Site, address_of

from kbroker.client.errors import RejectedError
from kbroker.errors import ErrorCode
from kbroker.legacy import (
    CallbackHandler,
    FailedToSendMessage,
    FetchRequestBuilder,
    KeyedMessage,
    MessageSet,
)
from kbroker.legacy.message_set import Message
from kbroker.legacy.offset_channel import OffsetChannel
from kbroker.legacy.old_producer import Producer
from kbroker.legacy.simple_consumer import SimpleConsumer
from kbroker.legacy.sync_producer import SyncProducer
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

SETTINGS = {"num.partitions": 3, "offsets.topic.num.partitions": 2, "message.max.bytes": 10_000}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture
def consumer(broker: Broker) -> Iterator[SimpleConsumer]:
    with SimpleConsumer("127.0.0.1", broker.port) as made:
        yield made


def payloads(consumer: SimpleConsumer, topic: str) -> dict[int, list[bytes | None]]:
    builder = FetchRequestBuilder().min_bytes(1).max_wait(100)
    for partition in range(3):
        builder.add_fetch(topic, partition, 0, 1 << 20)
    response = consumer.fetch(builder.build())
    response.raise_for_error()
    return {
        partition: [message.payload for message, _ in response.message_set(topic, partition)]
        for partition in range(3)
    }


def created(broker: Broker, topic: str) -> None:
    with SimpleConsumer("127.0.0.1", broker.port) as consumer:
        wait_until(lambda: not consumer.topic_metadata([topic])[0].error_code, 30, topic)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
def test_messages_of_a_key_stay_together_and_in_order(broker, consumer, codec):
    topic = f"keyed-{codec}"
    with Producer(
        metadata_broker_list=broker.bootstrap,
        request_required_acks=-1,
        compression_codec=codec,
        partitioner_class=lambda key, count: key[0] % count,
        key_serializer_class=lambda key: key,
    ) as producer:
        for start in range(0, 60, 20):
            producer.send(
                [KeyedMessage(topic, bytes([n % 3]), b"%d" % n) for n in range(start, start + 20)]
            )

    assert payloads(consumer, topic) == {
        partition: [b"%d" % n for n in range(60) if n % 3 == partition] for partition in range(3)
    }


def test_queue_is_sent_while_the_broker_restarts_and_nothing_is_lost():
    """Without idempotence a message may be there twice: its acknowledgement was lost."""
    last = threading.Event()

    class Watching(CallbackHandler):
        def before_sending_data(self, items):
            last.set()
            return items

    with Broker(SETTINGS) as broker:
        created(broker, "kept")
        settings = {
            "metadata.broker.list": broker.bootstrap,
            "producer.type": "async",
            "request.required.acks": 1,
            "batch.num.messages": 50,
            "queue.buffering.max.messages": 200,
            "message.send.max.retries": 500,
            "retry.backoff.ms": 50,
            "callback.handler": Watching(),
        }
        with Producer(settings) as producer, SimpleConsumer("127.0.0.1", broker.port) as consumer:
            for number in range(1000):
                if number == 500:
                    assert last.wait(30)
                    broker.restart()
                producer.send(KeyedMessage("kept", b"%d" % number))
            producer.close()
            found = [one for rows in payloads(consumer, "kept").values() for one in rows]
        assert set(found) == {b"%d" % number for number in range(1000)}
        assert producer.stats.failed_sends == 0


def test_message_that_is_too_large_fails_alone(broker, consumer):
    created(broker, "sizes")
    with Producer(
        metadata_broker_list=broker.bootstrap,
        request_required_acks=1,
        message_send_max_retries=1,
        retry_backoff_ms=0,
    ) as producer:
        large = KeyedMessage("sizes", None, 0, bytes(20_000))
        other = KeyedMessage("sizes", None, 1, b"small")
        with pytest.raises(FailedToSendMessage, match=r"1 messages after 2 tries.*TOO_LARGE"):
            producer.send(large, other)

    assert payloads(consumer, "sizes") == {0: [], 1: [b"small"], 2: []}


def test_message_without_payload_deletes_and_acks_0_are_written(broker, consumer):
    with Producer(metadata_broker_list=broker.bootstrap) as producer:
        producer.send(KeyedMessage("fired", b"k", None))
    with Producer(metadata_broker_list=broker.bootstrap) as producer:
        producer.send(KeyedMessage("fired", b"k", b"v"))

    def found() -> list[bytes | None]:
        return [one for rows in payloads(consumer, "fired").values() for one in rows]

    wait_until(lambda: found() == [None, b"v"], 30, "both are written")


def test_low_level_clients_know_one_broker_and_its_offsets(broker, consumer):
    created(broker, "low")
    with SyncProducer("127.0.0.1", broker.port, request_required_acks=-1) as producer:
        first = producer.send("low", 1, MessageSet.of([Message(b"a", b"k"), b"b"], "gzip"))
        second = producer.send("low", 1, MessageSet.of([b"c"]))
        assert (first, second) == (0, 2)
        with pytest.raises(RejectedError) as caught:
            producer.send("low", 9, MessageSet.of([b"x"]))
        assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    response = consumer.fetch(FetchRequestBuilder().add_fetch("low", 1, 1, 1 << 20).build())
    # COMPAT: what is compressed comes whole, from below the offset.
    assert [one.offset for one in response] in ([0, 1, 2], [1, 2])
    with OffsetChannel("g", lambda: [("127.0.0.1", broker.port)], backoff_ms=50) as channel:
        channel.commit({("low", 1): (2, "half")}, retries=100)
        assert channel.fetch([("low", 1)]) == {("low", 1): (2, "half", 0)}


def test_tls_and_sasl_are_settings_of_these_clients_too(tmp_path: Path):
    site = Site(tmp_path)
    login = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(site.ca_file),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": PASSWORDS["alice"],
    }
    with Broker({**SETTINGS, **site.settings("PLAINTEXT", "SASL_SSL")}) as broker:
        host, port = address_of(broker, "SASL_SSL")
        with Producer(
            {"broker.list": f"0:{host}:{port}", "request.required.acks": 1, **login}
        ) as p:
            p.send(KeyedMessage("secret", None, 0, b"v"))
        with SimpleConsumer(host, port, security=login) as consumer:
            assert payloads(consumer, "secret")[0] == [b"v"]
