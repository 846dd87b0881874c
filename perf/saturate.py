"""Saturate a broker: ready-made Produce frames over raw sockets, every response checked.

A Cython loop sends them for a few microseconds each, so that the broker is the limit. Each socket
writes to its own partition (socket number modulo partitions) and keeps --in-flight requests out.

    python perf/saturate.py --bootstrap 127.0.0.1:9092 --sockets 8 --records-per-request 150
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from confluent_kafka import KafkaException

from perf.arguments import Arguments, positive
from perf.frames import (
    PRODUCE_VERSIONS,
    produce_frame,
    produce_response_prefix,
    random_values,
    records_for,
)
from perf.load_generator import LoadError, LoadGenerator
from perf.percentiles import histogram_percentile
from perf.raw_client import (
    connect,
    parse_address,
    require_broker,
    wait_for_leaders,
    wait_until_writable,
)
from perf.topics import count_records, create_topic, delete_topic, fresh_name

if TYPE_CHECKING:
    from perf.load_generator import RunResult

MEGABYTE = 1_000_000


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = Arguments(__doc__)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--sockets", type=positive(int), default=8)
    parser.add_argument(
        "--in-flight", type=positive(int), default=5, help="requests out on each socket"
    )
    parser.add_argument("--record-size", type=int, default=100, help="bytes of one value")
    parser.add_argument("--records-per-request", type=positive(int), default=150)
    parser.add_argument("--partitions", type=positive(int), default=8)
    parser.add_argument("--topic", help="default: a fresh one, deleted afterwards")
    parser.add_argument(
        "--create", choices=["admin", "auto"], default="admin", help="CreateTopics or Metadata"
    )
    parser.add_argument("--acks", type=int, choices=[-1, 0, 1], default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--warmup", type=float, default=1.0, help="seconds sent before, not counted"
    )
    parser.add_argument(
        "--api-version",
        type=int,
        choices=PRODUCE_VERSIONS,
        default=9,
        help="of Produce; 2: format 1",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of lines"
    )
    return parser.parse(arguments)


def summarize(result: "RunResult", request_bytes: int, records_per_request: int) -> dict[str, Any]:
    """The figures of one run. Times in microseconds; MB are 10^6 bytes of request frames."""
    seconds = result["elapsed_ns"] / 1e9
    requests, codes = result["requests"], result["codes"]
    errors = sum(count for code, count in codes.items() if code != 0)
    counts = result["histogram"]
    answered = sum(counts)
    return {
        "requests": requests,
        "errors": errors,
        "error_codes": {str(code): count for code, count in codes.items() if code != 0},
        "seconds": seconds,
        "requests_per_s": requests / seconds,
        "records_per_s": requests * records_per_request / seconds,
        "mb_per_s": requests * request_bytes / seconds / MEGABYTE,
        "request_bytes": request_bytes,
        "mean_us": result["sum_ns"] / answered / 1e3 if answered else 0.0,
        "p50_us": histogram_percentile(counts, 0.50) / 1e3,
        "p99_us": histogram_percentile(counts, 0.99) / 1e3,
        "p999_us": histogram_percentile(counts, 0.999) / 1e3,
        "max_us": result["max_ns"] / 1e3,
    }


def saturate(
    options: argparse.Namespace,
    topic: str,
    leaders: dict[int, tuple[str, int]],
    mark: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Warm up, measure; ``mark`` is called at both ends of the measurement.

    The topic exists and ``leaders`` covers its partitions. The log must have grown by just what
    was accepted: a broker that stores nothing is fast too. Errors answered during the warm-up
    count as well: a broker that refuses then is not measured either. Raises LoadError if the
    broker hangs up, answers nonsense or loses a record.
    """
    before = count_records(options.bootstrap, topic, leaders)
    values = random_values(options.records_per_request, options.record_size, options.seed)
    batch = records_for(options.api_version, values)
    version = options.api_version
    sockets, frames, prefixes = [], [], []
    try:
        for number in range(options.sockets):
            partition = number % len(leaders)
            sockets += connect(leaders[partition], 1, is_blocking=False)
            frames.append(produce_frame(version, topic, partition, batch, acks=options.acks))
            prefixes.append(produce_response_prefix(version, topic, partition))
        generator = LoadGenerator(sockets, frames, prefixes, options.in_flight, options.acks != 0)
        warmup = generator.run(options.warmup) if options.warmup > 0 else None
        mark()
        result = generator.run(options.seconds)
        mark()
    finally:
        for one in sockets:
            one.close()
    figures = summarize(result, len(frames[0]), options.records_per_request)
    accepted = result["codes"].get(0, 0)
    if warmup is not None:
        accepted += warmup["codes"].get(0, 0)
        refused = {str(code): count for code, count in warmup["codes"].items() if code != 0}
        figures["errors"] += sum(refused.values())
        figures["error_codes"].update(refused)
    stored = count_records(options.bootstrap, topic, leaders) - before
    check_stored(stored, accepted * options.records_per_request, options.acks)
    return figures


def check_stored(stored: int, accepted: int, acks: int) -> None:
    """Raises LoadError unless every accepted record is in the log, once.

    With acks=0 nobody said what was accepted.
    """
    if acks != 0 and stored != accepted:
        raise LoadError(f"{accepted} records were accepted, the log grew by {stored}")


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures for people."""
    out = [
        f"{figures['requests']} requests of {figures['request_bytes']} bytes"
        f" in {figures['seconds']:.2f} s,"
        f" {figures['errors']} errors {figures['error_codes'] or ''}".rstrip(),
        f"{figures['requests_per_s']:.0f} requests/s, {figures['records_per_s']:.0f} records/s,"
        f" {figures['mb_per_s']:.2f} MB/s",
        f"latency mean {figures['mean_us']:.0f} us, p50 {figures['p50_us']:.0f},"
        f" p99 {figures['p99_us']:.0f},"
        f" p99.9 {figures['p999_us']:.0f}, max {figures['max_us']:.0f}",
    ]
    return out


def main(arguments: list[str] | None = None) -> int:
    """0 if every response was without error."""
    options = parse_arguments(arguments)
    require_broker("saturate", options.bootstrap)
    topic = options.topic or fresh_name("saturate")
    try:
        if options.create == "admin":
            leaders = create_topic(options.bootstrap, topic, options.partitions)
        else:
            leaders = wait_for_leaders(parse_address(options.bootstrap), topic, auto_create=True)
        try:
            wait_until_writable(leaders, topic)
            figures = saturate(options, topic, leaders)
        finally:
            if options.topic is None and options.create == "admin":
                delete_topic(options.bootstrap, topic)
    except (LoadError, KafkaException, OSError, ValueError) as error:
        print(f"saturate: {error}", file=sys.stderr)
        return 1
    print(json.dumps(figures) if options.json else "\n".join(lines(figures)))
    return 1 if figures["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
