"""What pages show of the newest results: five figures in README, one row per area and the bars that
are missed in perf/README.md, everything in perf/figures.md. ``tools/gen_docs.py`` writes them.
"""

import re
from collections.abc import Iterable, Sequence

from perf.results_table import (
    SPARK_CASES,
    Row,
    markdown_table,
    newest_rows,
    ratio_text,
    results_table,
)

# What README shows: cell, figure, and what they are to a reader.
FIVE = (
    ("sat16k", "requests/s", "one broker, requests of 16 KiB: requests/s"),
    (
        "all16k",
        "requests/s",
        "three brokers, the same on three replicas, `acks=all`: requests/s",
    ),
    ("produce100", "CPU s/GB", "records of 100 B from librdkafka, at the same rate: CPU s/GB"),
    ("e2e1000", "p99 ms", "end to end at 1,000 records/s: p99, ms"),
    ("start", "s", "from exec to the first acknowledged record: s"),
)
_OTHERS = "one broker"
_WATCHED = {"scrape", "lag", "produce", "pages"}
# Area -> the figure that says the most about it.
AREAS = {
    _OTHERS: ("sat16k", "requests/s"),
    "TLS and SASL": ("tls_one16", "requests/s"),
    "metrics and console": ("scrape", "ms to the last byte"),
    "three brokers": ("all16k", "requests/s"),
    "clients in Python": ("produce100", "kbroker send, records/s"),
    "Spark": ("load-100B", "M rows/s"),
}
_FIGURES_HEAD = """\
# All figures

<!-- Written by tools/gen_docs.py from perf/results. -->

The newest result of each cell, medians of the runs; a bold ratio, or figure, misses its bar. Cells
are compared with Kafka 3.9.1, those of three brokers with the better of 3.9.1 (KRaft) and 2.7.2
(ZooKeeper), Spark cases with Spark's own connector; P1 to P12 compare a Spark case with what lies
beneath it. Older figures are in the files of `perf/results/`, and
[README.md](README.md) says how to measure a cell again.

"""


def five_figures() -> str:
    """The table of README."""
    rows = newest_rows()
    shown = ((text, _row(rows, name, figure)) for name, figure, text in FIVE)
    return markdown_table(
        ("load", "kbroker", "Apache Kafka", "ratio"),
        ((text, row.ours, row.theirs, _ratio(row)) for text, row in shown),
    )


def areas_table() -> str:
    """One row for each area: how many of its bars are cleared, and its most telling figure."""
    rows = newest_rows()
    lines = []
    for area, (name, figure) in AREAS.items():
        judged = [row for row in rows if area_of(row) == area and row.passes is not None]
        row = _row([row for row in rows if area_of(row) == area], name, figure)
        cleared = sum(bool(row.passes) for row in judged)
        title = f"{re.sub('^.*?: ', '', row.title)} (`{row.name}`), {row.figure}"
        shown = f"{cleared} of {len(judged)}"
        lines.append((area, shown, title, row.ours, row.theirs, _ratio(row)))
    head = ("area", "bars cleared", "for example", "kbroker", "compared with", "ratio")
    return markdown_table(head, lines)


def missed_table() -> str:
    """The bars that are missed."""
    return markdown_table(
        ("load", "figure", "kbroker", "compared with", "ratio", "bar"),
        ((label(row), row.figure, row.ours, row.theirs, _ratio(row), row.bar) for row in missed()),
    )


def missed() -> list[Row]:
    """The rows that miss their bars."""
    return [row for row in newest_rows() if row.passes is False]


def unexplained(text: str) -> Iterable[str]:
    """What the explanations of missed bars lack, and those of bars that are cleared again.

    text: a list whose items begin with the loads they are about, before a colon.
    """
    explained = set(re.findall(r"`([\w -]+)`|\b(P\d+)\b", _heads(text)))
    names = {first or second for first, second in explained}
    misses = {_short(row) for row in missed()}
    yield from (f"does not say why {name} misses its bar" for name in sorted(misses - names))
    known = {_short(row) for row in newest_rows()}
    yield from (f"{name} misses no bar" for name in sorted((names & known) - misses))


def _heads(text: str) -> str:
    return "\n".join(re.findall(r"^- ([^:]*):", text, re.M))


def _short(row: Row) -> str:
    return row.name or row.title.partition(" ")[0]


def label(row: Row) -> str:
    """The name in ``--cells``, after its area where another area has the name, too."""
    return f"{area_of(row)}: `{row.name}`" if row.name else row.title


def figures_page() -> str:
    """perf/figures.md."""
    return f"{_FIGURES_HEAD}{results_table()}\n"


def area_of(row: Row) -> str:
    """Which area a row belongs to."""
    if row.title.startswith("three brokers: "):
        return "three brokers"
    if row.title.startswith("Python clients: "):
        return "clients in Python"
    if not row.name or row.name in SPARK_CASES:
        return "Spark"
    if row.name.startswith(("tls", "scram")):
        return "TLS and SASL"
    return "metrics and console" if row.name in _WATCHED else _OTHERS


def _row(rows: Sequence[Row], name: str, figure: str) -> Row:
    for row in reversed(rows):  # of a client compared with two others, the faster is last
        if row.name == name and row.figure == figure:
            return row
    raise LookupError(f"perf/results has no {figure} of {name}")


def _ratio(row: Row) -> str:
    return ratio_text(row.ratio)
