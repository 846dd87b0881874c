"""What it costs to look at a broker with 10,000 partitions: scrapes, lag, and pages of the console.

    python perf/monitoring.py                     every part, about three minutes
    python perf/monitoring.py scrape produce --partitions 2000
    python perf/monitoring.py --quick             toy size, to see that it runs

scrape: /metrics, with a record in every partition: time until the last byte, CPU and memory of the
exporter. Memory is the highest of some samples taken while it works on further scrapes. produce:
latency of requests of one record at a fixed rate, for a while with a scrape every 5 s and for a
while without, in turns; CPU of the processes that serve, and of the exporter. lag: the same scrape,
and /groups, when 100 groups have committed an offset of every partition; every lag is checked.
pages: from the click on a link of the console until
Chromium shows the page, and each path of the API behind it, with as many topics as there are
partitions, and twice as many groups; at first, when nothing is kept of the user, and later. Exits
with 1 if a bar is missed.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf import process_tree
from perf.arguments import Arguments
from perf.bars import OURS, Bar, Cell, Figures
from perf.brokers import KbrokerBroker, free_ports
from perf.console_pages import api_times, fill_console, get, page_times
from perf.coordination import await_coordinator, commit
from perf.frames import random_values, record_batch
from perf.percentiles import percentile
from perf.raw_client import RawClient, paced
from perf.runner import Report, once
from perf.topics import create_topic

MEBIBYTE = 1 << 20
TOPIC = "watched"
TOPICS = 100
RECORDS = 3
COMMITTED = 1
# What the exporter knows serves scrapes for a second.
FRESH_S = 1.2
SCRAPE_EVERY_S = 5.0
# The text of a page is what comes last.
PAGES = (
    ("overview", "overview", "Nothing is wrong."),
    ("what is wrong", "wrong", "Nothing is wrong"),
    ("list of topics", "topics", "{count} topics"),
    ("search", "topics?search={last}", "1 topic"),
    ("last page of the list", "topics?skip={skip}", "{last}"),
    ("topic", "topics/{last}", "Size of leaders"),
    ("records", "topics/{last}?tab=messages", "There are no records"),
    ("settings", "topics/{last}?tab=settings", "retention.ms"),
    ("groups", "groups", "{groups} groups"),
    ("group", "groups/{group}", "Oldest unread record"),
    ("transactions", "transactions", "No producer has used transactions yet"),
    ("reassignments", "reassignments", "No partition is being moved"),
    ("quotas", "quotas", "There are no quotas"),
    ("access", "access", "There are no ACLs"),
)
API_PATHS = (
    "/session",
    "/overview",
    "/findings",
    "/log-dirs",
    "/history?of=broker",
    "/history?of=topics",
    "/history?of=groups",
    "/history?of=log-dirs",
    "/topics?limit=100",
    "/topics?search={last}",
    "/topics?search=9",
    "/topics?skip={skip}",
    "/topics/{last}",
    "/topics/{last}/settings",
    "/topics/{last}/messages",
    "/groups",
    "/groups?search={group}",
    "/groups?limit=200",
    "/group?group={group}",
    "/group/lags?group={group}",
    "/transactions",
    "/transactions/hanging",
    "/reassignments",
    "/quotas",
    "/acls",
    "/users",
)
# The console shows users and ACLs of a broker with an authorizer.
WITH_AUTHORIZER = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
}
SCRAPER = """
import http.client, sys, time
host, every = sys.argv[1], float(sys.argv[2])
while True:
    began = time.monotonic()
    connection = http.client.HTTPConnection(host)
    connection.request("GET", "/metrics")
    connection.getresponse().read()
    time.sleep(max(0, began + every - time.monotonic()))
"""

PRODUCE_RATE = 1000.0
EXPORTER = "exporter-0"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    options = Arguments(__doc__)
    options.add_parts(PARTS)
    options.add_sizes(
        ("--partitions", 10_000, 200, ""),
        ("--groups", 100, 3, ""),
        ("--scrapes", 15, 2, ""),
        ("--windows", 8, 2, "of produce"),
        ("--seconds", 10.0, 1.0, "a window"),
    )
    options.add_quick()
    options.add_place()
    options.add_output("monitoring/<date>-<commit>.json")
    return options.parse(arguments)


class Watched(KbrokerBroker):
    """A broker with an exporter. It leaves syncs to the kernel, as Kafka does: with one a second,
    p99 of 1,000 requests a second is that of the disk.
    """

    def __init__(self, place: str, partitions: int, more: Mapping[str, str] | None = None) -> None:
        self.http_port = free_ports(1)[0]
        overrides = {
            **(more or {}),
            "metrics.port": str(self.http_port),
            "partition.table.slots": str(partitions + 2000),
            "log.flush.interval.ms": "3600000",
        }
        super().__init__(place, overrides)

    @property
    def http_address(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    def timed(self, path: str) -> tuple[float, bytes]:
        """Milliseconds until the last byte; nothing of the scrape before is used."""
        time.sleep(FRESH_S)
        began = time.monotonic()
        body = get(self.http_address, path)
        return (time.monotonic() - began) * 1000, body

    def fill(self, partitions: int) -> int:
        """Topics with records in each partition; returns how many partitions a topic has."""
        each = max(1, partitions // TOPICS)
        batch = record_batch(random_values(RECORDS, 100, seed=1))
        with RawClient(self.address, timeout=60) as client:
            for number in range(TOPICS):
                create_topic(self.bootstrap, f"{TOPIC}-{number}", each)
                for partition in range(each):
                    client.write(f"{TOPIC}-{number}", partition, batch)
        return each


def memory_mib(pid: int) -> tuple[float, float]:
    """PSS, and what is private."""
    sizes: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split()[:2]
        sizes[name] = int(value)
    private = sizes["Private_Clean:"] + sizes["Private_Dirty:"]
    return sizes["Pss:"] / 1024, private / 1024


def highest_memory(broker: Watched, pid: int, scrapes: int) -> tuple[float, float]:
    """While it works on scrapes. Looking at its memory slows it down."""
    samples = [memory_mib(pid)]
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.02):
            samples.append(memory_mib(pid))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        for _ in range(scrapes):
            broker.timed("/metrics")
    finally:
        done.set()
        thread.join()
    return max(pss for pss, _ in samples), max(private for _, private in samples)


def measure_scrape(broker: Watched, options: argparse.Namespace) -> Figures:
    pid = broker.process_named(EXPORTER)
    size = len(broker.timed("/metrics")[1])
    with process_tree.Meter(partial(process_tree.cpu_seconds_of, pid)) as used:
        times = sorted(broker.timed("/metrics")[0] for _ in range(options.scrapes))
    pss, private = highest_memory(broker, pid, min(3, options.scrapes))
    return {
        "wall_ms": median(times),
        "slowest_ms": times[-1],
        "cpu_ms": used.cpu_s * 1000 / options.scrapes,
        "size_mib": size / MEBIBYTE,
        "pss_mib": pss,
        "private_mib": private,
    }


@contextmanager
def scraping(broker: Watched) -> Iterator[None]:
    command = [sys.executable, "-c", SCRAPER, broker.http_address, str(SCRAPE_EVERY_S)]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def latencies_us(broker: Watched, seconds: float) -> list[float]:
    """Of requests of one record, a thousand a second."""
    batch = record_batch(random_values(1, 100, seed=1))
    with RawClient(broker.address) as client:
        return [1e6 * taken for taken in paced(client, f"{TOPIC}-0", batch, PRODUCE_RATE, seconds)]


class ProduceWindow(NamedTuple):
    """serving_s: CPU time of all processes but the exporter. exporter_percent: its own, of a
    core.
    """

    p99_us: float
    serving_s: float
    exporter_percent: float


def produce_window(broker: Watched, seconds: float) -> ProduceWindow:
    exporter = broker.process_named(EXPORTER)
    of_exporter = process_tree.Meter(partial(process_tree.cpu_seconds_of, exporter))
    with process_tree.Meter(broker.cpu_seconds) as of_all, of_exporter:
        p99_us = percentile(latencies_us(broker, seconds), 0.99)
    return ProduceWindow(p99_us, of_all.cpu_s - of_exporter.cpu_s, of_exporter.percent)


def measure_produce(broker: Watched, options: argparse.Namespace) -> Figures:
    quiet: list[ProduceWindow] = []
    scraped: list[ProduceWindow] = []
    latencies_us(broker, options.seconds / 5)
    for window in range(options.windows):
        if window % 2:
            with scraping(broker):
                scraped.append(produce_window(broker, options.seconds))
        else:
            quiet.append(produce_window(broker, options.seconds))
    return {
        "p99_ratio": _median_p99_us(scraped) / _median_p99_us(quiet),
        "serving_cpu_ratio": _serving_s(scraped) / _serving_s(quiet),
        **_figures_of("quiet", quiet),
        **_figures_of("scraped", scraped),
    }


def _median_p99_us(windows: Sequence[ProduceWindow]) -> float:
    return median(one.p99_us for one in windows)


def _serving_s(windows: Sequence[ProduceWindow]) -> float:
    return median(one.serving_s for one in windows)


def _figures_of(name: str, windows: Sequence[ProduceWindow]) -> Figures:
    return {
        f"{name}_p99_us": _median_p99_us(windows),
        f"{name}_p99_us_least": min(one.p99_us for one in windows),
        f"{name}_p99_us_most": max(one.p99_us for one in windows),
        f"{name}_serving_s": _serving_s(windows),
        f"{name}_exporter_percent": median(one.exporter_percent for one in windows),
    }


def commit_all(broker: Watched, groups: int, each: int) -> None:
    """An offset of every partition by every group."""
    await_coordinator(broker.bootstrap, "lag-0")
    with RawClient(broker.address, timeout=60) as client:
        for number in range(groups):
            for topic in (f"{TOPIC}-{at}" for at in range(TOPICS)):
                commit(client, f"lag-{number}", topic, range(each), COMMITTED)


def check_lags(text: str, groups: int, each: int) -> None:
    """Of every group and topic, in records and in seconds; in seconds of every partition while
    there are few (metrics.group.partitions.max).
    """
    counts = {"kafka_consumergroup_lag_sum": 0, "kbroker_consumergroup_lag_seconds": 0}
    expected = each * (RECORDS - COMMITTED)
    for line in text.splitlines():
        name = line.partition("{")[0]
        if name in counts:
            counts[name] += 1
            value = float(line.rpartition(" ")[2])
            if value <= 0 or (name.endswith("_sum") and value != expected):
                raise RuntimeError(f"not {expected}: {line}")
    pairs = groups * TOPICS
    seconds = counts.pop("kbroker_consumergroup_lag_seconds")
    if counts != {"kafka_consumergroup_lag_sum": pairs} or seconds not in (pairs, pairs * each):
        raise RuntimeError(f"not {pairs} lags, but {counts}, and {seconds} in seconds")


def measure_lag(broker: Watched, options: argparse.Namespace) -> Figures:
    each = max(1, options.partitions // TOPICS)
    commit_all(broker, options.groups, each)
    pid = broker.process_named(EXPORTER)
    # Ages are looked up a thousand a scrape.
    for _ in range(options.groups * TOPICS // 1000 + 2):
        broker.timed("/metrics")
    timed = [broker.timed("/metrics") for _ in range(options.scrapes)]
    check_lags(timed[-1][1].decode(), options.groups, each)
    groups = [broker.timed("/groups")[0] for _ in range(options.scrapes)]
    pss, private = highest_memory(broker, pid, min(3, options.scrapes))
    return {
        "metrics_ms": median(ms for ms, _ in timed),
        "slowest_ms": max(ms for ms, _ in timed),
        "groups_ms": median(groups),
        "size_mib": len(timed[-1][1]) / MEBIBYTE,
        "pss_mib": pss,
        "private_mib": private,
    }


def measure_pages(broker: Watched, options: argparse.Namespace) -> Figures:
    count = options.partitions
    names = [f"topic-{number:05}" for number in range(count)]
    groups = [f"group-{number:03}" for number in range(2 * options.groups)]
    fill_console(broker.bootstrap, names, groups)
    words = {
        "count": f"{count:,}",
        "last": names[-1],
        "skip": count - 100,
        "groups": f"{len(groups):,}",
        "group": groups[-1],
    }
    api = api_times(broker.http_address, [path.format(**words) for path in API_PATHS])
    with tempfile.TemporaryDirectory(prefix="perf-browser-", dir=options.place) as place:
        pages = [tuple(text.format(**words) for text in page) for page in PAGES]
        times = page_times(f"http://{broker.http_address}", pages, Path(place))
    pss, private = memory_mib(broker.process_named(EXPORTER))
    return {
        **{f"{name}_ms": ms for name, ms in times.items()},
        **{f"{path} first_ms": ms for path, (ms, _) in api.items()},
        **{f"{path} ms": ms for path, (_, ms) in api.items()},
        "slowest_ms": max(times.values()),
        "slowest_api_ms": max(ms for _, ms in api.values()),
        "slowest_first_ms": max(ms for ms, _ in api.values()),
        "pss_mib": pss,
        "private_mib": private,
    }


PARTS = {
    cell.name: cell
    for cell in (
        Cell(
            "scrape",
            "/metrics of 10,000 partitions",
            measure_scrape,
            (
                Bar("wall_ms", "<= 500", "ms to the last byte"),
                Bar("cpu_ms", text="CPU ms of the exporter"),
                Bar("pss_mib", "<= 60", "PSS of the exporter with history, MiB"),
                Bar("private_mib", text="private memory of the exporter, MiB"),
            ),
        ),
        Cell(
            "lag",
            "lag of 100 groups in 10,000 partitions",
            measure_lag,
            (
                Bar("metrics_ms", "<= 1000", "ms of /metrics"),
                Bar("groups_ms", "<= 1000", "ms of /groups"),
                Bar("pss_mib", text="PSS of the exporter, MiB"),
            ),
        ),
        Cell(
            "produce",
            "produce at 1,000 requests/s, 10,000 partitions",
            measure_produce,
            (
                Bar("quiet_p99_us", text="p99 µs without scrapes"),
                Bar("scraped_p99_us", text="p99 µs with a scrape every 5 s"),
                Bar("p99_ratio", "<= 1.1", "p99 with scrapes, of that without"),
                Bar("serving_cpu_ratio", "<= 1.01", "CPU but the exporter's, of that without"),
                Bar("quiet_exporter_percent", "<= 1", "the exporter without scrapes, % of a core"),
                Bar("scraped_exporter_percent", text="the same with scrapes"),
            ),
        ),
        Cell(
            "pages",
            "pages of the console, 10,000 topics",
            measure_pages,
            (
                Bar("slowest_ms", "<= 300", "slowest page, ms"),
                Bar("slowest_api_ms", "<= 300", "slowest path of the API, ms"),
                Bar("slowest_first_ms", "<= 300", "slowest path of the API at first, ms"),
                Bar("pss_mib", "<= 60", "PSS of the exporter with history, MiB"),
            ),
        ),
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The console has a broker of its own, as its topics have a partition each."""
    options = parse_arguments(arguments)
    names = ("partitions", "groups", "scrapes", "windows", "seconds")
    parameters = {name: getattr(options, name) for name in names}
    report = Report(options, None, "monitoring", parameters=parameters)
    parts = [name for name in PARTS if name in options.parts]
    for is_console in (False, True):
        own = [name for name in parts if (name == "pages") is is_console]
        if not own:
            continue
        more = WITH_AUTHORIZER if is_console else {}
        with Watched(options.place, options.partitions, more) as broker:
            if not is_console:
                broker.fill(options.partitions)
            for name in own:
                report.add(PARTS[name], {OURS: once(PARTS[name].measure(broker, options))})
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
