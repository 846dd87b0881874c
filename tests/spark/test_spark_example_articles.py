"""docs/examples/articles.py: two jobs in a chain, run unchanged."""

import importlib.util
import json
from pathlib import Path

import pytest
from support.clients.markers import await_markers
from support.clients.topics import Record, create_topic, fill, read_topic

from kbroker.client.connections.cluster import Cluster

pytestmark = pytest.mark.integration

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "docs" / "examples" / "articles.py"


@pytest.fixture(scope="module")
def articles():
    spec = importlib.util.spec_from_file_location("articles_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def article(number, section, hour, minute=0):
    fields = {
        "id": f"a{number}",
        "section": section,
        "title": f"Title {number}",
        "published": f"2026-11-20T{hour:02}:{minute:02}:00Z",
    }
    return Record(None, json.dumps(fields).encode())


@pytest.mark.slow
def test_articles_are_cleaned_and_counted_over_two_runs(spark, kbroker, articles, tmp_path):
    bootstrap = kbroker.bootstrap
    for name in (articles.RAW, articles.CLEAN, articles.COUNTS):
        create_topic(bootstrap, name, 2)
    first = [article(n, "sport" if n % 3 else "news", 9, n) for n in range(12)]
    fill(bootstrap, articles.RAW, [*first, *first[:5], article(40, "news", 10, 30)])
    fill(bootstrap, articles.RAW, [Record(None, b"no JSON"), Record(None, None)])

    run_both(spark, bootstrap, articles, tmp_path)

    assert len(read_topic(bootstrap, articles.CLEAN, isolation="read_committed")) == 13
    assert counts(bootstrap, articles) == {("news", 9): 4, ("sport", 9): 8}

    more = [article(50, "sport", 10, 59), article(51, "news", 12)]
    fill(bootstrap, articles.RAW, [*first[:3], *more])
    run_both(spark, bootstrap, articles, tmp_path)

    assert counts(bootstrap, articles) == {
        ("news", 9): 4,
        ("sport", 9): 8,
        ("news", 10): 1,
        ("sport", 10): 1,
    }


def run_both(spark, bootstrap, articles, place):
    """The first job's results are committed and marked so when the second one looks for them."""
    for job, target in (("clean", articles.CLEAN), ("count", articles.COUNTS)):
        articles.run(spark, job, bootstrap, str(place), once=True)
        with Cluster(bootstrap) as cluster:
            await_markers(cluster, target)


def counts(bootstrap, articles):
    """The count of each section and hour, written once."""
    found = {}
    for one in read_topic(bootstrap, articles.COUNTS, isolation="read_committed"):
        fields = json.loads(one.value)
        hour = int(fields["hour"][11:13])
        assert one.key.decode().startswith(fields["section"] + "|")
        assert (fields["section"], hour) not in found
        found[fields["section"], hour] = fields["articles"]
    return found
