"""One consumer of a mirror, between a consumer and a producer that the test holds in its hands."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.client import ConsumerRecord, OffsetAndMetadata, TopicPartition
from kbroker.client.errors import (
    ProtocolViolation,
    SettingRefused,
    Timeout,
    UnreachableError,
    WakeupError,
)
from kbroker.client.mirror import stream as streams
from kbroker.client.mirror.mirror_maker import topic_pattern
from kbroker.client.mirror.plugins import HandlerFailed, message_handler, rebalance_listener
from kbroker.client.mirror.stream import (
    MirrorCounts,
    MirrorPlan,
    MirrorStream,
    SendFailed,
    unchanged,
)
from kbroker.client.producer.records import ProducerRecord

pytestmark = pytest.mark.unit

A = TopicPartition("t", 0)


class Future:
    def __init__(self) -> None:
        self.ended = False
        self.error: Exception | None = None

    def done(self) -> bool:
        return self.ended

    def exception(self, timeout: float | None = None) -> Exception | None:
        return self.error


class Producer:
    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.futures: list[Future] = []

    def send(self, *fields: Any) -> Future:
        self.sent.append(fields)
        self.futures.append(Future())
        return self.futures[-1]

    def flush(self, timeout: float) -> None:
        if not all(future.ended for future in self.futures):
            raise Timeout("acknowledgements", timeout)

    def end(self, error: Exception | None = None) -> None:
        for future in self.futures:
            future.ended, future.error = True, error


class Consumer:
    """Returns what is in ``polls``, an error if it is one; then a wake-up."""

    def __init__(self, settings: Any) -> None:
        self.polls: list[Any] = []
        self.at: dict[TopicPartition, int] = {A: 0}
        self.commits: list[dict[Any, int]] = []
        self.listener: Any = None
        self.stored: dict[Any, Any] = {}
        self.sought: list[Any] = []
        self.topics = ["t", "other"]
        self.ends: int | None = 3

    def list_topics(self) -> dict[str, set[int]]:
        return {name: {0} for name in self.topics}

    def subscribe(self, pattern: Any, listener: Any) -> None:
        self.listener = listener

    def poll(self, timeout: float = 0.0, limit: int = 500) -> list[ConsumerRecord]:
        if not self.polls or not limit:
            return []
        found = self.polls.pop(0)
        if isinstance(found, Exception):
            raise found
        self.at[A] += len(found)
        return found

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {key: OffsetAndMetadata(at) for key, at in self.at.items()}

    def assignment(self) -> set[TopicPartition]:
        return set(self.at)

    def current_lag(self, key: TopicPartition) -> int:
        return 7

    def end_offsets(self, keys: Any, timeout: float) -> dict[TopicPartition, int]:
        if self.ends is None:
            raise Timeout("offsets", timeout)
        return dict.fromkeys(keys, self.ends)

    def committed(self, keys: Any) -> dict[Any, Any]:
        return {key: self.stored.get(key) for key in keys}

    def seek_to_beginning(self, *keys: Any) -> None:
        self.sought += keys

    def commit_async(self, offsets: Any, callback: Callable[..., Any]) -> None:
        self.commits.append({tuple(key): row.offset for key, row in offsets.items()})
        callback(offsets, None)

    def commit_sync(self, offsets: Any) -> None:
        self.commits.append({tuple(key): row.offset for key, row in offsets.items()})

    def wakeup(self) -> None: ...

    def forget_wakeup(self) -> None: ...

    def close(self) -> None:
        self.listener.on_partitions_revoked([A])


class Bench:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, **plan: Any) -> None:
        monkeypatch.setattr(streams, "KafkaConsumer", Consumer)
        monkeypatch.setattr(streams, "_RETRY_S", 0.0)
        monkeypatch.setattr(streams, "_GIVE_UP_S", 0.05)
        self.producer = Producer()
        settings = {"topics": re.compile("t"), "commit_s": 0.0, "handler": unchanged, **plan}
        self.stream = MirrorStream(
            "one",
            {"bootstrap.servers": "source:9092"},
            [self.producer],  # type: ignore[list-item]
            MirrorPlan(**settings),
            lambda: None,
        )
        self.consumer: Any = self.stream._consumer

    def turn(self, *polls: Any) -> None:
        self.consumer.polls += polls
        for _ in range(max(1, len(polls))):
            self.stream._turn()

    def close(self) -> None:
        self.stream.stop()
        self.stream._run()


def records(first: int, count: int) -> list[ConsumerRecord]:
    return [
        ConsumerRecord("t", 0, first + n, b"v%d" % (first + n), b"k", timestamp=5)
        for n in range(count)
    ]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_nothing_is_committed_before_it_is_acknowledged(bench: Bench) -> None:
    bench.turn(records(0, 3))
    bench.turn()
    assert bench.consumer.commits in ([], [{("t", 0): 0}])
    assert bench.producer.sent[0] == ("t", b"v0", b"k", None, None, 5)

    bench.producer.futures[0].ended = True
    bench.turn()
    assert {("t", 0): 3} not in bench.consumer.commits, "two are missing"
    bench.producer.end()
    bench.turn()
    bench.turn()
    assert bench.consumer.commits[-1] == {("t", 0): 3}
    commits = len(bench.consumer.commits)
    bench.turn()
    assert len(bench.consumer.commits) == commits, "nothing has moved"


def test_partitions_are_given_up_with_what_is_acknowledged_only(bench: Bench) -> None:
    bench.turn(records(0, 3))
    bench.producer.end()
    bench.turn(records(3, 2))
    bench.close()

    assert {("t", 0): 3} in bench.consumer.commits
    assert {("t", 0): 5} not in bench.consumer.commits


def test_the_end_commits_all_that_is_acknowledged(bench: Bench) -> None:
    bench.turn(records(0, 3))
    bench.producer.end()
    bench.close()

    assert bench.consumer.commits[-1] == {("t", 0): 3}
    assert bench.stream.error is None


def test_lost_partitions_are_not_committed(bench: Bench) -> None:
    bench.turn(records(0, 3))
    bench.turn()
    bench.consumer.at.clear()
    bench.consumer.listener.on_partitions_lost([A])
    bench.producer.end()
    bench.turn()

    assert {("t", 0): 3} not in bench.consumer.commits


def test_failed_record_ends_the_mirror_without_a_commit(bench: Bench) -> None:
    bench.turn(records(0, 3))
    bench.turn()
    bench.producer.end(ValueError("too large"))
    bench.consumer.polls.append(records(3, 1))
    bench.stream._run()
    assert isinstance(bench.stream.error, SendFailed) and "too large" in str(bench.stream.error)

    assert {("t", 0): 3} not in bench.consumer.commits


def test_failed_record_is_dropped_and_counted_if_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(monkeypatch, abort_on_send_failure=False)
    bench.turn(records(0, 3))
    bench.producer.end(ValueError("too large"))
    bench.turn()
    bench.turn()

    assert bench.stream.counts().dropped == 3
    assert bench.consumer.commits[-1] == {("t", 0): 3}
    assert "too large" in caplog.text


def test_failed_handler_names_the_record_and_commits_nothing_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def handler(record: Any) -> list[ProducerRecord]:
        if record.offset == 4:
            raise KeyError("field")
        return unchanged(record)

    bench = Bench(monkeypatch, handler=handler)
    bench.turn(records(0, 3))
    bench.producer.end()
    bench.turn()
    with pytest.raises(HandlerFailed, match="t-0 offset 4: KeyError: 'field'") as raised:
        bench.turn(records(3, 3))
    bench.stream.error = raised.value
    bench.producer.end()
    bench.close()

    assert all(offset <= 3 for commit in bench.consumer.commits for offset in commit.values())


def test_handler_may_send_none_or_several_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(record: Any) -> list[ProducerRecord] | None:
        if record.offset:
            return None
        return [ProducerRecord(f"copy-{n}", record.value, partition=n) for n in (1, 2)]

    bench = Bench(monkeypatch, handler=handler)
    bench.turn(records(0, 3))

    assert [(row[0], row[4]) for row in bench.producer.sent] == [("copy-1", 1), ("copy-2", 2)]
    assert bench.stream.counts().records == 3


def test_source_that_cannot_be_read_is_told_once_and_tried_on(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    down = UnreachableError({"source:9092": "refused"})
    with caplog.at_level(logging.WARNING):
        bench.turn(down, down, WakeupError("x"), down, records(0, 1), records(1, 1))

    assert caplog.text.count("cannot read from source:9092") == 1
    assert caplog.text.count("reading from source:9092 again") == 1
    assert len(bench.producer.sent) == 2


def test_source_that_sends_nonsense_is_tried_on(bench: Bench) -> None:
    """Such as a response that came twice on its way."""
    nonsense = ProtocolViolation("source:9092", "not a Kafka response")
    bench.turn(nonsense, records(0, 1))

    assert bench.stream.error is None
    assert len(bench.producer.sent) == 1


def test_held_stream_reads_nothing_and_stays_a_member(bench: Bench) -> None:
    bench.stream.hold(True)
    bench.turn(records(0, 1))
    assert not bench.producer.sent
    bench.stream.hold(False)
    bench.turn()
    assert len(bench.producer.sent) == 1


def test_read_that_is_under_way_ends_when_the_stream_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = SimpleNamespace(held=False, is_full=False, missing=None)
    monkeypatch.setattr(Producer, "forwarder", lambda self, **how: one, raising=False)
    bench = Bench(monkeypatch, handler=None)
    seen: list[bool] = []

    def forward(to: Callable[[str, int], Any], timeout: float) -> list[Any]:
        for held in (True, False):
            bench.stream.hold(held)
            seen.append(to("t", 0).held)
        return []

    bench.consumer.forward = forward
    bench.turn()
    assert seen == [True, False]


def test_lag_of_a_held_stream_is_asked_for(bench: Bench) -> None:
    bench.turn(records(0, 2))
    assert bench.stream.counts().lag == 7, "as of the last fetch"
    bench.stream.hold(True)
    for ends, lag in ((3, 1), (9, 7), (None, 7)):
        bench.consumer.ends = ends
        bench.stream._lag_at = 0.0
        bench.turn()
        assert bench.stream.counts().lag == lag


def test_sum_of_counts_has_the_longest_wait() -> None:
    total = MirrorCounts(1, 2, 3, 4, 5, 0.0).plus(MirrorCounts(1, 1, 1, 1, 1, 2.5))
    assert total == (2, 3, 4, 5, 6, 2.5)


def test_topic_that_appears_later_is_read_from_its_beginning(bench: Bench) -> None:
    bench.turn()
    later, known = TopicPartition("later", 0), TopicPartition("later", 1)
    bench.consumer.stored[known] = OffsetAndMetadata(4)
    bench.consumer.listener.on_partitions_assigned([A, later, known])

    assert bench.consumer.sought == [later]


def test_waiting_since_is_the_oldest_that_is_not_acknowledged(bench: Bench) -> None:
    before = time.monotonic()
    bench.turn(records(0, 1))
    assert bench.stream.waiting_since is not None and bench.stream.waiting_since >= before
    bench.producer.end()
    bench.turn()
    assert bench.stream.waiting_since is None


# -- what a user plugs in


class Doubler:
    def __init__(self, arguments: str = "1") -> None:
        self.times = int(arguments)

    def handle(self, record: Any) -> list[Any]:
        return [record] * self.times


class Told:
    def on_partitions_assigned(self, partitions: Any) -> None: ...


def test_handlers_are_functions_or_classes_with_arguments():
    here = __name__
    assert message_handler(f"{here}.Doubler", "3")("x") == ["x"] * 3
    assert message_handler(f"{here}:Doubler", None)("x") == ["x"]
    assert message_handler(f"{here}.records", None) is records


@pytest.mark.parametrize(
    ("path", "arguments", "why"),
    [
        ("no.such.module.x", None, "cannot load"),
        (f"{__name__}.nothing", None, "cannot load"),
        (f"{__name__}.records", "3", "takes no arguments"),
        (f"{__name__}.Doubler", "many", "ValueError"),
        (f"{__name__}.Told", None, "no method handle"),
    ],
)
def test_handler_that_cannot_be_used_is_refused(path, arguments, why):
    with pytest.raises(SettingRefused, match=why):
        message_handler(path, arguments)


def test_listener_needs_one_of_the_methods():
    assert isinstance(rebalance_listener(f"{__name__}.Told", None), Told)
    with pytest.raises(SettingRefused, match="has none of"):
        rebalance_listener(f"{__name__}.Doubler", None)


def test_listener_of_the_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    class Listener:
        def on_partitions_assigned(self, partitions: Any) -> None:
            told.append(("assigned", partitions))

        def on_partitions_revoked(self, partitions: Any) -> None:
            told.append(("revoked", partitions))

    bench = Bench(monkeypatch, listener=Listener())
    bench.turn()
    bench.consumer.listener.on_partitions_assigned([A])
    bench.consumer.listener.on_partitions_lost([A])
    assert told == [("assigned", [A]), ("revoked", [A])]


@pytest.mark.parametrize(
    ("text", "excluded", "names"),
    [
        ("*", None, {"a", "b", "ab", "a.b"}),
        ("a,b", None, {"a", "b"}),
        (" 'a|b' ", None, {"a", "b"}),
        ("a.*", None, {"a", "ab", "a.b"}),
        ("a.*", "ab,b", {"a", "a.b"}),
        ("*", "a", {"b", "ab", "a.b"}),
        ("*", "a.*", {"b"}),
    ],
)
def test_regular_expressions_are_read_as_java_reads_them(text, excluded, names):
    pattern = topic_pattern(text, excluded)
    assert {name for name in ("a", "b", "ab", "a.b") if pattern.fullmatch(name)} == names


@pytest.mark.parametrize(("text", "excluded"), [("a(", None), ("a", "[b")])
def test_invalid_regular_expression_is_named(text, excluded):
    with pytest.raises(SettingRefused, match="invalid regex"):
        topic_pattern(text, excluded)
