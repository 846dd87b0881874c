"""Figures under the names of Kafka's MBeans, and what families of names make of them.

A name is derived from the MBean by the rule of its family (docs/decisions/0026-metrics.md):

    kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec,topic=t
    jmx        kafka_server_brokertopicmetrics_bytesin_total{topic="t"}
    confluent  kafka_server_brokertopicmetrics_bytesinpersec{topic="t"}

``jmx`` is what Prometheus' JMX exporter makes with its example rules for Kafka 2, which are also
Strimzi's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from kbroker.exposition.text import escape

T = TypeVar("T")

# Kinds of MBeans: a counter (a Meter in Kafka), a gauge, a share from 0 to 1, the distribution of
# times in milliseconds (a Histogram or a Timer), and an attribute of an MBean that has several.
METER, GAUGE, PERCENT, TIMES, ATTRIBUTE = "meter", "gauge", "percent", "times", "attribute"

JMX, CONFLUENT, EXPORTER, NATIVE = "jmx", "confluent", "exporter", "native"
HISTOGRAMS = "histograms"

# An attribute of MBeans by software of clients, and what the JMX exporter's rules make of it.
SOFTWARE, SOFTWARE_NAME = "connections", "connections_software"

QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
QUANTILE_TEXTS = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")
PERCENTILES = (
    "50thPercentile",
    "75thPercentile",
    "95thPercentile",
    "98thPercentile",
    "99thPercentile",
    "999thPercentile",
)
# Of times: the rate of late, for which Kafka has an average with a weight that decays in a minute.
RATE = "OneMinuteRate"
_UNSAFE = re.compile(r"[^a-zA-Z0-9_]")
# BOUND: lines in one piece of text.
PIECE_LINES = 1000


class Tags:
    """The tags of one MBean: as they are, and as labels. A class of those of which there are
    thousands makes ``pairs`` when they are wanted.
    """

    __slots__ = ("_pairs", "text")

    def __init__(self, *pairs: tuple[str, str]) -> None:
        self._pairs = pairs
        self.text = ",".join(label(name, value) for name, value in pairs)

    @classmethod
    def of_labels(cls, pairs: tuple[tuple[str, str], ...], text: str) -> Tags:
        """text: of the same pairs, which somebody has made already."""
        made = cls.__new__(cls)
        made._pairs, made.text = pairs, text
        return made

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        return self._pairs


class MadeByName(dict[str, T]):
    """What ``make`` makes of names, each when it is first wanted."""

    def __init__(self, make: Callable[[str], T]) -> None:
        self._make = make

    def __missing__(self, name: str) -> T:
        made = self[name] = self._make(name)
        return made


def label(name: str, value: str) -> str:
    return f'{name}="{escape(value)}"'


NO_TAGS = Tags()


class Distribution(NamedTuple):
    """A distribution, in milliseconds. total: values since the start; the others: of late. rate: a
    second; None: not known yet.
    """

    total: int
    mean: float
    quantiles: list[float]
    rate: float | None = None


class Bean(NamedTuple):
    """All MBeans that differ in their tags only."""

    domain: str
    type: str
    name: str
    kind: str
    help: str


Value = Any  # a number, or Distribution
Sample = tuple[Tags, Value]
Samples = tuple[Bean, Iterable[Sample]]


def jmx_name(bean: Bean) -> str:
    """The name in the family ``jmx``, without what a kind of line adds."""
    name = bean.name
    if bean.kind == METER:
        name = name.removesuffix("PerSec")
    elif bean.kind == PERCENT:
        name = name.removesuffix("Percent") + "_percent"
    elif bean.kind == ATTRIBUTE and name == SOFTWARE:
        name = SOFTWARE_NAME
    return _UNSAFE.sub("_", f"{bean.domain}_{bean.type}_{name}").lower()


def jmx_lines(bean: Bean, samples: Iterable[Sample]) -> Iterator[str]:
    """The text of an MBean in the family ``jmx``."""
    name = jmx_name(bean)
    if bean.kind == TIMES:
        yield from _times_lines(bean, name, samples)
    elif bean.kind == METER:
        yield from plain_lines(f"{name}_total", "counter", bean.help, samples)
    else:
        yield from plain_lines(name, "gauge", bean.help, samples)


def confluent_lines(bean: Bean, samples: Iterable[Sample]) -> Iterator[str]:
    """What the family ``confluent`` names otherwise than ``jmx``."""
    name = _UNSAFE.sub("_", f"{bean.domain}_{bean.type}_{bean.name}").lower()
    if bean.kind == METER:
        yield from plain_lines(name, "untyped", bean.help, samples)
    elif bean.kind == PERCENT:
        yield from plain_lines(f"{name}_oneminuterate", "gauge", bean.help, samples)
        yield from plain_lines(name, "gauge", bean.help, samples)


def plain_lines(name: str, kind: str, help: str, samples: Iterable[Sample]) -> Iterator[str]:
    """One line for each sample, in pieces; nothing if there is none."""
    lines = [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
    head = len(lines)
    for tags, value in samples:
        lines.append(f"{name}{{{tags.text}}} {value}" if tags.text else f"{name} {value}")
        if len(lines) >= PIECE_LINES:
            yield "\n".join(lines) + "\n"
            lines.clear()
            head = 0
    if len(lines) > head:
        yield "\n".join(lines) + "\n"


def _times_lines(bean: Bean, name: str, samples: Iterable[Sample]) -> Iterator[str]:
    """Like those of a summary, but without a sum, and of gauges: that is what dashboards expect."""
    counts = [f"# HELP {name}_count {bean.help}", f"# TYPE {name}_count counter"]
    lines = [f"# HELP {name} {bean.help}", f"# TYPE {name} gauge"]
    has_samples = False
    for tags, times in samples:
        has_samples = True
        labels = f"{{{tags.text}}}" if tags.text else ""
        before = f"{tags.text}," if tags.text else ""
        counts.append(f"{name}_count{labels} {times.total}")
        for text, value in zip(QUANTILE_TEXTS, times.quantiles, strict=True):
            lines.append(f'{name}{{{before}quantile="{text}"}} {value:g}')
    if has_samples:
        yield "\n".join(counts) + "\n"
        yield "\n".join(lines) + "\n"


def object_name(bean: Bean, tags: Tags) -> str:
    """The name of an MBean, as JMX has it."""
    parts = [f"type={bean.type}"]
    if bean.kind != ATTRIBUTE:
        parts.append(f"name={bean.name}")
    parts += [f"{name}={quoted(value)}" for name, value in tags.pairs]
    return f"{bean.domain}:{','.join(parts)}"


def quoted(value: str) -> str:
    """Quote a value where JMX needs it."""
    if not any(char in '*?\\\n,="' for char in value):
        return value
    for char, name in (("\\", "\\\\"), ("\n", "\\n"), ('"', '\\"'), ("*", "\\*"), ("?", "\\?")):
        value = value.replace(char, name)
    return f'"{value}"'


def attributes(bean: Bean, value: Value) -> dict[str, Any]:
    """The attributes of an MBean that there are figures for."""
    if bean.kind == TIMES:
        values = {"Count": value.total, "Mean": value.mean} | dict(
            zip(PERCENTILES, value.quantiles, strict=True)
        )
        return values if value.rate is None else values | {RATE: value.rate}
    if bean.kind == METER:
        return {"Count": value}
    return {bean.name if bean.kind == ATTRIBUTE else "Value": value}


WRITERS: dict[str, Callable[[Bean, Iterable[Sample]], Iterator[str]]] = {
    JMX: jmx_lines,
    CONFLUENT: confluent_lines,
}
