"""Metrics that clients have pushed (KIP-714), as metrics of this broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kbroker.errors import WireError
from kbroker.exposition.mbeans import Tags, plain_lines
from kbroker.ipc import calls
from kbroker.ipc.process_table import Address
from kbroker.ipc.rpc import Rpc

HELP = "Pushed by clients."
# Of the series of a histogram.
SUFFIXES = ("_bucket", "_sum", "_count")


class PushedMetrics:
    """Asks the network processes. left_out: numbers that they have not kept."""

    def __init__(self, rpc: Rpc, networks: Sequence[Address]) -> None:
        self._rpc = rpc
        self._networks = networks
        self._series: list[calls.TelemetrySeries] = []
        self._histograms: list[calls.TelemetryHistogram] = []
        self.left_out = 0

    async def refresh(self) -> None:
        """What one does not tell is absent."""
        asked = [
            self._rpc.call(network, calls.CLIENT_TELEMETRY, calls.Nothing())
            for network in self._networks
        ]
        self.forget()
        for call in asked:
            try:
                answer = await call
            except WireError:
                continue
            self._series += answer.series
            self._histograms += answer.histograms
            self.left_out += answer.left_out

    def forget(self) -> None:
        """Nobody is asked for metrics any more."""
        self._series, self._histograms, self.left_out = [], [], 0

    def lines(self) -> Iterator[str]:
        """The text, by name; a client that is connected to two processes counts once."""
        by_name: dict[tuple[str, bool], dict[str, tuple[Tags, float]]] = {}
        for one in self._series:
            tags = Tags(*((name, value) for name, value in one.labels))
            by_name.setdefault((one.name, one.is_counter), {})[tags.text] = tags, one.value
        taken: set[str] = set()
        for (name, is_counter), samples in sorted(by_name.items()):
            shown = f"{name.removesuffix('_total')}_total" if is_counter else name
            if shown in taken:
                continue  # another client has it as another kind
            taken.add(shown)
            yield from plain_lines(
                shown, "counter" if is_counter else "gauge", HELP, samples.values()
            )
        yield from self._histogram_lines(taken)

    def _histogram_lines(self, taken: set[str]) -> Iterator[str]:
        by_name: dict[str, dict[str, calls.TelemetryHistogram]] = {}
        for one in self._histograms:
            tags = Tags(*((name, value) for name, value in one.labels))
            by_name.setdefault(one.name, {})[tags.text] = one
        for name, histograms in sorted(by_name.items()):
            if taken & {name, *(name + suffix for suffix in SUFFIXES)}:
                continue
            lines = [f"# HELP {name} {HELP}", f"# TYPE {name} histogram"]
            for text, one in histograms.items():
                below = 0
                for bound, count in zip([*one.bounds, None], one.counts, strict=True):
                    below += count
                    le = "+Inf" if bound is None else repr(float(bound))
                    lines.append(f'{name}_bucket{{{text},le="{le}"}} {below}')
                if one.total is not None:
                    lines.append(f"{name}_sum{{{text}}} {one.total}")
                lines.append(f"{name}_count{{{text}}} {below}")
            yield "\n".join([*lines, ""])
