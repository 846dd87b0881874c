"""The command ``kbroker-load``, on a destination with problems."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from support.clients.topics import create_topic
from support.spark.load_records import all_places, places_in, produce
from support.spark.load_source import rows_in_table

from kbroker.spark.load.cli import main
from kbroker.testing import Broker

pytestmark = pytest.mark.integration


def run(broker: Broker, topic: str, dest: Path, *more: str) -> int:
    """``kbroker-load run`` in this process."""
    where = ["--bootstrap", broker.bootstrap, "--topics", topic, "--dest", str(dest)]
    return main(["run", *where, "--master", "none", *more])


@pytest.mark.parametrize("sink", ["dir", "delta", "iceberg"])
def test_load_from_a_commit_loads_again_what_came_after_it(
    kbroker_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str], sink: str
) -> None:
    topic = f"load-commit-{sink}"
    create_topic(kbroker_broker.bootstrap, topic, 1)
    after: list[set[Path]] = []
    for first in (0, 100, 200):
        produce(kbroker_broker.bootstrap, topic, [100], first=first)
        assert run(kbroker_broker, topic, tmp_path, "--quiet", "--sink", sink) == 0
        after.append(set(tmp_path.glob("data/**/*.parquet")))

    assert run(kbroker_broker, topic, tmp_path, "--from-commit", "1", "--sink", sink) == 0

    assert re.match(rf"commit 4 {topic}: 200 rows again,", capsys.readouterr().out)
    assert main(["status", "--files", "--dest", str(tmp_path), "--sink", sink]) == 0
    files = {tmp_path / line for line in capsys.readouterr().out.splitlines() if "/" in line}
    assert after[0] and after[2] & files == after[0]
    if sink == "dir":
        assert places_in(tmp_path, topic) == all_places([300])
    else:
        found = rows_in_table(tmp_path, sink)
        assert found == Counter((topic, 0, offset) for offset in range(300))
    assert main(["verify", "--dest", str(tmp_path), "--sink", sink]) == 0


def test_load_from_a_commit_leaves_other_topics_of_the_destination_alone(
    kbroker_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are on the broker as well, but were not requested."""
    one, other = "load-commit-one", "load-commit-other"
    for topic in (one, other):
        create_topic(kbroker_broker.bootstrap, topic, 1)
        for first in (0, 100):
            produce(kbroker_broker.bootstrap, topic, [100], first=first)
            assert run(kbroker_broker, topic, tmp_path, "--quiet") == 0

    code = run(kbroker_broker, one, tmp_path, "--from-commit", "1")

    said = capsys.readouterr()
    assert code == 0, said.err
    assert re.match(rf"commit 5 {one}: 100 rows again,", said.out)
    assert places_in(tmp_path, one) == places_in(tmp_path, other) == all_places([200])


def test_log_that_is_lost_is_made_from_the_files_and_the_load_continues(
    kbroker_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(kbroker_broker.bootstrap, "load-lost", 1)
    produce(kbroker_broker.bootstrap, "load-lost", [200])
    assert run(kbroker_broker, "load-lost", tmp_path) == 0
    shutil.rmtree(tmp_path / "_kbroker")
    produce(kbroker_broker.bootstrap, "load-lost", [50], first=200)

    refused = run(kbroker_broker, "load-lost", tmp_path)
    told = capsys.readouterr().err
    recovered = main(["recover", "--dest", str(tmp_path)])
    said = capsys.readouterr().out
    loaded = run(kbroker_broker, "load-lost", tmp_path)

    assert (refused, recovered, loaded) == (1, 0, 0)
    assert "recover" in told
    assert re.fullmatch(r"a log of \d+ files and 200 rows\n", said)
    assert places_in(tmp_path, "load-lost") == all_places([250])


def test_verify_of_a_damaged_file_names_it_and_ends_with_3(
    kbroker_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(kbroker_broker.bootstrap, "load-rot", 1)
    produce(kbroker_broker.bootstrap, "load-rot", [50])
    assert run(kbroker_broker, "load-rot", tmp_path, "--partition-by", "none") == 0
    (path,) = tmp_path.glob("data/**/*.parquet")
    damaged = bytearray(path.read_bytes())
    damaged[100] ^= 1
    path.write_bytes(damaged)
    capsys.readouterr()

    codes = [main(["verify", "--dest", str(tmp_path), *more]) for more in ([], ["--quick"])]

    assert codes == [3, 3]
    said = capsys.readouterr().out
    name = path.relative_to(tmp_path)
    assert said.count(f"{name}: its checksum") == 2 and said.count(", 1 finding\n") == 2
