"""Makes the figures of an exporter, when the first scrape wants them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from kbroker._ext.shared.partition_table import PartitionTable
from kbroker._ext.shared.request_times import TimesView
from kbroker.clock import SystemClock
from kbroker.config.topic_keys import TOPIC_KEYS
from kbroker.exposition.meter_rates import MeterRates, started_s
from kbroker.hosts import EVERY_INTERFACE
from kbroker.ipc.process_table import ProcessKind
from kbroker.workers.exporter.clients import ClientSoftware
from kbroker.workers.exporter.figures import Figures
from kbroker.workers.exporter.groups import LagCollector
from kbroker.workers.exporter.partitions import PartitionFigures
from kbroker.workers.exporter.processes import ProcessFigures
from kbroker.workers.exporter.pushed import PushedMetrics
from kbroker.workers.exporter.record_ages import RecordAges
from kbroker.workers.exporter.requests import RequestFigures
from kbroker.workers.exporter.whole_broker import WholeBroker

if TYPE_CHECKING:
    from kbroker.cluster.image import ClusterImage
    from kbroker.metrics.slots import Counters
    from kbroker.workers.exporter.exporter import ExporterWorker

MIN_IN_SYNC = "min.insync.replicas"
FETCHERS = "num.replica.fetchers"


def make_figures(
    worker: ExporterWorker,
    image: ClusterImage,
    rows: Mapping[str, Counters],
    native: Callable[[], Iterator[str]],
) -> Figures:
    """rows: the counters of each process, by its title. native: see ``Figures``."""
    context, config, addresses = worker.context, worker.config, worker.processes.addresses

    def min_in_sync(settings: dict[str, str]) -> int:
        own = settings.get(MIN_IN_SYNC)
        default: int = worker.config.topic_defaults[MIN_IN_SYNC]
        return default if own is None else TOPIC_KEYS[MIN_IN_SYNC].parse(own)

    clock = time.monotonic_ns
    samples = (config["metrics.num.samples"], config["metrics.sample.window.ms"])
    whole = WholeBroker(
        {address: rows[address.title] for address in addresses},
        [listener.name for listener, *_ in context.listeners],
        worker.offline_dirs,
        clock,
        *samples,
        uses_zookeeper=config.uses_zookeeper,
        is_serving=worker.health.is_serving,
    )
    timed = sum(address.kind.row.times for address in addresses)
    requests = RequestFigures(TimesView(context.request_times, timed), clock, *samples)
    table = PartitionTable(context.partition_table, config["partition.table.slots"])
    partitions = PartitionFigures(
        image,
        table,
        worker.open_log_figures(),
        min_in_sync,
        config.log_dirs,
        lambda: worker.config[FETCHERS],
    )
    groups = LagCollector(
        worker.rpc,
        worker.processes.of_kind(ProcessKind.IO_WORKER),
        context.group_offsets,
        RecordAges(partitions.place_of, SystemClock().now_ms),
        config["metrics.group.partitions.max"],
        worker.lag_history,
    )
    return Figures(
        image,
        context.broker_id,
        whole,
        requests,
        partitions,
        groups,
        ProcessFigures(worker.processes, addresses),
        ClientSoftware(
            context.client_figures,
            len(worker.processes.of_kind(ProcessKind.NETWORK)),
            [listener.name for listener, *_ in context.listeners],
        ),
        PushedMetrics(worker.rpc, worker.processes.of_kind(ProcessKind.NETWORK)),
        native,
        config["metrics.names"],
        config["metrics.partitions.max"],
        own_host([listener.host for listener, *_ in context.listeners]),
        MeterRates(started_s(context.parent_pid, time.monotonic())),
    )


def own_host(bound: Iterable[str]) -> str:
    """By which others may reach this broker, of the addresses that its listeners are bound to."""
    return next((host for host in bound if host not in EVERY_INTERFACE), socket.gethostname())
