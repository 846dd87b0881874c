"""``kbroker-audit`` over a topic whose producer, log and load disagree in known ways."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.clients.topics import create_topic, read_topic
from support.running.grids import some_of
from support.spark.load_records import FIRST_MS, STEP_MS, produce
from support.spark.postgresql import postgresql

from kbroker.cli import command
from kbroker.spark.audit.cli import main
from kbroker.spark.audit.counter import AuditCounter
from kbroker.spark.load.cli import main as load
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

COUNT = 300
MICROSECONDS_MAX = (1 << 63) - 1
IN_BUCKET = 600_000 // STEP_MS  # 30 records in each of ten buckets


def tell(broker: Broker, topic: str, messages: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for one in messages:
        producer.produce(topic, value=one)
    assert not producer.flush(30)


def counted(topic: str, extra: dict[int, int]) -> list[bytes]:
    """The counts of a producer of all records, and ``extra`` lost ones by record number."""
    counter = AuditCounter("producer", "test")
    for number in range(COUNT):
        counter.add(topic, FIRST_MS + number * STEP_MS, 1 + extra.get(number, 0))
    return counter.take()


@pytest.fixture
def audited(kbroker_broker: Broker, topic: str) -> tuple[Broker, str]:
    for name in (topic, f"{topic}-audit", f"{topic}-alerts"):
        create_topic(kbroker_broker.bootstrap, name, 1)
    produce(kbroker_broker.bootstrap, topic, [COUNT])
    return kbroker_broker, topic


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"audit-{abs(hash(request.node.name)) % 10**9}"


def audit(broker: Broker, topic: str, *more: str) -> int:
    where = ["--bootstrap", broker.bootstrap, "--topics", topic, "--master", "none", "--json"]
    sides = ["--audit-topic", f"{topic}-audit", "--alert-topic", f"{topic}-alerts"]
    return main([*where, *sides, *more])


def lines_and_errors(
    capsys: pytest.CaptureFixture[str],
) -> tuple[list[dict], str]:  # type: ignore[type-arg]
    said = capsys.readouterr()
    return [json.loads(line) for line in said.out.splitlines() if line[0] == "{"], said.err


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict]:  # type: ignore[type-arg]
    return lines_and_errors(capsys)[0]


def test_complete_topic_is_complete_in_every_tier_and_repeats_count_once(
    audited: tuple[Broker, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker, topic = audited
    messages = counted(topic, {})
    tell(broker, f"{topic}-audit", [*messages, *messages[:3], b"not a message"])
    where = ["--bootstrap", broker.bootstrap, "--topics", topic, "--dest", str(tmp_path)]
    load(["run", *where, "--master", "none", "--quiet"])

    code = audit(broker, topic, "--load", str(tmp_path), "--recount")
    said = capsys.readouterr()

    found = [json.loads(line) for line in said.out.splitlines()]
    assert code == 0
    assert len(found) == 20
    assert {(one["tier"], one["count"], one["expected"]) for one in found} == {
        ("load", IN_BUCKET, IN_BUCKET),
        ("broker", IN_BUCKET, IN_BUCKET),
    }
    assert "kbroker-audit: 1 message of" in said.err


def test_lost_records_are_an_alert_with_their_bucket(
    audited: tuple[Broker, str], capsys: pytest.CaptureFixture[str]
) -> None:
    broker, topic = audited
    tell(broker, f"{topic}-audit", counted(topic, {35: 4}))

    code = audit(broker, topic, "--recount", "--threshold", "0.999")

    wrong = [one for one in lines(capsys) if one["state"] != "complete"]
    alerts = [json.loads(one.value) for one in read_topic(broker.bootstrap, f"{topic}-alerts")]
    assert code == 2
    assert [(one["bucket_ms"], one["count"], one["expected"]) for one in wrong] == [
        (FIRST_MS + 600_000, IN_BUCKET, IN_BUCKET + 4)
    ]
    assert [(one["topic"], one["tier"], one["state"]) for one in alerts] == [
        (topic, "broker", "missing")
    ]


def test_alerts_that_cannot_be_written_do_not_hide_what_is_missing(
    audited: tuple[Broker, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """An exit code of 1 would mean that the audit failed, and a script that expects 2 would miss
    the alert.
    """
    broker, topic = audited
    tell(broker, f"{topic}-audit", counted(topic, {35: 4}))

    lost = audit(broker, topic, "--recount", "--alert-topic", "no topic")
    said = capsys.readouterr()
    late = ["--recount", "--deadline-minutes", "99999999"]
    nothing = audit(broker, topic, *late, "--alert-topic", "no topic")

    assert (lost, nothing) == (2, 0)
    assert [json.loads(line)["state"] for line in said.out.splitlines()].count("missing") == 1
    assert said.err.startswith("kbroker-audit: cannot write alerts to no topic: ")
    assert "Use another topic with --alert-topic" in said.err
    assert capsys.readouterr().err == ""


def test_late_records_wait_for_their_deadline(
    audited: tuple[Broker, str], capsys: pytest.CaptureFixture[str]
) -> None:
    broker, topic = audited
    tell(broker, f"{topic}-audit", counted(topic, {35: 4}))

    code = audit(broker, topic, "--recount", "--deadline-minutes", "99999999")

    assert code == 0
    assert [one["state"] for one in lines(capsys) if one["state"] != "complete"] == ["waiting"]


def write_one_more(broker: Broker, topic: str) -> None:
    """A record that is missing in the producers' counts."""
    tell(broker, f"{topic}-audit", counted(topic, {}))
    again = Producer({"bootstrap.servers": broker.bootstrap})
    again.produce(topic, value=b"x", timestamp=FIRST_MS)
    again.flush(30)


def test_records_that_came_twice_are_a_surplus(
    audited: tuple[Broker, str], capsys: pytest.CaptureFixture[str]
) -> None:
    broker, topic = audited
    write_one_more(broker, topic)

    code = audit(broker, topic, "--recount")

    wrong = [one for one in lines(capsys) if one["state"] != "complete"]
    assert code == 0
    assert [(one["state"], one["bucket_ms"], one["count"]) for one in wrong] == [
        ("surplus", FIRST_MS, IN_BUCKET + 1)
    ]


def test_summary_calls_a_surplus_by_its_name(
    audited: tuple[Broker, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It was counted as incomplete."""
    broker, topic = audited
    write_one_more(broker, topic)
    where = ["--bootstrap", broker.bootstrap, "--topics", topic, "--master", "none"]

    main([*where, "--audit-topic", f"{topic}-audit", "--recount"])

    said = capsys.readouterr().out
    assert ", 0 of them incomplete, 1 with a surplus\n" in said


PLACES = ["dir", "delta", "iceberg", "sqlite", "postgresql"]


@pytest.fixture(params=some_of(PLACES, ["dir", "delta", "iceberg", "sqlite"]))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """``--sink`` and ``--dest`` of a load."""
    if request.param in ("delta", "iceberg"):
        pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[request.param])
    if request.param == "postgresql":
        with postgresql() as url:
            yield ["jdbc", url.replace("load@", "load:hush@")]
    elif request.param == "sqlite":
        yield ["jdbc", f"sqlite:{tmp_path}/warehouse.db"]
    else:
        yield [request.param, str(tmp_path)]


@pytest.mark.parametrize("place", some_of(PLACES, ["dir", "delta"]), indirect=True)
def test_load_is_counted_by_bucket_also_what_it_has_not_loaded_yet(
    audited: tuple[Broker, str], place: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    broker, topic = audited
    sink, dest = place
    run = ["run", "--bootstrap", broker.bootstrap, "--topics", topic, "--dest", dest]
    begun_ms = time.time() * 1000
    assert load([*run, "--sink", sink, "--master", "none", "--max-records", "100"]) == 0
    loaded = 100
    capsys.readouterr()

    code = audit(broker, topic, "--load", dest, "--recount")
    ended_ms = time.time() * 1000

    said = capsys.readouterr()
    found = [json.loads(line) for line in said.out.splitlines()]
    lags = {one["bucket_ms"] + 600_000 + one["lag_ms"] for one in found if one["count"]}
    assert code == 2
    assert [one["count"] for one in found] == [
        min(IN_BUCKET, max(0, loaded - first)) for first in range(0, COUNT, IN_BUCKET)
    ]
    assert all(int(begun_ms) <= at <= ended_ms for at in lags)
    assert "hush" not in said.out + said.err


def test_load_that_was_repeated_is_counted_by_what_is_there(
    audited: tuple[Broker, str], place: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    broker, topic = audited
    sink, dest = place
    run = ["run", "--bootstrap", broker.bootstrap, "--topics", topic, "--dest", dest]
    run += ["--sink", sink, "--master", "none"]
    assert load(run) == 0
    assert load([*run, "--from-offsets", json.dumps({topic: {"0": 0}})]) == 0
    capsys.readouterr()

    code = audit(broker, topic, "--load", dest, "--recount")

    found = lines(capsys)
    assert code == 0
    assert {(one["count"], one["state"]) for one in found} == {(IN_BUCKET, "complete")}
    assert len(found) == COUNT // IN_BUCKET


@pytest.mark.parametrize(
    ("place", "repeated"),
    some_of(
        itertools.product(PLACES, [False, True]),
        [("dir", False), ("dir", True), ("delta", True), ("iceberg", True), ("sqlite", True)],
    ),
    indirect=["place"],
)
def test_times_that_no_microseconds_can_hold_are_of_one_bucket_to_load_and_log(
    audited: tuple[Broker, str],
    place: list[str],
    repeated: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Counted by commits, or by files and rows; a load limits times to the last microsecond."""
    broker, topic = audited
    any_time = ["config", "set", "topic", topic, f"message.timestamp.after.max.ms={(1 << 63) - 1}"]
    assert command.main([*any_time, "-b", broker.bootstrap]) == 0
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for time_ms in (MICROSECONDS_MAX // 1000, MICROSECONDS_MAX // 1000 + 1, (1 << 63) - 1):
        producer.produce(topic, value=b"x", timestamp=time_ms)
    assert not producer.flush(30)
    sink, dest = place
    run = ["run", "--bootstrap", broker.bootstrap, "--topics", topic, "--dest", dest]
    run += ["--sink", sink, "--master", "none"]
    assert load(run) == 0
    if repeated:
        assert load([*run, "--from-offsets", json.dumps({topic: {"0": 0}})]) == 0
    capsys.readouterr()

    code = audit(broker, topic, "--load", dest, "--recount")
    found = lines(capsys)
    where = ["--bootstrap", broker.bootstrap, "--topics", topic, "--master", "none"]
    shown = main([*where, "--audit-topic", "", "--load", dest, "--recount", "--all"])

    assert code == shown == 0, found
    assert {one["state"] for one in found} == {"complete"}
    assert found[-1]["count"] == found[-1]["expected"] == 3
    assert f"{topic} 294247-01-10 04:00 load: complete, 3 of 3" in capsys.readouterr().out


@pytest.mark.parametrize("minutes", [10, 60])
def test_folders_that_were_deleted_by_hand_are_missing(
    audited: tuple[Broker, str], tmp_path: Path, minutes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the buckets of the commits, too, which know nothing of it."""
    broker, topic = audited
    run = ["run", "--bootstrap", broker.bootstrap, "--topics", topic, "--dest", str(tmp_path)]
    run += ["--master", "none", "--quiet"]
    assert load(run) == 0
    hours = sorted(tmp_path.glob("data/*/*/hr=*"))
    shutil.rmtree(hours[0])
    size = ["--bucket-minutes", str(minutes)]

    code = audit(broker, topic, "--load", str(tmp_path), "--recount", *size)

    found = lines(capsys)
    first = next(number for number, one in enumerate(found) if one["count"])
    assert code == 2
    assert len(hours) > 1 and 0 < first < len(found)
    assert [one["count"] for one in found] == [0] * first + [
        one["expected"] for one in found[first:]
    ]


def test_files_that_were_copied_by_hand_are_a_surplus(
    audited: tuple[Broker, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker, topic = audited
    run = ["run", "--bootstrap", broker.bootstrap, "--topics", topic, "--dest", str(tmp_path)]
    assert load([*run, "--master", "none", "--quiet"]) == 0
    path = min(tmp_path.glob("data/**/*.parquet"))
    shutil.copy(path, path.with_name("again.parquet"))

    code = audit(broker, topic, "--load", str(tmp_path), "--recount")

    found = lines(capsys)
    assert code == 0
    assert (found[0]["state"], found[0]["count"]) == ("surplus", 2 * IN_BUCKET)
    assert found[-1]["state"] == "complete"


def counted_by(tier: str, topic: str) -> list[bytes]:
    """The counts that an application of that tier reports for the first bucket."""
    counter = AuditCounter(tier, "test")
    counter.add(topic, FIRST_MS, IN_BUCKET)
    return counter.take()


def test_tiers_are_compared_in_the_topics_that_they_count(
    audited: tuple[Broker, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A consumer of another topic has lost nothing of this one, and another topic's producer is no
    reference for it.
    """
    broker, topic = audited
    other = f"{topic}-other"
    create_topic(broker.bootstrap, other, 1)
    messages = [*counted_by("producer", other), *counted_by("billing", other)]
    tell(broker, f"{topic}-audit", messages)
    produce(broker.bootstrap, other, [IN_BUCKET])

    code = audit(broker, topic, "--topics", f"{topic},{other}", "--recount")
    found, errors = lines_and_errors(capsys)
    alone = audit(broker, topic, "--recount")
    nothing, said = lines_and_errors(capsys)

    assert code == alone == 0
    assert (nothing, errors) == ([], "")
    assert "nothing to compare: there are only counts of broker. Use --load" in said
    assert {(one["topic"], one["tier"], one["reference"], one["state"]) for one in found} == {
        (other, "broker", "producer", "complete"),
        (other, "billing", "producer", "complete"),
    }


def test_smaller_buckets_of_applications_lie_within_those_of_the_audit(
    audited: tuple[Broker, str], capsys: pytest.CaptureFixture[str]
) -> None:
    broker, topic = audited
    tell(broker, f"{topic}-audit", counted(topic, {}))

    by_hours = audit(broker, topic, "--recount", "--bucket-minutes", "60")
    found = lines(capsys)
    by_minutes = audit(broker, topic, "--recount", "--bucket-minutes", "1")

    assert by_hours == 0 and by_minutes == 1
    assert [(one["state"], one["count"]) for one in found] == [
        ("complete", 6 * IN_BUCKET),
        ("complete", COUNT - 6 * IN_BUCKET),
    ]
    said = capsys.readouterr().err
    assert "the tier producer has reported only buckets that do not fit into" in said
    assert "use --bucket-minutes 10" in said


def test_buckets_that_do_not_fit_are_left_out_and_told(
    audited: tuple[Broker, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A single message suppressed all reports."""
    broker, topic = audited
    messages = counted(topic, {})
    other = json.loads(messages[0]) | {"guid": "another"}
    shifted = {"bucket_start": FIRST_MS + 1, "bucket_end": FIRST_MS + 600_001}
    hours = {"bucket_start": 0, "bucket_end": 3_600_000}
    tell(broker, f"{topic}-audit", [*messages, json.dumps(other | shifted).encode()])

    first = audit(broker, topic, "--recount")
    found, said = lines_and_errors(capsys)
    by_hours = [json.dumps(other | hours | {"guid": f"{n}", "tier": "shop"}) for n in range(2)]
    tell(broker, f"{topic}-audit", [one.encode() for one in by_hours])
    second = audit(broker, topic, "--recount")
    again, told = lines_and_errors(capsys)

    assert first == second == 0
    for report in (found, again):
        assert len(report) == COUNT // IN_BUCKET
        assert {(one["tier"], one["count"], one["reference"], one["state"]) for one in report} == {
            ("broker", IN_BUCKET, "producer", "complete")
        }
    left_out = f"of {topic}-audit left out: buckets that do not fit into 10-minute buckets"
    assert said == (
        f"kbroker-audit: 1 message {left_out}, such as the 10-minute buckets of tier producer "
        f"for {topic}\n"
    )
    assert told == (
        f"kbroker-audit: 3 messages {left_out}, such as the 60-minute buckets of tier shop "
        f"for {topic}; use --bucket-minutes 60 to count by those\n"
    )


def test_audit_without_a_reference_says_what_there_is(
    audited: tuple[Broker, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(*audited) == 1

    assert "no counts of the reference tier broker" in capsys.readouterr().err


def test_audit_of_a_pattern_without_a_topic_is_not_complete(
    audited: tuple[Broker, str], capsys: pytest.CaptureFixture[str]
) -> None:
    broker, _ = audited

    where = ["--bootstrap", broker.bootstrap, "--pattern", "nothing-like-.*"]
    code = main([*where, "--recount", "--master", "none"])

    assert code == 1
    assert "has a name that fully matches nothing-like-.*" in capsys.readouterr().err
