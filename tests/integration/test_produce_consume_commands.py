"""``kbroker produce`` and ``kbroker consume`` on a real broker, and the reader below them."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from kbroker.cli import command
from kbroker.client.admin import topics as topic_admin
from kbroker.client.batches.offsets import committed
from kbroker.client.batches.topic_reader import TopicReader
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import OffsetOutOfRange
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

FIRST_MS = 1_700_000_000_000
BINARY = b"\xff\x00"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"log.retention.ms": -1}, num_partitions=1) as started:
        yield started


@pytest.fixture
def cluster(broker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as opened:
        yield opened


@pytest.fixture
def run(broker, capsysbinary, monkeypatch):
    """Runs ``kbroker ...`` with bytes on stdin -> (exit code, stdout, stderr)."""
    monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVER", broker.bootstrap)

    def call(*words: str, given: bytes = b"") -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        code = command.main(words)
        captured = capsysbinary.readouterr()
        return code, captured.out, captured.err.decode()

    return call


def read(run, topic: str, *words: str) -> list[str]:
    code, out, err = run("consume", topic, "--exit", *words)
    assert (code, err) == (0, "")
    return out.decode().splitlines()


def test_lines_become_values(run):
    given = b"one\n\ntwo\r\nlast"

    assert run("produce", "lines", given=given) == (0, b"", "wrote 4 records to lines\n")

    assert run("consume", "lines", "--exit") == (0, b"one\n\ntwo\nlast\n", "")


def test_keys_headers_and_nulls(run):
    words = ["-K", "\\t", "-H", "a=1", "-H", "b=x=y", "-Z", "-z", "lz4"]

    assert run("produce", "keyed", *words, given=b"k1\tv1\nk2\t\n\tv3\n")[0] == 0

    assert read(run, "keyed", "-f", "%k|%v|%K|%S|%h\\n") == [
        "k1|v1|2|2|a=1,b=x=y",
        "k2||2|-1|a=1,b=x=y",
        "|v3|-1|2|a=1,b=x=y",
    ]


def test_what_consume_prints_as_json_produce_reads(run, cluster):
    topic_admin.create_topics(cluster, [topic_admin.NewTopic("from", 2)])
    rows = [
        {"key": "k", "value": "ü", "headers": [{"name": "h", "value": None}], "timestamp": 5000},
        {"key": None, "value": None, "partition": 1, "timestamp": 6000},
        {"key_base64": "/wA=", "value_base64": "/wA=", "partition": 1, "timestamp": 7000},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    assert run("produce", "from", "-f", "json", "-p", "0", given=lines)[0] == 0

    _, out, _ = run("consume", "from", "--exit", "-o", "json")
    assert run("produce", "to", "-f", "json", given=out)[0] == 0

    copies = [json.loads(line) for line in read(run, "to", "-o", "json")]
    assert copies == [json.loads(line) | {"topic": "to"} for line in out.splitlines()]
    assert [row["partition"] for row in copies] == [0, 0, 0]
    assert copies[0]["headers"] == [{"name": "h", "value": None}]
    assert (copies[1]["key"], copies[1]["value"]) == (None, None)
    assert (copies[2]["key_base64"], copies[2]["timestamp"]) == ("/wA=", 7000)


def test_records_are_a_table_or_yaml(run, cluster):
    topic_admin.create_topics(cluster, [topic_admin.NewTopic("rows", 1)])
    assert read(run, "rows", "-o", "yaml") == ["[]"]
    heading = "PARTITION  OFFSET  TIME                           KEY  HEADERS  VALUE"
    assert read(run, "rows", "-o", "table")[0].split() == heading.split()
    lines = [{"key": "a", "value": "b", "timestamp": 1000}, {"value": "c", "timestamp": 2000}]
    given = "".join(json.dumps(row) + "\n" for row in lines).encode()
    assert run("produce", "rows", "-f", "json", given=given)[0] == 0

    assert read(run, "rows", "-o", "table") == [
        heading,
        "0          0       1970-01-01T00:00:01.000+00:00  a             b",
        "0          1       1970-01-01T00:00:02.000+00:00  -             c",
    ]
    yaml = read(run, "rows", "-o", "yaml", "-n", "1")
    assert yaml[:2] + yaml[-2:] == [
        "- topic: rows",
        "  partition: 0",
        "  value: b",
        "  headers: []",
    ]


@pytest.fixture(scope="module")
def timed(broker) -> str:
    """A topic with ten records in each of two partitions, one a second."""
    with Cluster(broker.bootstrap) as cluster:
        topic_admin.create_topics(cluster, [topic_admin.NewTopic("timed", 2)])
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(20):
        at = FIRST_MS + 1000 * (number // 2)
        producer.produce("timed", b"%d" % number, partition=number % 2, timestamp=at)
    assert producer.flush(30) == 0
    return "timed"


@pytest.mark.parametrize(
    ("words", "offsets"),
    [
        ("", [*range(10), *range(10)]),
        ("--from-beginning -p 1", range(10)),
        ("--offset end", []),
        ("--offset 8", [8, 9, 8, 9]),
        ("--tail 1", [9, 9]),
        ("--tail 100 -p 0", range(10)),
        (f"--from-time {FIRST_MS + 7500}", [8, 9, 8, 9]),
        ("--from-time 2100-01-01", []),
        ("--since 1m", []),
        ("--since 5000w -p 0 -n 3", [0, 1, 2]),
        ("-n 12", [*range(10), 0, 1]),
    ],
)
def test_where_to_begin_and_to_end(run, timed, words, offsets):
    found = read(run, timed, *words.split(), "-f", "%o\\n")

    assert [int(line) for line in found] == list(offsets)


def test_without_exit_it_ends_with_the_last_record_it_shall_print(run, timed):
    code, out, _ = run("consume", timed, "-p", "0", "-n", "10")

    assert (code, len(out.splitlines())) == (0, 10)


def test_aborted_transactions_are_left_out_on_request(broker, run):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
    producer.init_transactions(30)
    for name, ends in (("no", producer.abort_transaction), ("yes", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce("transactions", name.encode())
        producer.flush(30)
        ends(30)

    assert read(run, "transactions") == ["no", "yes"]
    assert read(run, "transactions", "--read-committed") == ["yes"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_read(run, codec):
    given = b"".join(b"value %d\n" % number for number in range(500))

    assert run("produce", f"with-{codec}", "-z", codec, given=given)[0] == 0

    assert run("consume", f"with-{codec}", "--exit")[1] == given


def test_reader_keeps_its_position_where_it_cannot_read(cluster, timed):
    reader = TopicReader(cluster, {(timed, 0): 50})

    with pytest.raises(OffsetOutOfRange):
        list(reader.read({(timed, 0): 60}))

    assert reader.positions == {(timed, 0): 50}


def test_reader_continues_after_the_last_record_it_returned(cluster, timed):
    reader = TopicReader(cluster, {(timed, 0): 2})
    records = reader.read(reader.ends())
    next(records), next(records)
    records.close()

    assert [row.offset for row in reader.read(reader.ends())] == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        ("consume timedd", 1, "topic timedd does not exist; did you mean timed?"),
        ("consume timed -p 7", 1, "topic timed has no partition 7"),
        ("consume timed --offset 99", 1, "no partition has offset 99: timed-0 has [0, 10); "),
        ("consume timed --offset first", 2, "'first' is neither beginning, end nor an offset"),
        ("consume timed -n 0", 2, "'0' is too few"),
        ("consume timed -f %q", 2, "no field %q in a format: there are %%, %t"),
        ("consume timed -f \\q", 2, "a backslash is followed by n, t, r, 0 or a backslash"),
        ("consume timed -f %v -o json", 2, "--format does not go with -o json"),
        ("consume timed -f %v -o table", 2, "--format does not go with -o table"),
        ("consume timed --tial 1", 2, "unknown option --tial; did you mean --tail?"),
        ("produce timed -K :", 1, "line 2: no ':' after a key"),
        ("produce timed -f json", 1, "line 1: not JSON"),
        ("produce timed -p 7", 1, "topic timed has no partition 7"),
        ("produce timed -X ack=1", 2, "did you mean acks?"),
        ("produce timed -X acks", 2, "--property 'acks': write NAME=VALUE"),
        ("produce timed -H a", 2, "--header 'a': write NAME=VALUE"),
        ("produce timed -f json -k a", 2, "leave out --key, --key-separator and --tombstone"),
        ("produce timed -f %k=%v -K :", 2, "keys are in the format: leave out --key,"),
        ("produce timed -f %k%k", 2, "in which each of %k, %v, %T, %p, %h is at most once"),
        ("produce timed --tombstone -k a", 2, "with --tombstone, a line is a key"),
        ("produce timed --timestamp x", 2, "'x' is no time"),
        ("consume nope-*", 1, "no topic matches 'nope-*'"),
        ("consume timed --until x", 2, "'x' is neither end nor an offset"),
        ("consume timed -f %v -D x", 2, "leave out --key-separator and --delimiter"),
        ("consume timed -D x -o json", 2, "--delimiter does not go with -o json"),
        ("consume timed -g g --tail 1", 2, "--tail does not go with --group"),
        ("consume nope -g g", 1, "topic nope does not exist"),
        ("produce a/b", 1, "INVALID_TOPIC_EXCEPTION"),
    ],
)
def test_wrong_use_is_one_line(run, timed, words, code, line):
    found, _, err = run(*words.split(), given=b"a:b\nc\n")

    assert found == code
    assert line in err and err.count("\n") == 1


@pytest.fixture(scope="module")
def several(broker):
    """Records 0 to 9, one a second, in each of two partitions of two topics."""
    names = ["many-a", "many-b"]
    with Cluster(broker.bootstrap) as cluster:
        topic_admin.create_topics(cluster, [topic_admin.NewTopic(name, 2) for name in names])
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(10):
        for name in names:
            for partition in range(2):
                value = f"{name} {partition} {number}".encode()
                at = FIRST_MS + 1000 * number
                producer.produce(name, value, b"k", partition=partition, timestamp=at)
    assert producer.flush(30) == 0
    return names


@pytest.mark.parametrize(
    ("words", "topics", "numbers"),
    [
        (["many-a", "many-b", "--until", "end"], "ab", range(10)),
        (["many-*", "--until", "3"], "ab", range(3)),
        (["many-?", "--offset", "2", "--until", "4"], "ab", range(2, 4)),
        (["many-b", "--until-time", str(FIRST_MS + 4000)], "b", range(4)),
        (["many-b", "--until-time", "2030-01-01", "-e"], "b", range(10)),
        (["many-*", "--tail", "5", "-N", "2"], "ab", range(5, 7)),
        (["many-a", "-N", "3", "--until", "1"], "a", range(1)),
    ],
)
def test_several_topics_are_read_until_each_partition_has_its_end(
    run, several, words, topics, numbers
):
    code, out, err = run("consume", *words)

    assert (code, err) == (0, "")
    wanted = [
        f"many-{topic} {partition} {number}"
        for topic in topics
        for partition in range(2)
        for number in numbers
    ]
    assert sorted(out.decode().splitlines()) == sorted(wanted)


def test_group_continues_where_what_was_printed_ends(run, several, cluster):
    words = ["consume", "many-*", "-g", "readers"]

    code, first, _ = run(*words, "-n", "7")
    assert code == 0
    code, rest, err = run(*words, "--until", "end")

    assert (code, err) == (0, "")
    lines = [*first.decode().splitlines(), *rest.decode().splitlines()]
    assert len(first.splitlines()) == 7
    assert len(lines) == len(set(lines)) == 40
    assert {row.offset for row in committed(cluster, "readers").values()} == {10}
    assert run(*words, "-e") == (0, b"", "")


def test_keys_and_other_delimiters_are_printed_and_topics_are_a_column(run, several):
    _, out, _ = run("consume", "many-a", "-p", "0", "-N", "2", "-K", "=", "-D", "\\0")
    assert out == b"k=many-a 0 0\0k=many-a 0 1\0"

    table = read(run, "many-*", "-N", "1", "-o", "table")
    assert table[0].split()[:2] == ["TOPIC", "PARTITION"]
    assert {line.split()[0] for line in table[1:]} == {"many-a", "many-b"}


@pytest.mark.parametrize("size", [1, 4, 1 << 16])
def test_delimiters_are_found_wherever_pieces_end(run, monkeypatch, size):
    monkeypatch.setattr("kbroker.cli.verbs.produce._READ_BYTES", size)
    topic = f"divided-{size}"

    assert run("produce", topic, "-D", "==\\n", given=b"a\n==\nb==c==\n==\nlast")[0] == 0

    _, out, _ = run("consume", topic, "-e", "-D", "|")
    assert out == b"a\n|b==c||last|"


def test_tombstones_and_timestamps(run):
    words = ["--timestamp", "2023-11-14T22:13:20", "-H", "why=gone"]
    assert run("produce", "ended", "--tombstone", *words, given=b"k1\nk2\n")[0] == 0

    assert read(run, "ended", "-f", "%k|%S|%T|%h\\n") == [
        f"k1|-1|{FIRST_MS}|why=gone",
        f"k2|-1|{FIRST_MS}|why=gone",
    ]


def test_format_of_consume_is_read_by_produce(run, several):
    form = "%p %T %h [%k] %v"
    _, out, _ = run("consume", "many-a", "-e", "-f", form + "\\n")
    assert run("produce", "copied-by-format", "-p", "0", "-f", form + "\\n", given=out)[0] == 0

    assert read(run, "copied-by-format", "-f", form.replace("%p", "0") + "\\n") == [
        "0" + line[1:] for line in out.decode().splitlines()
    ]
