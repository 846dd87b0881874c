"""What must hold of a program besides its records: processor time while it waits, memory in a long
failure, and what its errors say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import median
from typing import Any

Event = dict[str, Any]
CPU_MAX = 0.02  # of a core
# The first moment of a fault is work: connections end, and others are asked.
BEGINS_S = 2.0
WARM_S = 90.0
GROWTH_MIB = 12.0
# What says that somebody could not be reached must say who, and why.
_OF_BROKERS = ("Timeout", "UnreachableError", "ConnectionLost", "BufferExhausted")
# In less than a second nobody knows yet who is silent.
_AT_ONCE = re.compile(r"waited 0(\.\d+)? s")
_ADDRESS = re.compile(r"\w[\w.-]*:\d{2,5}\b")


def usage(lines: Iterable[Event], since: float, until: float) -> list[Event]:
    """The samples of one program in this time, of the process that its client is in."""
    found = [one for one in lines if one["what"] == "usage" and since <= one["at"] <= until]
    return [one for one in found if one["of"] == found[-1]["of"]]


def core_share(lines: Iterable[Event], since: float, until: float) -> float | None:
    """How much of a core a program took: processor time, which a busy machine does not stretch.
    None: there are no two samples.
    """
    found = usage(lines, since + BEGINS_S, until)
    if len(found) < 2:
        return None
    first, last = found[0], found[-1]
    return float((last["cpu"] - first["cpu"]) / (last["at"] - first["at"]))


def growth_mib(lines: Iterable[Event], since: float, until: float) -> float | None:
    """By how much memory has grown from the second minute of a failure to its last minute."""
    found = usage(lines, since + WARM_S / 2, until)
    early = [one["rss_mib"] for one in found if one["at"] < since + WARM_S]
    late = [one["rss_mib"] for one in found if one["at"] > until - WARM_S / 2]
    if not early or not late or since + WARM_S > until - WARM_S / 2:
        return None
    return float(median(late) - median(early))


def check_waiting(lines: list[Event], since: float, until: float) -> list[str]:
    """Of one program that had nothing to do but to wait."""
    share = core_share(lines, since, until)
    if share is None:
        return ["it did not tell of its processor time"]
    return [f"took {share:.1%} of a core while waiting"] if share > CPU_MAX else []


def check_memory(lines: list[Event], since: float, until: float) -> list[str]:
    """Of one program in a failure that lasts."""
    grown = growth_mib(lines, since, until)
    if grown is None:
        return ["it did not tell of its memory"]
    return [f"grew by {grown:.0f} MiB"] if grown > GROWTH_MIB else []


def check_errors(lines: Iterable[Event], since: float, until: float) -> list[str]:
    """Those that came while brokers were harmed: each names an address, and says why."""
    found: dict[str, str] = {}
    for one in lines:
        if since <= one["at"] <= until:
            for call, text in _texts(one):
                if text.startswith(_OF_BROKERS) and not (
                    _ADDRESS.search(text) or _AT_ONCE.search(text)
                ):
                    found.setdefault(call, f"{call} does not say who: {text}")
    return list(found.values())


def _texts(line: Event) -> list[tuple[str, str]]:
    """The call and the text of each error that a line tells of."""
    if line["what"] == "error":
        return [(line["call"], line["error"])]
    return [("send", row[2]) for row in line["rows"]] if line["what"] == "failed" else []


def figures(programs: Iterable[list[Event]], since: float, until: float) -> str:
    """The largest share of a core, and memory at the end, in words."""
    each = list(programs)
    shares = [share for lines in each if (share := core_share(lines, since, until)) is not None]
    sizes = [found[-1]["rss_mib"] for lines in each if (found := usage(lines, since, until))]
    grown = [mib for lines in each if (mib := growth_mib(lines, since, until)) is not None]
    texts = [f"cpu {max(shares):.1%}"] if shares else []
    texts += [f"{max(sizes):.0f} MiB"] if sizes else []
    texts += [f"{max(grown):+.1f} MiB since the second minute"] if grown else []
    return ", ".join(texts)
