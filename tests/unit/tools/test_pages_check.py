"""tools/pages: which passages it finds. Those of the first test were on pages, and false."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import pages
from tools.pages import examples, links, names, statements
from tools.pages.text import Page

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def known() -> names.Known:
    return names.Known(ROOT)


@pytest.mark.parametrize(
    "name, passage",
    [
        ("docs/architecture.md", "So far all listeners are plain: they begin in phase SERVING."),
        ("docs/extending.md", "| a metric by topic | - | `metrics/catalog.py` | it has no image |"),
        ("docs/extending.md", "| a histogram | - | `metrics/catalog.py` | only counters |"),
        ("docs/extending.md", "a label is a fixed table of API keys today"),
        ("config/server.properties", "# there is no encryption or authentication yet"),
        ("docs/security.md", "TLS is not supported."),
        ("docs/testing.md", "Other parts are not written yet."),
        ("README.md", "Not built: TLS and quotas."),
    ],
)
def test_statement_about_the_state_that_nothing_checks_is_found(name, passage):
    assert list(statements.unknown_statements(Page(name, f"# A title\n\n{passage}\n")))


def test_text_of_a_setting_that_says_what_is_built_is_found(monkeypatch):
    """``listener.security.protocol.map`` said so long after TLS was there."""
    key = statements.BROKER_KEYS["listener.security.protocol.map"]
    monkeypatch.setattr(key, "doc", "Pairs of listener and protocol. Only PLAINTEXT is built.")

    found = list(statements.unknown_statements(Page("docs/configuration.md", "")))

    assert len(found) == 1
    assert found[0].startswith("listener.security.protocol.map: nothing checks")


def test_measured_time_that_is_not_the_newest_is_found():
    """The stop of a leader took 2 s on one page and 279 ms on another."""
    page = Page("docs/cluster.md", "before it stops (controlled shutdown) | 2 s |")
    where = "perf/results/cluster"

    found = list(statements.findings([page]))

    assert any("docs/cluster.md" in line and "0.3 s" in line for line in found)
    assert statements.measured("shutdown", "longest wait of a produce, ms", 300, where)
    assert not statements.measured("shutdown", "longest wait of a produce, ms", 2000, where)


@pytest.mark.parametrize(
    "name, span",
    [
        ("docs/extending.md", "workers/exporter_of_old.py"),
        ("docs/metrics.md", "kbroker/workers/exporter_of_old.py"),
        ("docs/clients.md", "KafkaProducerBefore"),
        ("docs/configuration.md", "log.segment.bites"),
        ("docs/metrics.md", "kbroker_requests_before_total"),
        ("docs/kafka-tools.md", "kafka-topics --describe-before"),
        ("docs/testing.md", "kbroker.testing.BrokerBefore"),
        ("docs/testing.md", "roles_of_old.py"),
    ],
)
def test_name_that_does_not_exist_is_found(known, name, span):
    assert list(names.findings(Page(name, f"Look at `{span}`."), known))


@pytest.mark.parametrize(
    "span",
    [
        "log.segment.bytes",
        "kbroker_requests_total",
        "KafkaConsumer",
        "kbroker.testing.Broker",
        "kafka.fetch.max.bytes",
        "listener.name.brokers.ssl.keystore.location",
        "kafka-topics --describe",
        "workers/io",
        "handlers/registry.HOT_RANGES",
    ],
)
def test_name_that_exists_is_no_finding(known, span):
    assert list(names.findings(Page("docs/extending.md", f"Look at `{span}`."), known)) == []


@pytest.mark.parametrize(
    "example",
    [
        "kbroker topic creat orders",
        "kbroker topic create orders --partition 3",
        "echo x | kbroker produce orders --frob",
        "bin/kafka-topics.sh --bootstrap-server localhost:9092 --frob",
        "kbroker-supervisor -c server.properties --overide a=b",
        "log.segment.byte=4",
        "curl -s http://127.0.0.1:9644/api/v1/topic",
    ],
)
def test_example_that_its_program_rejects_is_found(example):
    assert len(list(examples.findings(Page("docs/x.md", f"```\n{example}\n```\n")))) == 1


def test_example_in_python_imports_what_there_is():
    good = "```python\nfrom kbroker.client import KafkaProducer\n```\n"
    bad = good.replace("KafkaProducer", "KafkaProducerBefore")

    assert list(examples.findings(Page("docs/x.md", good))) == []
    assert len(list(examples.findings(Page("docs/x.md", bad)))) == 1


def test_page_for_users_without_a_link_in_readme_is_found():
    """README had none to clients, security and Kafka's tools."""
    readme = Page("README.md", "[one](docs/one.md)")
    one, two = Page("docs/one.md", "[two](two.md)"), Page("docs/two.md", "")
    three = Page("docs/three.md", "")

    found = list(links.findings(ROOT, [readme, one, two, three]))

    assert found == [
        "docs/two.md:1: README has no link to this page for users",
        "docs/three.md:1: no link from README leads here",
    ]


def test_line_of_the_changelog_with_several_effects_is_found():
    page = Page("CHANGELOG.md", f"- One effect.\n- {'Many effects. ' * 20}\n")

    assert [line.partition(": ")[0] for line in pages.long_changes(page)] == ["CHANGELOG.md:2"]


@pytest.mark.slow  # make lint looks as well
def test_pages_have_no_findings():
    assert list(pages.findings(ROOT)) == []
