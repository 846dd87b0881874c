"""``kafka-dump-log`` beside Kafka's own, on the files of both brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.beside import BESIDE, Beside
from support.brokers.kafka_servers import Kafka39
from support.storage.log_files import flip, legacy_message, make_partition
from support.storage.log_store import LogStore, append, batch

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.record.compression import GZIP, compress
from kbroker.testing import Broker

pytestmark = BESIDE

DUMP = "kafka-dump-log", "org.apache.kafka.tools.DumpLogSegments"
DEEP, DATA = ("--deep-iteration",), ("--print-data-log",)
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


class Dump:
    """Runs both on the files of a partition; what both print."""

    def __init__(self) -> None:
        self._both = Beside("")

    def close(self) -> None:
        self._both.close()

    def __call__(self, where: Path, *words: str, suffixes: tuple[str, ...] = SUFFIXES) -> str:
        paths = [path for path in sorted(where.iterdir()) if path.suffix in suffixes]
        assert paths, where
        return self.files(",".join(map(str, paths)), *words)

    def files(self, paths: str, *words: str) -> str:
        ran = self._both.same(*DUMP, "--files", paths, *words, bootstrap=False)
        assert ran.code == 0, ran.stderr
        return ran.stdout


@pytest.fixture(scope="module")
def dump() -> Iterator[Dump]:
    found = Dump()
    yield found
    found.close()


@pytest.mark.parametrize(
    "words",
    [
        (), DEEP, DATA, ("--verify-index-only",), ("--index-sanity-check",),
        (*DEEP, "--skip-record-metadata"), (*DATA, "--skip-record-metadata"),
        ("--max-bytes", "1000"), ("--key-decoder-class",), ("--value-decoder-class",
         "org.apache.kafka.tools.api.StringDecoder"),
    ],
)  # fmt: skip
def test_files_of_kbroker_are_dumped_alike(dump: Dump, tmp_path: Path, words) -> None:
    dump(make_partition(tmp_path), *words)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_are_dumped_alike(dump: Dump, tmp_path: Path, magic: int) -> None:
    inner = b"".join(legacy_message(magic, at if magic else 1 + at, b"v") for at in range(3))
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(
        legacy_message(magic, 0, b"plain")
        + legacy_message(magic, 3, compress(GZIP, inner), codec=GZIP)
        + legacy_message(magic, 4, b"torn")[:-1]
    )

    assert "invalid bytes at the end" in dump(tmp_path, *DATA)


def test_damaged_batch_is_dumped_alike(dump: Dump, tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    log = store.open()
    for _ in range(3):
        append(log, batch([b"value"], key=b"key"))
    store.stop(clean=True)
    path = store.path() / "00000000000000000000.log"
    flip(path, path.stat().st_size - 7)

    assert "isvalid: false" in dump(store.path(), suffixes=(".log",))


def test_internal_topics_are_dumped_alike(dump: Dump, tmp_path: Path) -> None:
    """Records of groups, committed offsets and transactions, as JSON."""
    home = tmp_path / "kbroker"
    broker = Broker(directory=home, offsets_topic_num_partitions=1,
                    transaction_state_log_num_partitions=1)  # fmt: skip
    with broker:
        bootstrap = {"bootstrap_servers": broker.bootstrap}
        for commits in (True, False):
            with KafkaProducer(transactional_id="pays", **bootstrap) as producer:
                producer.init_transactions()
                producer.begin_transaction()
                producer.send("orders", b"v", headers=[("h", b"x"), ("i", None)])
                (producer.commit_transaction if commits else producer.abort_transaction)()
        for protocol in ("classic", "consumer"):
            with KafkaConsumer(
                group_id=protocol,
                group_protocol=protocol,
                auto_offset_reset="earliest",
                **bootstrap,
            ) as consumer:
                consumer.subscribe(["orders"])
                seen = 0
                while not seen:
                    seen += len(consumer.poll(1.0))
                consumer.commit_sync()
    (data,) = {path.parent.parent for path in home.rglob("__consumer_offsets-0/*.log")}

    assert "headerKeys: [h,i]" in dump(data / "orders-0", *DATA)
    text = dump(data / "__consumer_offsets-0", "--offsets-decoder", suffixes=(".log",))

    assert '"subscription":{"topics":["orders"]' in text
    assert '{"type":"8","data":{"groupId":"consumer"' in text
    assert "payload: <DELETE>" in text
    text = dump(data / "__transaction_state-0", "--transaction-log-decoder", suffixes=(".log",))
    assert '"transactionalId":"pays"' in text


def test_files_of_kafka_are_dumped_alike(dump: Dump, tmp_path: Path) -> None:
    with Kafka39(tmp_path, [tmp_path / "data"]) as kafka:
        bootstrap = {"bootstrap_servers": kafka.bootstrap}
        with KafkaProducer(transactional_id="pays", **bootstrap) as producer:
            producer.init_transactions()
            for number in range(20):
                producer.begin_transaction()
                producer.send("orders", b"value %d" % number, key=b"key", partition=0)
                producer.flush()
                (producer.abort_transaction if number % 3 else producer.commit_transaction)()
        with KafkaConsumer(group_id="g", auto_offset_reset="earliest", **bootstrap) as consumer:
            consumer.subscribe(["orders"])
            while not consumer.poll(1.0):
                pass
            consumer.commit_sync()
    data = tmp_path / "data"
    assert "payload: value 18" in dump(data / "orders-0", *DATA)
    for number in range(3):
        for topic, word in (("__consumer_offsets", "offsets"), ("__transaction_state",
                            "transaction-log")):  # fmt: skip
            dump(data / f"{topic}-{number}", f"--{word}-decoder", suffixes=(".log",))


def test_wrong_use_of_dump_log_has_the_same_exit_code(dump: Dump) -> None:
    for words in ((), ("--bogus",), ("--files",), ("--deep-iteration",)):
        dump._both.same(*DUMP, *words, bootstrap=False)
