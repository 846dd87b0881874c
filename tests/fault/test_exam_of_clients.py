"""The exam of clients (tests/fault/clients) has a cell for every public method and setting, and its
checker sees what it is there for.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from confluent_kafka import KafkaError, KafkaException
from fault.clients import checker, conditions, coverage, feeds, page
from fault.clients.batch import Batch, Verdict, coordinating_partition
from fault.clients.faults import FAULTS
from fault.clients.handles import Given
from fault.clients.old_clients import OldWriter
from fault.clients.outputs import LINE_CHARS, LINES_CHARS, PRINTED_CHARS, output_of
from fault.clients.roles import ROLES
from fault.clients.runner import (
    COMMIT,
    NIGHT,
    SECURED,
    SECURED_ROLES,
    Cell,
    Results,
    Wanted,
    summary,
)
from fault.clients.told import Told

from kbroker.coordinator.partitioner import coordinator_partition
from kbroker.legacy import KeyedMessage, QueueFull
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kind", coverage.CLASSES, ids=lambda kind: kind.__name__)
def test_every_public_method_is_met_by_a_role_or_says_why_not(kind):
    name = kind.__name__
    met, not_met = coverage.MET[name], coverage.NOT_MET[name]
    public = coverage.public(kind)

    assert public - set(met) - set(not_met) == set(), "give them a role in coverage.py"
    assert (set(met) | set(not_met)) - public == set(), "they are gone"
    assert set(met) & set(not_met) == set()
    for roles in met.values():
        assert roles
        client = coverage.USED_BY.get(name, name)
        assert all(ROLES[role].client == client for role in roles)


@pytest.mark.parametrize("kind", coverage.SETTINGS)
def test_every_setting_is_set_by_a_role_or_says_why_not(kind):
    rows, reasons = coverage.SETTINGS[kind], coverage.UNSET[kind]
    no_effect = {name for name, row in rows.items() if row.no_effect is not None}
    by_roles = coverage.set_by_roles(kind)

    assert set(rows) - no_effect - by_roles - set(reasons) == set(), "add them to coverage.py"
    assert set(reasons) - set(rows) == set(), "they are gone"
    assert set(reasons) & by_roles == set()
    assert set(reasons) & no_effect == set()


def test_every_role_meets_every_fault_that_fits_at_release():
    cells = Wanted("release", [], []).cells()

    assert len(set(cells)) == len(cells)
    assert {cell.role for cell in cells} == set(ROLES)
    assert {cell.fault for cell in cells} == set(FAULTS)
    for smaller in ("commit", "night"):
        assert set(Wanted(smaller, [], []).cells()) <= set(cells)
    assert set(COMMIT) | set(NIGHT) <= set(FAULTS)
    for fault, roles in COMMIT.items():
        assert all(FAULTS[fault].fits(ROLES[role]) for role in roles)


def test_cells_are_those_that_the_brokers_can_serve():
    def cells(brokers: str) -> set[Cell]:
        return set(Wanted("night", [], []).cells(brokers))

    everything = cells("kbroker")
    roles = {cell.role for cell in everything}

    assert {"0.8 group", "consumer protocol", "spark", "kbroker mirror"} <= roles
    assert "consumer protocol" not in {cell.role for cell in cells("kafka-2.7.2")}
    assert "0.8 group" not in {cell.role for cell in cells("kraft-3.9")}
    secured = cells("kbroker-sasl-ssl")
    assert {cell.role for cell in secured} == set(SECURED_ROLES)
    assert {cell.fault for cell in secured} == set(SECURED)
    # What is encrypted cannot be answered with errors.
    named = Wanted("night", ["admin"], ["leader errors"])
    assert named.cells("kbroker") != [] and named.cells("kbroker-sasl-ssl") == []


def test_results_are_found_again_and_the_summary_names_what_is_open(tmp_path):
    path = tmp_path / "results"
    rows = [("admin", "nothing", ""), ("static", "nothing", "lost"), ("admin", "fork", "x")]
    path.write_text(
        "".join(
            json.dumps({"role": role, "fault": fault, "problem": problem}) + "\n"
            for role, fault, problem in [*rows, ("admin", "fork", "")]
        )
    )
    cells = [Cell(*row[:2]) for row in rows] + [Cell("static", "fork")]

    said = summary(cells, Results(path))

    assert said.splitlines() == [
        "2 of 4 cells passed",
        "failed: static × nothing: lost",
        "not run: static × fork",
    ]


def test_what_the_programs_of_a_cell_have_printed_is_kept_until_it_passes(tmp_path):
    results, cell = Results(tmp_path / "kbroker.jsonl"), Cell("admin", "nothing")

    results.add(Verdict(cell, "lost", "", "Traceback"))

    path = results.output_path(cell)
    assert path.read_text() == "Traceback"
    assert str(path) in summary([cell], results)
    results.add(Verdict(cell, "", ""))
    assert not path.exists()


def test_what_a_program_has_printed_is_cut_in_its_middle():
    lines = [{"what": "returned", "rows": "r" * 2 * LINE_CHARS}] * (LINES_CHARS // LINE_CHARS * 2)
    printed = "first" + "x" * PRINTED_CHARS + "last"

    text = output_of("w", lines, [printed, ""])

    assert len(text) < LINES_CHARS + PRINTED_CHARS + 1000
    assert "first" in text and text.endswith("last\n")
    assert output_of("w", [{"what": "late"}], [""]) == '== w: was told\n{"what": "late"}\n'


def test_nobody_waits_for_a_program_that_has_ended():
    """A stream that could not begin would cost its whole batch a quarter of an hour."""
    batch = Batch.__new__(Batch)
    batch._feeds = [SimpleNamespace(acked={})]  # type: ignore[list-item]
    asked: list[Any] = []
    part: Any = SimpleNamespace(is_running=False, problems=[])

    batch._all(lambda one: asked.append(one) or "stands still", 0.5, [part], " before")

    assert part.problems == ["stands still before"]
    assert len(asked) == 1


def test_a_topic_that_is_not_deleted_in_time_fails_no_cell():
    """Ten minutes of failure would have been in vain."""

    def delete(name: str) -> None:
        raise AssertionError(f"not within 60 s: {name} is deleted")

    batch = Batch.__new__(Batch)
    batch._fault, batch._topics = FAULTS["nothing"], SimpleNamespace(delete=delete)  # type: ignore[assignment]
    part: Any = SimpleNamespace(topic="t", problems=[])
    batch._parts = [part]

    batch._each(batch._clear)

    assert part.problems == []


class _StuckProducer:
    """As librdkafka's after a commit that has timed out, which may neither be aborted nor followed
    by a transaction. committed: by those after the first one, which has that fate.
    """

    def __init__(self, committed: list[None], is_first: bool) -> None:
        self._committed, self._is_first = committed, is_first
        self._stuck = False

    def init_transactions(self, timeout: float) -> None: ...

    def begin_transaction(self) -> None:
        if self._stuck:
            raise KafkaException(KafkaError(KafkaError._STATE, "CommittingTransaction"))

    def abort_transaction(self, timeout: float) -> None:
        self.begin_transaction()

    def commit_transaction(self, timeout: float) -> None:
        if self._is_first:
            self._stuck = True
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "30 s", False, True))
        self._committed.append(None)

    def produce(self, topic: str, value: bytes, **more: Any) -> None: ...

    def poll(self, timeout: float) -> None: ...

    def flush(self, timeout: float) -> None: ...


def test_a_feed_goes_on_with_another_producer_when_a_commit_has_timed_out(monkeypatch):
    """Else a reader of committed records has nothing to read, and fails for that."""
    made: list[_StuckProducer] = []
    committed: list[None] = []

    def make(config: dict[str, Any]) -> _StuckProducer:
        made.append(_StuckProducer(committed, not made))
        return made[-1]

    monkeypatch.setattr(feeds, "Producer", make)
    feed = feeds.Feed("nowhere", {"t": 1}, "transactions")
    try:
        wait_until(lambda: len(committed) > 1, 30, "transactions are committed again")
    finally:
        feed.close()
    assert len(made) == 2


def test_a_feed_gives_up_no_record(monkeypatch):
    """Else librdkafka sends others again, and what a reader is compared with is there twice."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(feeds, "Producer", lambda config: made.append(config) or MagicMock())

    feeds.Feed("nowhere", {"t": 1}).close()
    feeds.Feed("nowhere", {"t": 1}, "transactions").close()

    assert [one["message.timeout.ms"] for one in made] == [0, made[1]["transaction.timeout.ms"]]


class _FullQueue:
    """Of an asynchronous producer of 0.8, which has room for four."""

    def __init__(self) -> None:
        self.taken: list[KeyedMessage] = []

    def send(self, *messages: KeyedMessage) -> None:
        for one in messages:
            if len(self.taken) == 4:
                raise QueueFull(one, 4, 0)
            self.taken.append(one)

    def close(self) -> None: ...


def test_a_message_that_a_full_queue_has_taken_ends_once(monkeypatch):
    queue, out = _FullQueue(), io.StringIO()
    monkeypatch.setattr(OldWriter, "_made", lambda writer: Given(writer.told, queue))
    settings = {"producer_type": "async"}
    told = Told(out)
    writer = OldWriter(
        SimpleNamespace(told=told, settings=settings, partitions=2, topic="t", name="p")
    )

    writer.send([(partition, number) for partition in range(2) for number in range(3)])
    writer.have_ended(queue.taken, None)
    writer.finish()

    lines = {one["what"]: one for one in map(json.loads, out.getvalue().splitlines())}
    assert lines["open"]["count"] == 0
    assert [row[:2] for row in lines["acked"]["rows"]] == [[0, 0], [0, 1], [0, 2], [1, 0]]
    assert [row[:2] for row in lines["failed"]["rows"]] == [[1, 1], [1, 2]]


def test_a_coordinator_is_harmed_by_who_has_the_name():
    """A hash without its sign, also one below zero: else every other cell harms nobody."""
    for name in [f"exam-{n}" for n in range(200)]:
        assert coordinating_partition(name, 6) == coordinator_partition(name, 6)


# -- the checker

LOG = {0: [(n, f"w:0:{n}") for n in range(10)]}


def returned(*offsets: int, who: str = "a") -> dict[str, Any]:
    rows = [(0, n, f"w:0:{n}") for n in offsets]
    return {"what": "returned", "who": who, "rows": rows}


def moved(what: str, who: str = "a") -> dict[str, Any]:
    return {"what": what, "who": who, "partitions": [0]}


def told(offset: int) -> dict[str, Any]:
    return {"what": "committed", "who": "a", "offsets": [(0, offset)]}


def seen(offset: int) -> dict[str, Any]:
    return {"what": "seen", "who": "", "offsets": [(0, offset)]}


@pytest.mark.parametrize(
    ("events", "committed", "words"),
    [
        ([returned(*range(10))], {0: 10}, ""),
        ([returned(*range(5)), moved("lost"), returned(*range(3, 10))], {}, ""),
        ([returned(*range(6)), told(4), moved("lost"), returned(*range(3, 10))], {0: 4}, "back"),
        (
            [moved("assigned"), returned(0), told(4), moved("assigned", "b"), returned(3, who="b")],
            {0: 4},
            "back",
        ),
        # The line of one that has stood still, while the other one read and committed.
        (
            [
                moved("assigned", "b"),
                moved("assigned"),
                returned(*range(5)),
                told(5),
                returned(*range(5), who="b"),
                moved("lost", "b"),
                returned(*range(5, 10)),
            ],
            {},
            "",
        ),
        ([returned(0, 1, 3)], {}, "records lost"),
        ([returned(0, 1, 1)], {}, "again"),
        ([returned(*range(5)), moved("lost"), returned(*range(6, 10), who="b")], {}, "lost"),
        ([returned(*range(5))], {}, "never returned"),
        ([returned(*range(5))], {0: 7}, "committed 7"),
        ([returned(*range(10)), told(10)], {0: 8}, "told 10"),
        ([returned(*range(5)), seen(5), returned(*range(5, 10))], {}, ""),
        ([returned(*range(5)), seen(6), returned(*range(5, 10))], {}, "committed 6 of partition 0"),
    ],
)
def test_the_checker_of_readers(events, committed, words):
    complete = words == "never returned" or not words
    found = checker.check_readers(ROLES["cooperative"], events, LOG, committed, complete)
    assert (words in " ".join(found)) if words else not found


def writer(*events: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"what": "name", "who": "w"}, *events]


def acked(*rows: tuple[int, int]) -> dict[str, Any]:
    return {"what": "acked", "rows": [[0, *row] for row in rows]}


def transaction(outcome: str, *numbers: int) -> dict[str, Any]:
    return {"what": "transaction", "outcome": outcome, "rows": [[0, n] for n in numbers]}


@pytest.mark.parametrize(
    ("role", "lines", "log", "words"),
    [
        ("idempotent producer", [acked((3, 3))], LOG, ""),
        ("idempotent producer", [acked((11, 11))], LOG, "lost"),
        ("idempotent producer", [acked((3, 4))], LOG, "is not at 4"),
        ("idempotent producer", [], {0: [(0, "w:0:0"), (1, "w:0:0")]}, "2 times"),
        ("plain producer", [], {0: [(0, "w:0:0"), (1, "w:0:0")]}, ""),
        ("transactional producer", [acked((3, 3)), transaction("aborted", 3)], LOG, "aborted"),
        ("transactional producer", [transaction("committed", 3, 12)], LOG, "lost"),
        ("transactional producer", [transaction("unknown", 3, 12)], LOG, "half"),
        ("transactional producer", [acked((12, 12)), transaction("aborted", 12)], LOG, ""),
    ],
)
def test_the_checker_of_writers(role, lines, log, words):
    found = checker.check_writer(ROLES[role], writer(*lines), log)
    assert (words in " ".join(found)) if words else not found


def test_what_only_a_leader_has_acknowledged_may_be_lost_with_it():
    lost = writer(acked((11, 11)))

    assert ROLES["acks-1 producer"].is_of_leaders and FAULTS["leader killed"].moves_leaders
    assert not FAULTS["leader silent"].moves_leaders
    assert checker.check_writer(ROLES["acks-1 producer"], lost, LOG, may_lose=True) == []
    assert checker.check_writer(ROLES["acks-1 producer"], lost, LOG) != []


def test_the_checker_of_copies():
    assert checker.check_copies(LOG, {0: [*LOG[0][:5], *LOG[0][3:]]}) == []
    assert "lost: 1" in checker.check_copies(LOG, {0: LOG[0][1:]})[0]
    assert "another order" in checker.check_copies(LOG, {0: LOG[0][::-1]})[0]


def test_the_checker_of_ends():
    end = {"what": "end", "over": 0.1, "longest": "poll", "threads": [], "warnings": []}
    end |= {"sockets": 0, "raised": []}

    assert checker.check_ends([end], False) == []
    assert checker.check_ends([], False) == ["the program did not come to its end"]
    for change, words in (
        ({"over": 30.0}, "poll took 30.0 s longer"),
        ({"threads": ["kafka-producer"]}, "threads left"),
        ({"sockets": 2}, "2 sockets left"),
        ({"warnings": ["unclosed"]}, "warnings left"),
        ({"raised": ["a thread: KeyError: 1"]}, "raised where nobody sees it"),
    ):
        assert words in checker.check_ends([{**end, **change}], False)[0]
    assert "3 futures" in checker.check_ends([{"what": "open", "count": 3}, end], False)[0]


# -- what is kept


def test_the_page_has_what_has_passed_by_revision_and_what_is_open_with_its_reason(
    tmp_path, monkeypatch
):
    """Whoever goes on with the exam need not run again what has passed."""
    rows = [
        {"role": "admin", "fault": "nothing", "revision": "a1", "problem": "lost"},
        {"role": "admin", "fault": "nothing", "revision": "b2", "problem": ""},
        {
            "role": "static",
            "fault": "fork",
            "revision": "b2",
            "problem": "it hangs | for ever\nmore",
        },
        {"role": "admin", "fault": "nothing", "revision": "c3", "problem": "the exam failed: x"},
    ]
    before = {
        ("static", "fork"): page.Ended("a1", "it hangs", "a lock"),
        ("admin", "fork"): page.Ended("a1", ""),
    }
    monkeypatch.setattr(page, "changes_since", {"a1": 7, "b2": 0}.get)

    page.save("kbroker", page.merge(before, rows), tmp_path)
    page.write({"kbroker": [*before, ("admin", "nothing"), ("admin", "late")]}, tmp_path)

    kept = page.load("kbroker", tmp_path)
    assert kept["admin", "nothing"] == page.Ended("b2", "")
    assert kept["static", "fork"].why == "a lock"
    text = (tmp_path / "README.md").read_text()
    assert "2 of 4 cells have passed" in text
    assert "| b2 | 1 | 0 |" in text and "| a1 | 1 | 7 |" in text
    assert "client changed last: 1 cell.\n\n- fork: admin\n" in text
    assert "| static | fork | b2 | it hangs \\| for ever | a lock |" in text
    assert "- late: every role" in text


def test_what_is_kept_counts_as_known_unless_a_later_run_says_otherwise(tmp_path):
    path = tmp_path / "results"
    path.write_text(json.dumps({"role": "admin", "fault": "fork", "problem": "x"}) + "\n")
    kept = {("admin", "fork"): page.Ended("a1", ""), ("static", "fork"): page.Ended("a1", "")}

    known = Results(path, kept).known

    assert known == {Cell("admin", "fork"): "x", Cell("static", "fork"): ""}


def test_cells_of_before_the_client_changed_are_run_again(tmp_path):
    kept = {("admin", "fork"): page.Ended("a1", ""), ("static", "fork"): page.Ended("b2", "")}
    results = Results(tmp_path / "results", kept)

    results.forget("a1".__eq__)

    assert results.known == {Cell("static", "fork"): ""}


def test_cell_in_which_the_exam_failed_is_run_again_though_it_has_passed_before(tmp_path):
    row = {"role": "admin", "fault": "fork", "problem": "the exam failed: x", "revision": "b2"}
    path = tmp_path / "results"
    path.write_text(json.dumps(row) + "\n")

    known = Results(path, {("admin", "fork"): page.Ended("a1", "")}).known

    assert known == {Cell("admin", "fork"): "the exam failed: x"}


def test_revision_is_outdated_by_a_change_of_the_client_and_if_nobody_knows_it(
    tmp_path, monkeypatch
):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")

    def git(*words):
        own = ["-c", "user.name=n", "-c", "user.email=e"]
        return subprocess.run(
            ["git", *own, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "--quiet")
    revisions = []
    for name in ("kbroker/client/one.py", "kbroker/wire/two.py", "docs/three.md"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(name)
        git("add", name)
        git("commit", "--quiet", "-m", name)
        revisions.append(git("rev-parse", "HEAD"))
    monkeypatch.setattr(page, "ROOT", tmp_path)

    assert [page.changes_since(each) for each in revisions] == [1, 0, 0]
    assert [page.is_outdated(each) for each in (*revisions, "0" * 40)] == [True, False, False, True]


def test_the_checker_of_committed_offsets_that_were_seen():
    assert checker.check_seen([seen(3), seen(3), seen(5)]) == []
    assert "from 5 to 4" in checker.check_seen([seen(3), seen(5), seen(4), seen(6)])[0]


# -- conditions


def usage(*rows: tuple[float, float, float]) -> list[dict[str, Any]]:
    """Time, processor time, memory."""
    return [
        {"what": "usage", "of": 1, "at": at, "cpu": cpu, "rss_mib": mib} for at, cpu, mib in rows
    ]


def test_a_program_that_waits_may_take_little_of_a_core():
    lines = usage((8, 0.0, 50), (12, 5.0, 50), (20, 5.1, 50), (30, 5.3, 50), (40, 9.0, 50))

    assert conditions.check_waiting(lines, 10, 31) == []
    assert conditions.core_share(lines, 10, 31) == pytest.approx(0.3 / 18)
    assert "of a core while waiting" in conditions.check_waiting(lines, 10, 41)[0]
    assert conditions.check_waiting([], 10, 41) == ["it did not tell of its processor time"]


def test_memory_must_be_steady_from_the_second_minute_of_a_failure_on():
    steady = usage(*((at, 0.0, 60.0 if at < 40 else 80.0) for at in range(0, 600, 5)))
    growing = usage(*((at, 0.0, 60.0 + at / 10) for at in range(0, 600, 5)))

    assert conditions.check_memory(steady, 0, 600) == []
    assert "grew by" in conditions.check_memory(growing, 0, 600)[0]
    assert conditions.check_memory(steady, 0, 60) == ["it did not tell of its memory"]


def test_an_error_must_say_which_broker_and_why():
    def error(text: str, at: float = 1.0) -> dict[str, Any]:
        return {"what": "error", "call": "flush", "error": text, "at": at}

    good = error("Timeout: waited 5 s for metadata; last: 127.0.0.1:9092: no response")
    bad = error("Timeout: waited 5 s for metadata")
    failed = {"what": "failed", "rows": [[0, 1, "ConnectionLost: gone"]], "at": 1.0}

    soon = error("Timeout: waited 0.5 s for acknowledgements")

    assert conditions.check_errors([good, error("RejectedError: no"), soon], 0, 2) == []
    assert "flush does not say who" in conditions.check_errors([bad, bad], 0, 2)[0]
    assert conditions.check_errors([bad], 2, 3) == []
    assert "send does not say who" in conditions.check_errors([failed], 0, 2)[0]
