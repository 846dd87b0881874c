"""The cell ``site`` of ``perf/scale.py``: the documents' site on one machine.

Fifteen brokers and a ZooKeeper with 15,500 partitions of two replicas; a producer with acks=all and
a consumer on all of them, which count every record. Under that load the controller's broker is
killed, another one is stopped, and one is added, to which partitions are moved. Then all are killed
and started at once. ``SiteRun.measure`` is the order of events.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from kbroker.client import KafkaAdminClient
from kbroker.client.admin.topics import NewTopic
from perf import process_tree
from perf.bars import OURS, Bar, Cell, CellFailed, Figures
from perf.brokers import Broker, KbrokerBroker
from perf.clusters import ZooKeeperCluster
from perf.machine import Needs
from perf.process_tree import Meter
from perf.site_load import NUMBER_BYTES, Plan
from perf.site_view import NOBODY, Place, SiteView, view_of

DOCUMENTED_RATE = 400_000  # messages/s, on fifteen machines
TOPIC_PARTITIONS = 500
REPLICAS = 2
REASSIGNED_AT_ONCE = 500
WAIT_S = 600.0
LOOK_S = 0.2
PROGRAM = Path(__file__).with_name("site_load.py")
MEBIBYTE = 1 << 20
# As measured: of a broker with a thousand partitions, of ZooKeeper, and of the two clients.
BROKER_BYTES, ZOOKEEPER_BYTES, CLIENT_BYTES = 150 << 20, 700 << 20, 1 << 30
BARS = (
    Bar("restart_s", "<= 15", "all killed, until led and in sync, s"),
    Bar("idle_cpu_percent", "<= 8", "idle, all brokers, % of a core"),
    Bar("idle_pss_mib", "<= 1536", "idle, all brokers, MiB"),
    Bar("failover_s", "<= 5", "controller's broker killed, until led, s"),
    Bar("leaders_off_mean_percent", "<= 10", "leaders of a broker off the mean, %"),
    Bar("not_preferred_percent", "<= 10", "partitions that others lead, %"),
    Bar("records_wrong", "<= 0", "records lost, doubled or out of order"),
)


@dataclass(frozen=True, slots=True)
class SiteSize:
    """rate: records/s of the producer, 0 for as many as possible."""

    brokers: int = 15
    partitions: int = 15_500
    idle_s: float = 30.0
    load_s: float = 30.0
    rate: int = 0
    record_bytes: int = 175

    def needs(self, place: Path) -> Needs:
        replicas = self.partitions * REPLICAS
        return Needs(
            memory_bytes=(self.brokers + 1) * BROKER_BYTES + ZOOKEEPER_BYTES + CLIENT_BYTES,
            descriptors=4 * replicas // self.brokers + 20 * self.brokers + 1000,
            ports=200 * self.brokers,
            place=place,
            place_bytes=replicas * 300_000 if replicas > 1000 else 1 << 30,
        )


SMALL = SiteSize(brokers=3, partitions=60, idle_s=1.0, load_s=2.0, rate=5_000)


class SiteCluster(ZooKeeperCluster):
    """Brokers 1 to ``size.brokers``, with the defaults but for what keeps the disk small."""

    name = "kbroker"
    broker_class = KbrokerBroker

    def __init__(self, place: Path, size: SiteSize, overrides: dict[str, str]) -> None:
        super().__init__(place)
        self._size = size
        self.settings = {
            "default.replication.factor": str(REPLICAS),
            "log.segment.bytes": str(256 << 10),
            "log.retention.check.interval.ms": "30000",
            "log.retention.bytes": str(256 << 10),
            "log.segment.delete.delay.ms": "1000",
            **overrides,
        }
        self.shared: dict[str, str] = {}

    def create(self) -> list[Broker]:
        self.shared = {"zookeeper.connect": f"{self.start_zookeeper()}/site", **self.settings}
        return [self.new_broker(number) for number in range(1, self._size.brokers + 1)]

    def new_broker(self, number: int) -> Broker:
        return KbrokerBroker(self.home, {"broker.id": str(number), **self.shared})

    def add(self) -> int:
        """Start one more broker; returns its id."""
        broker = self.new_broker(len(self.brokers) + 1)
        self._stack.callback(broker.stop)
        broker.launch()
        self.brokers.append(broker)
        return len(self.brokers)

    def broker(self, number: int) -> Broker:
        return self.brokers[number - 1]

    def kill_all(self) -> None:
        """SIGKILL to all processes of all brokers, as fast as one program can."""
        trees = [process_tree.descendants(one.process.pid) for one in self.brokers if one.process]
        process_tree.kill_all([pid for tree in trees for pid in tree])
        for broker in self.brokers:
            if broker.process is not None:
                broker.kill()

    def pss_mib(self) -> float:
        return sum(one.pss_bytes() for one in self.brokers if one.process) / MEBIBYTE


class Client:
    """A process of ``site_load.py``. rows: (time.monotonic(), records so far) of each second."""

    def __init__(self, work: str, plan: Plan, log: Path) -> None:
        self.rows: list[tuple[float, int]] = [(time.monotonic(), 0)]
        self.counts: list[list[int]] = []
        self.problems: list[str] = []
        self._log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), work, plan.text()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            row = json.loads(text)
            if "counts" in row:
                self.counts, self.problems = row["counts"], row["problems"]
            else:
                self.rows.append((row["at"], row["records"]))

    @property
    def records(self) -> int:
        return self.rows[-1][1]

    def per_second(self, seconds: float) -> float:
        """The rate of the last so many seconds."""
        last_at, last = self.rows[-1]
        at, before = next(row for row in self.rows if row[0] >= last_at - seconds - 0.5)
        return (last - before) / max(last_at - at, 1e-9)

    def longest_pause_s(self, since: float) -> float:
        """The longest time without a record, in whole seconds."""
        moved = [at for (_, before), (at, now) in pairwise(self.rows) if now != before]
        times = [since, *(at for at in moved if at >= since)]
        return max((b - a for a, b in pairwise(times)), default=0.0)

    def end(self) -> int:
        """Let it end; returns the number of its records. Raises CellFailed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(WAIT_S)
        self._thread.join(10)
        if code != 0 or not self.counts:
            raise CellFailed(f"a client ended with {code}: {self._log.read_text()[-2000:]}")
        return sum(map(sum, self.counts))


class SiteRun:
    """One run. ``figures`` grows from step to step."""

    def __init__(self, cluster: SiteCluster, size: SiteSize) -> None:
        self._cluster = cluster
        self._size = size
        self._topics: dict[str, int] = {}
        self._faults_at = 0.0
        self.figures: Figures = {}

    def measure(self) -> Figures:
        self._create_topics()
        self._idle("idle")
        with self._load() as (writer, reader):
            self._steady(writer, reader)
            self._kill_controller()
            self._stop_one()
            self._add_one()
            self._settle_leaders()
            self.figures["pause_s"] = writer.longest_pause_s(self._faults_at)
            self._count(writer, reader)
        self._restart_all()
        self._idle("idle_later")
        return self.figures

    # -- the steps --

    def _create_topics(self) -> None:
        parts, rest = divmod(self._size.partitions, TOPIC_PARTITIONS)
        counts = [TOPIC_PARTITIONS] * parts + [rest] * bool(rest)
        self._topics = {f"site-{number:02}": count for number, count in enumerate(counts)}
        began = time.monotonic()
        with self._admin() as admin:
            made = admin.create_topics(
                [NewTopic(name, count, REPLICAS) for name, count in self._topics.items()]
            )
        if errors := [str(one) for one in made.values() if isinstance(one, Exception)]:
            raise CellFailed(errors[0])
        self._took("create_s", began, self._in_sync, "all topics are created and in sync")
        self._say(f"{self._size.partitions} partitions in sync")

    def _idle(self, name: str) -> None:
        time.sleep(min(10.0, self._size.idle_s))
        with Meter(self._cluster.cpu_seconds) as used:
            time.sleep(self._size.idle_s)
        self.figures[f"{name}_cpu_percent"] = used.percent
        self.figures[f"{name}_pss_mib"] = self._cluster.pss_mib()
        self._say(name)

    def _steady(self, writer: Client, reader: Client) -> None:
        self._cluster.wait(lambda: min(writer.records, reader.records) > 0, "records flow")
        with Meter(self._cluster.cpu_seconds) as used:
            time.sleep(self._size.load_s)
        rate, size = writer.per_second(self._size.load_s / 2), self._size.record_bytes
        self.figures |= {
            "messages_per_s": rate,
            "mb_per_s_in": rate * size / 1e6,
            "mb_per_s_out": reader.per_second(self._size.load_s / 2) * size / 1e6,
            "documented_percent": 100 * rate / DOCUMENTED_RATE,
            "loaded_cpu_cores": used.percent / 100,
            "loaded_pss_mib": self._cluster.pss_mib(),
        }
        self._faults_at = time.monotonic()
        self._say("steady load")

    def _kill_controller(self) -> None:
        victim = self._view().controller
        began = time.monotonic()
        self._cluster.kill(self._cluster.broker(victim))
        self._took(
            "failover_s", began,
            lambda view: view.controller not in (victim, NOBODY)
            and view.led(self._size.partitions, {victim}),
            f"others do what broker {victim} did",
        )  # fmt: skip
        began = time.monotonic()
        self._cluster.broker(victim).launch()
        self._took("back_in_sync_s", began, self._in_sync, f"broker {victim} is in sync again")
        self._say("the controller's broker was killed, and is back")

    def _stop_one(self) -> None:
        view = self._view()
        victim = next(number for number in sorted(view.brokers) if number != view.controller)
        began = time.monotonic()
        self._cluster.broker(victim).halt()
        self.figures["stop_s"] = time.monotonic() - began
        self._took(
            "led_after_stop_s", began, lambda view: view.led(self._size.partitions, {victim}),
            f"others lead what broker {victim} led",
        )  # fmt: skip
        began = time.monotonic()
        self._cluster.broker(victim).launch()
        self._took("restarted_in_sync_s", began, self._in_sync, f"broker {victim} is in sync again")
        self._say("a broker was stopped, and is back")

    def _add_one(self) -> None:
        began = time.monotonic()
        added = self._cluster.add()
        self._took("added_s", began, lambda view: added in view.brokers, "the new broker is known")
        moves = moves_to(added, self._view())
        began = time.monotonic()
        places = list(moves)
        with self._admin() as admin:
            for at in range(0, len(places), REASSIGNED_AT_ONCE):
                some = {place: moves[place] for place in places[at : at + REASSIGNED_AT_ONCE]}
                errors = [e for e in admin.alter_partition_reassignments(some).values() if e]
                if errors:
                    raise CellFailed(f"a reassignment is rejected: {errors[0]}")
        self._took(
            "moved_s", began,
            lambda view: self._in_sync(view)
            and all(set(view.partitions[place].replicas) == set(moves[place]) for place in places),
            f"{len(moves)} replicas are moved to the new broker",
        )  # fmt: skip
        self.figures["moved_replicas"] = len(moves)
        self._say("a broker was added, with its share")

    def _settle_leaders(self) -> None:
        """Preferred leaders lead again, as ``auto.leader.rebalance`` has it every five minutes."""
        began = time.monotonic()
        with self._admin() as admin:
            admin.elect_leaders(None)
        self._took(
            "preferred_s", began, lambda view: self._in_sync(view) and view.not_preferred == 0,
            "preferred leaders lead",
        )  # fmt: skip
        view = self._view()
        self.figures["leaders_off_mean_percent"] = 100 * view.leaders_off_mean
        self.figures["not_preferred_percent"] = 100 * view.not_preferred

    def _count(self, writer: Client, reader: Client) -> None:
        """Every record that was acknowledged was read, once and in its place."""
        written = writer.end()
        began = time.monotonic()
        self._cluster.wait(lambda: reader.records >= written, "every record is read", pause_s=0.5)
        self.figures["caught_up_s"] = time.monotonic() - began
        read = reader.end()
        wrong = sum(
            abs(w - r)
            for ours, theirs in zip(writer.counts, reader.counts, strict=True)
            for w, r in zip(ours, theirs, strict=True)
        )
        problems = writer.problems + reader.problems
        for text in problems:
            print(f"  {text}", flush=True)
        self.figures |= {"records": read, "records_wrong": wrong + len(problems)}
        self._say(f"{read} records counted")

    def _restart_all(self) -> None:
        self._cluster.kill_all()
        began = time.monotonic()
        for broker in self._cluster.brokers:
            broker.launch()
        self._took("restart_s", began, self._in_sync, "everything is led and in sync again")
        self._say("all were killed and started")

    # -- what the steps share --

    @contextmanager
    def _load(self) -> Iterator[tuple[Client, Client]]:
        plan = Plan(
            self._cluster.bootstrap, list(self._topics), list(self._topics.values()),
            record_bytes=max(self._size.record_bytes, NUMBER_BYTES), rate=self._size.rate,
        )  # fmt: skip
        home = self._cluster.home
        clients = Client("write", plan, home / "write.log"), Client("read", plan, home / "read.log")
        try:
            yield clients
        finally:
            for client in clients:
                client.process.kill()

    def _admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(
            bootstrap_servers=self._cluster.bootstrap,
            default_api_timeout_ms=int(WAIT_S * 1000),
            request_timeout_ms=int(WAIT_S * 1000),
        )

    def _in_sync(self, view: SiteView) -> bool:
        running = sum(one.process is not None for one in self._cluster.brokers)
        return len(view.brokers) == running and view.in_sync(self._size.partitions)

    def _view(self, broker: Broker | None = None) -> SiteView:
        running = next(one for one in self._cluster.brokers if one.process is not None)
        return view_of((broker or running).address)

    def _took(
        self, figure: str, began: float, is_so: Callable[[SiteView], bool], what: str
    ) -> None:
        """Note how long it was until one broker says so; then all others must."""

        def seen(broker: Broker | None) -> bool:
            try:
                return is_so(self._view(broker))
            except OSError as error:
                raise AssertionError(str(error)) from error

        at = self._cluster.wait(lambda: seen(None), what, WAIT_S, LOOK_S)
        self.figures[figure] = at - began
        for broker in self._cluster.brokers:
            if broker.process is not None:
                self._cluster.wait(lambda one=broker: seen(one), f"{what}, by all", 60, LOOK_S)

    def _say(self, what: str) -> None:
        shown = ", ".join(f"{name} {value:.3g}" for name, value in list(self.figures.items())[-4:])
        print(f"{time.strftime('%H:%M:%S')} {what} ({shown})", flush=True)


def moves_to(added: int, view: SiteView) -> dict[Place, list[int]]:
    """The new broker's share: an equal part of all leaders and of all followers, from those that
    have the most of each.
    """
    share = len(view.partitions) // len(view.brokers)
    preferred = Counter(one.replicas[0] for one in view.partitions.values())
    following = Counter(one.replicas[-1] for one in view.partitions.values())
    moves: dict[Place, list[int]] = {}
    led = followed = 0
    for place, one in view.partitions.items():
        first, last = one.replicas[0], one.replicas[-1]
        if led < share and preferred[first] > share:
            moves[place] = [added, *one.replicas[1:]]
            preferred[first] -= 1
            led += 1
        elif followed < share and following[last] > share:
            moves[place] = [*one.replicas[:-1], added]
            following[last] -= 1
            followed += 1
    return moves


def measure(size: SiteSize, place: Path, overrides: dict[str, str]) -> dict[str, Figures]:
    """The cell. Raises MachineTooSmall, CellFailed."""
    size.needs(place).require()
    with tempfile.TemporaryDirectory(dir=place, prefix="site-") as home:
        began = time.monotonic()
        with SiteCluster(Path(home), size, overrides) as cluster:
            run = SiteRun(cluster, size)
            run.figures["up_s"] = time.monotonic() - began
            return {OURS: run.measure()}


CELL = Cell("site", "a site of many brokers on this machine", measure, BARS)
