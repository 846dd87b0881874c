"""Metrics that clients have pushed, as text."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.ipc.calls import ClientSeries, TelemetryHistogram, TelemetrySeries
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.workers.exporter.pushed import PushedMetrics

pytestmark = pytest.mark.unit

ME = [["client_id", 'a"\n']]


def text_of(*answers: ClientSeries) -> str:
    class Rpc:
        def call(self, to: Address, row: Any, request: Any) -> Pending[Any]:
            done: Pending[Any] = Pending()
            done.resolve(answers[to.index])
            return done

    rpc: Any = Rpc()
    networks = [Address(ProcessKind.NETWORK, index) for index in range(len(answers))]
    pushed = PushedMetrics(rpc, networks)
    run(pushed.refresh())
    return "".join(pushed.lines())


def test_histogram_has_buckets_that_contain_those_below() -> None:
    one = TelemetryHistogram("kbroker_client_h", ME, [0.5, 10.0], [2, 0, 1], 33.25)

    text = text_of(ClientSeries([], [one], 0))

    labels = r'client_id="a\"\n"'
    assert text.splitlines() == [
        "# HELP kbroker_client_h Pushed by clients.",
        "# TYPE kbroker_client_h histogram",
        f'kbroker_client_h_bucket{{{labels},le="0.5"}} 2',
        f'kbroker_client_h_bucket{{{labels},le="10.0"}} 2',
        f'kbroker_client_h_bucket{{{labels},le="+Inf"}} 3',
        f"kbroker_client_h_sum{{{labels}}} 33.25",
        f"kbroker_client_h_count{{{labels}}} 3",
    ]


def test_client_of_two_processes_counts_once_and_a_sum_that_is_not_told_is_absent() -> None:
    old = TelemetryHistogram("kbroker_client_h", ME, [], [2], None)
    new = TelemetryHistogram("kbroker_client_h", ME, [], [5], None)

    text = text_of(ClientSeries([], [old], 1), ClientSeries([], [new], 1))

    labels = r'client_id="a\"\n"'
    assert text.splitlines()[2:] == [
        f'kbroker_client_h_bucket{{{labels},le="+Inf"}} 5',
        f"kbroker_client_h_count{{{labels}}} 5",
    ]


def test_name_that_a_number_has_is_no_histogram_too() -> None:
    """One name has one type."""
    number = TelemetrySeries("kbroker_client_h_count", False, ME, 1.5)
    histogram = TelemetryHistogram("kbroker_client_h", ME, [], [2], None)

    text = text_of(ClientSeries([number], [histogram], 0))

    (line,) = [line for line in text.splitlines() if not line.startswith("#")]
    assert line.endswith("} 1.5")
