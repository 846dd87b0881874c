"""The exporter's page of quotas: who has which, and how much of it is used.

As metrics in Prometheus's format, so that a monitoring system can scrape it. Not among those of
``/metrics``: there may be thousands, and the network processes are asked for them.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.exposition.text import escape
from kbroker.ipc.calls import QuotaFigure

Who = tuple[str, str, str]

_HEADS = (
    ("kbroker_quota_used_total", "counter", "What clients have used, in units of the quota."),
    ("kbroker_quota_bound", "gauge", "Units a second that they may use."),
    ("kbroker_quota_throttle_ms", "gauge", "How long they have to wait now."),
)


def quotas_text(answers: Iterable[Iterable[QuotaFigure]]) -> str:
    """answers: of each network process. All count in the same cells, so the newest figures are the
    largest.
    """
    quotas: dict[Who, QuotaFigure] = {}
    for figures in answers:
        for figure in figures:
            who = (figure.quota, figure.user, figure.client_id)
            known = quotas.get(who)
            if known is None or figure.used >= known.used:
                quotas[who] = figure
    lines = []
    for at, (name, kind, text) in enumerate(_HEADS):
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        for (quota, user, client_id), figure in sorted(quotas.items()):
            labels = f'quota="{quota}",user="{escape(user)}",client_id="{escape(client_id)}"'
            value = (figure.used, figure.bound, figure.throttle_ms)[at]
            lines.append(f"{name}{{{labels}}} {value:.15g}")
    return "\n".join([*lines, ""])
