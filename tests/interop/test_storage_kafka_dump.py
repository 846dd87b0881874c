"""Apache Kafka's own dump tool reads what the log wrote, and finds nothing wrong with it."""

import subprocess

import pytest
from doubles.log_store import NOW_MS, LogStore, append, batch

pytestmark = [pytest.mark.interop, pytest.mark.java]

COMPLAINTS = ("mismatch", "corrupt", "exception", "not found", "out of order")


@pytest.fixture(scope="module")
def libraries():
    distribution = pytest.importorskip("perf.kafka_distribution")
    try:
        return distribution.kafka_libraries()
    except RuntimeError as error:
        pytest.skip(str(error))


def dump(libraries, directory) -> str:
    suffixes = (".log", ".index", ".timeindex", ".snapshot")
    files = [str(path) for path in sorted(directory.iterdir()) if path.suffix in suffixes]
    done = subprocess.run(
        ["java", "-cp", f"{libraries}/*", "kafka.tools.DumpLogSegments", "--deep-iteration",
         "--files", ",".join(files)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("clean", [True, False])
def test_dump_tool_reads_every_file(tmp_path, libraries, clean):
    store = LogStore(tmp_path)
    log = store.open(**{"segment.bytes": 30_000, "index.interval.bytes": 500})
    sequence = batches = 0
    for i in range(200):
        records = 1 + i % 7
        data = batch(
            records, timestamp=NOW_MS + i * 10 - i % 3 * 7, codec=i % 5, size=50,
            producer_id=77, producer_epoch=1, base_sequence=sequence,
        )  # fmt: skip
        append(log, data)
        sequence += records
        batches += 1
    if clean:
        store.stop(clean=True)

    text = dump(libraries, store.path())

    assert text.count("isvalid: true") == batches
    assert f"lastOffset: {sequence - 1}" in text
    assert "producerId: 77 producerEpoch: 1" in text
    assert not [word for word in COMPLAINTS if word in text.lower()]
    store.stop(clean=False)
