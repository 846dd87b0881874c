"""Clients configured for an earlier broker version: every version of a request still works."""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.drivers import CODECS, Message
from support.drivers.access import Access
from support.drivers.kafka_python import KafkaPython
from support.drivers.kcat import Kcat

pytestmark = pytest.mark.interop

# Batches of format 2 exist since 0.11; 2.7 and 4.3 are kbroker's reference releases.
RELEASES = (
    *((0, 11), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4), (2, 5), (2, 6), (2, 7)),
    *((2, 8), (3, 0), (3, 1), (3, 3), (3, 5), (3, 7), (3, 9), (4, 0), (4, 1), (4, 3)),
)
FIRST_WITH_ZSTD = (2, 1)
# Versions of Produce, Fetch and Metadata, for some of them: the pin really works.
SENT = {(0, 11): (3, 5, 4), (2, 0): (6, 8, 6), (2, 7): (8, 12, 9), (4, 3): (9, 12, 13)}
START_MS = 1_700_000_000_000


@pytest.mark.skipif(Kcat.missing(), reason="kcat is not installed")
def test_command_of_the_readme_tells_which_versions_are_served(access: Access) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    command = re.search(r"`kcat -b \.\.\. (-L -d \w+)`", readme)
    assert command is not None
    done = subprocess.run(
        ["kcat", *access.kcat(), *command[1].split()],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert "ApiKey Produce (0) Versions 0..13" in done.stderr


@pytest.fixture(
    params=[
        pytest.param(release, marks=[] if release in SENT else pytest.mark.slow)
        for release in RELEASES
    ],
    ids=lambda release: ".".join(map(str, release)),
)
def pinned(request: pytest.FixtureRequest, access: Access) -> Iterator[KafkaPython]:
    """kafka-python, configured for a broker of that release."""
    yield KafkaPython(access, request.param)


def test_pinned_kafka_python_does_all_it_could_then(
    pinned: KafkaPython, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Create, produce with every codec, search, read, alter, add partitions, delete records and
    delete.
    """
    release = tuple(map(int, pinned.name.split()[1].split(".")))
    pinned.create_topic(topic, 1)
    headers = (("release", pinned.name.encode()),)
    messages = [Message(b"v%d" % n, b"k", headers, START_MS + n) for n in range(20)]
    codecs = [codec for codec in CODECS if codec != "zstd" or release >= FIRST_WITH_ZSTD]
    for index, codec in enumerate(codecs):
        offsets = pinned.produce(topic, messages, codec=codec, idempotent=index % 2 == 0)
        assert offsets == list(range(20 * index, 20 * index + 20))
    count = 20 * len(codecs)
    caplog.set_level(logging.DEBUG, "kafka.net")
    pinned.produce(topic, [Message(b"logged")])
    records = pinned.fetch(topic, count, committed=True)
    if release in SENT:
        apis = ("Produce", "Fetch", "Metadata")
        sent = [re.findall(rf"\b{api}Request\(version=(\d+)", caplog.text) for api in apis]
        assert [set(map(int, versions)) for versions in sent] == [{n} for n in SENT[release]]
    assert [record.offset for record in records] == list(range(count))
    assert [(record.value, record.key, record.headers) for record in records] == [
        (message.value, message.key, message.headers) for message in messages
    ] * len(codecs)
    assert pinned.offset(topic, "latest") == count + 1
    assert pinned.offset(topic, START_MS + 7) == 7
    if release >= (1, 0):
        pinned.create_partitions(topic, 2)
        assert pinned.partitions(topic) == 2
    pinned.alter_topic_config(topic, "retention.ms", "3600000000000")
    assert pinned.topic_config(topic)["retention.ms"] == "3600000000000"
    assert pinned.delete_records(topic, 10) == 10
    assert pinned.offset(topic, "earliest") == 10
    pinned.delete_topic(topic)
