"""End to end latency at a fixed rate: from the call of produce to the consumer's poll.

    python perf/latency.py --bootstrap 127.0.0.1:9092 --rate 1000 --seconds 10

Producer (linger 0) and consumer are processes of their own, so that neither waits for the other's
interpreter; both read CLOCK_MONOTONIC, which is one clock for the machine. A record that comes back
out of order, twice or not at all fails the run.
"""

import argparse
import gc
import json
import multiprocessing
import struct
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.arguments import Arguments
from perf.percentiles import percentile
from perf.raw_client import require_broker

HEADER = struct.Struct(">qq")
ARRIVAL_TIMEOUT_S = 60.0


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = Arguments(__doc__)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--topic", help="default: a fresh one, deleted afterwards")
    parser.add_argument("--rate", type=float, default=1000.0, help="records/s")
    parser.add_argument("--record-size", type=int, default=100, help="bytes, at least 16")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds before, not counted")
    parser.add_argument("--acks", choices=["0", "1", "all"], default="1")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.record_size < HEADER.size:
        parser.error(f"--record-size must be at least {HEADER.size}")
    if chosen.rate <= 0 or chosen.seconds <= 0:
        parser.error("--rate and --seconds must be above 0")
    return chosen


def summarize(latencies_ns: list[int], lateness_ns: int = 0) -> dict[str, Any]:
    """Milliseconds; ``lateness_ns`` is the maximum delay of the sender behind its schedule."""
    samples = np.array(latencies_ns, np.int64) / 1e6
    return {
        "records": samples.size,
        "mean_ms": float(samples.mean()) if samples.size else 0.0,
        "p50_ms": percentile(samples, 0.50),
        "p99_ms": percentile(samples, 0.99),
        "p999_ms": percentile(samples, 0.999),
        "max_ms": float(samples.max()) if samples.size else 0.0,
        "sender_late_ms": lateness_ns / 1e6,
    }


def lines(figures: dict[str, Any]) -> list[str]:
    return [
        f"{figures['records']} records, mean {figures['mean_ms']:.3f} ms,"
        f" p50 {figures['p50_ms']:.3f}, p99 {figures['p99_ms']:.3f},"
        f" p99.9 {figures['p999_ms']:.3f}, max {figures['max_ms']:.3f}",
        f"the sender was at most {figures['sender_late_ms']:.3f} ms behind its schedule",
    ]


def send_all(options: argparse.Namespace, topic: str, total: int, result: Any) -> None:
    """The producer process: a record each 1/rate seconds; puts (failures, lateness in ns)."""
    from confluent_kafka import Producer

    failures: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "linger.ms": 0,
            "acks": options.acks,
            "log_level": 3,
        }
    )
    padding = b"x" * (options.record_size - HEADER.size)
    # The first record finds the leader and opens the connection; the schedule starts after it.
    producer.produce(topic, HEADER.pack(-1, 0) + padding, partition=0, on_delivery=delivered)
    producer.flush(ARRIVAL_TIMEOUT_S)
    gc.freeze()
    gc.disable()
    step_ns = 1e9 / options.rate
    started_at = time.monotonic_ns()
    latest = 0
    for number in range(total):
        due_at = started_at + int(number * step_ns)
        producer.poll(0)
        while (wait_ns := due_at - time.monotonic_ns()) > 0:
            time.sleep(wait_ns / 1e9)
        latest = max(latest, -wait_ns)
        value = HEADER.pack(number, time.monotonic_ns()) + padding
        producer.produce(topic, value, partition=0, on_delivery=delivered)
    left = producer.flush(ARRIVAL_TIMEOUT_S)
    if left:
        failures.append(f"{left} records without delivery report")
    result.put((failures[:3], latest))


def make_consumer(options: argparse.Namespace, topic: str) -> Any:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": "perf-latency",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
            "log_level": 3,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    return consumer


def receive_all(consumer: Any, total: int) -> list[int]:
    """Latencies in ns by record number. Raises RuntimeError for a missing or misplaced record."""
    latencies: list[int] = []
    deadline = time.monotonic() + ARRIVAL_TIMEOUT_S
    gc.disable()
    while len(latencies) < total:
        message = consumer.poll(0.2)
        now_ns = time.monotonic_ns()
        if message is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"record {len(latencies)} of {total} never came")
            continue
        if message.error() is not None:
            raise RuntimeError(str(message.error()))
        number, sent_at_ns = HEADER.unpack_from(message.value())
        if number < 0:
            continue
        if number != len(latencies):
            raise RuntimeError(f"record {number} came where {len(latencies)} was due")
        latencies.append(now_ns - sent_at_ns)
        deadline = now_ns / 1e9 + ARRIVAL_TIMEOUT_S
    gc.enable()
    return latencies


def measure(options: argparse.Namespace, topic: str) -> dict[str, Any]:
    """For an existing topic. Raises RuntimeError for a record rejected, lost, duplicated or
    misplaced.
    """
    warmup = int(options.warmup * options.rate)
    total = warmup + max(1, int(options.seconds * options.rate))
    # The fork comes before this process creates a client, whose threads would not survive it.
    context = multiprocessing.get_context("fork")
    result = context.Queue()
    sender = context.Process(target=send_all, args=(options, topic, total, result), daemon=True)
    sender.start()
    consumer = make_consumer(options, topic)
    try:
        latencies = receive_all(consumer, total)
        failures, lateness_ns = result.get(timeout=2 * ARRIVAL_TIMEOUT_S)
    finally:
        consumer.close()
        sender.join(1)
        if sender.is_alive():
            sender.terminate()
    if failures:
        raise RuntimeError(f"the producer failed: {failures}")
    return summarize(latencies[warmup:], lateness_ns)


def manage_topic(action: str, bootstrap: str, topic: str) -> None:
    """Create or delete the topic in a child process: a fork must not follow a client's threads."""
    from perf.topics import create_topic, delete_topic

    work = create_topic if action == "create" else delete_topic
    arguments = (bootstrap, topic, 1) if action == "create" else (bootstrap, topic)
    child = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    child.start()
    child.join(60)
    if child.exitcode != 0:
        raise RuntimeError(f"could not {action} the topic {topic}")


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    require_broker("latency", options.bootstrap)
    topic = options.topic or f"latency-{time.time_ns():x}"
    try:
        if options.topic is None:
            manage_topic("create", options.bootstrap, topic)
        try:
            figures = measure(options, topic)
        finally:
            if options.topic is None:
                manage_topic("delete", options.bootstrap, topic)
    except RuntimeError as error:
        print(f"latency: {error}", file=sys.stderr)
        return 1
    print(json.dumps(figures) if options.json else "\n".join(lines(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
