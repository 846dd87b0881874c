"""A pipeline of Quix Streams, in an environment of its own: sums the numbers of each key, with
state in a changelog topic, exactly once. Its consumers and producers are ours (``as_confluent``).

    quix_pipeline.py BOOTSTRAP SOURCE TARGET STATE_DIRECTORY SECONDS
"""

from __future__ import annotations

import sys

import quixstreams.internal_consumer.consumer
import quixstreams.kafka.consumer
import quixstreams.kafka.producer
from interop import as_confluent
from quixstreams import Application, State


def add(number: int, state: State) -> int:
    total = int(state.get("total", 0)) + number
    state.set("total", total)
    return total


def main() -> None:
    bootstrap, source, target, place, seconds = sys.argv[1:]
    quixstreams.kafka.consumer.ConfluentConsumer = as_confluent.Consumer
    quixstreams.kafka.producer.ConfluentProducer = as_confluent.Producer
    app = Application(
        broker_address=bootstrap,
        consumer_group=source,
        auto_offset_reset="earliest",
        state_dir=place,
        processing_guarantee="exactly-once",
        commit_interval=0.3,
        consumer_poll_timeout=0.2,
        # One that is killed leaves its partitions and its transaction soon.
        consumer_extra_config={"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500},
        producer_extra_config={"transaction.timeout.ms": 10_000},
    )
    numbers = app.topic(source, value_deserializer="json", key_deserializer="bytes")
    totals = app.topic(target, value_serializer="json", key_serializer="bytes")
    frame = app.dataframe(numbers)
    frame.apply(add, stateful=True).to_topic(totals)
    app.run(timeout=float(seconds))


if __name__ == "__main__":
    main()
