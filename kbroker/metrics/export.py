"""Counters as text in Prometheus's exposition format (version 0.0.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kbroker.exposition.text import escape
from kbroker.metrics.catalog import METRICS, TOLD_FROM_START
from kbroker.metrics.slots import Counters


def prometheus_text(
    rows: Iterable[tuple[str, Counters]],
    label_names: Mapping[str, Callable[[int], str]],
) -> str:
    """Write every metric that was ever counted, with a ``process`` label.

    rows: (process title, its counters). label_names: for each label of the catalog, the text of a
    value. A cell that is 0 is left out, but of ``TOLD_FROM_START``; a metric without any cell still
    shows its HELP and TYPE.
    """
    rows = list(rows)
    lines: list[str] = []
    for metric in METRICS:
        lines.append(f"# HELP {metric.name} {metric.help}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for process, counters in rows:
            for label in range(metric.width):
                value = counters.get(metric, label)
                if value == 0 and metric not in TOLD_FROM_START:
                    continue
                labels = f'process="{process}"'
                if metric.label:
                    name = label_names[metric.label](label)
                    labels += f',{metric.label}="{escape(name)}"'
                lines.append(f"{metric.name}{{{labels}}} {value}")
    lines.append("")
    return "\n".join(lines)
