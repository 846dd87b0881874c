"""Runs simulations for many seeds, in as many processes as there are cores.

    python tests/support/simulation/seed_runs.py --seeds 100000
    python tests/support/simulation/seed_runs.py cluster --first 52 --seeds 1  again, with a log

``cluster``: sessions, controllers and hosting of three brokers (``cluster_simulation``).
``replicas``: these with logs, followers and producers (``replica_simulation``).
``consumers``: the client's consumers against scripted brokers (``consumer_simulation``).
``producers``: its producers (``producer_simulation``).
``batches``: its producer of whole batches (``batch_producer_simulation``).
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.simulation import (
    batch_producer_simulation,
    cluster_simulation,
    consumer_simulation,
    producer_simulation,
    replica_simulation,
)

CHUNK = 50
PROGRESS_S = 10.0


class Ran(NamedTuple):
    """count: of what the seed had happen, so that a run of nothing is seen. failure: its text."""

    seed: int
    count: int
    failure: str | None


def run_cluster(seed: int) -> int:
    """How many leaders there were."""
    return len(cluster_simulation.simulate(seed).leaders)


def run_replicas(seed: int) -> int:
    """How many records were acknowledged."""
    return sum(map(len, replica_simulation.simulate(seed).acknowledged.values()))


def run_consumers(seed: int) -> int:
    """How many records were returned."""
    return consumer_simulation.simulate(seed).history.count


def run_producers(seed: int) -> int:
    """How many records were sent."""
    return len(producer_simulation.simulate(seed).sent)


def run_batches(seed: int) -> int:
    """How many records were sent in whole batches."""
    return len(batch_producer_simulation.simulate(seed).sent)


SIMULATIONS: dict[str, Callable[[int], int]] = {
    "cluster": run_cluster,
    "replicas": run_replicas,
    "consumers": run_consumers,
    "producers": run_producers,
    "batches": run_batches,
}


@contextmanager
def cheaply() -> Iterator[None]:
    """Without logs, which cost as much as the rest, and which running a seed again shows; and
    without the collector, which a chunk of seeds does not need.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        yield
    finally:
        logging.disable(before)
        gc.enable()
        gc.collect()


def repeat_command(name: str, seed: int) -> str:
    """The command that runs a seed again."""
    return f"python tests/support/simulation/seed_runs.py {name} --first {seed} --seeds 1"


def run_seed(name: str, seed: int) -> Ran:
    """Run one; a failure is returned."""
    try:
        return Ran(seed, SIMULATIONS[name](seed), None)
    except Exception:
        return Ran(seed, 0, traceback.format_exc())


def run_chunk(chunk: tuple[str, range]) -> tuple[str, list[Ran]]:
    """What a process of the pool does."""
    name, seeds = chunk
    with cheaply():
        return name, [run_seed(name, seed) for seed in seeds]


def chunks(names: list[str], seeds: range) -> Iterator[tuple[str, range]]:
    """The simulations in turns, so that a run that is ended early has seen all."""
    for first in range(0, len(seeds), CHUNK):
        for name in names:
            yield name, seeds[first : first + CHUNK]


def run_all(names: list[str], seeds: range, processes: int) -> int:
    """The number of failures; says how far it is, and which seeds failed."""
    began = said = time.monotonic()
    done, failed, total = 0, list[tuple[str, int]](), len(seeds) * len(names)
    with multiprocessing.Pool(processes) as pool:
        for name, runs in pool.imap_unordered(run_chunk, chunks(names, seeds)):
            done += len(runs)
            for run in (run for run in runs if run.failure is not None):
                failed.append((name, run.seed))
                print(f"{name} {run.seed} FAILED:\n{run.failure}", flush=True)
            if done == total or time.monotonic() - said > PROGRESS_S:
                said = time.monotonic()
                speed = done / (said - began)
                left = f"{speed:.0f}/s, {(total - done) / speed:.0f} s left"
                print(f"{done} of {total} runs, {len(failed)} failed; {left}", flush=True)
    for name, seed in sorted(failed):
        print(f"again: {repeat_command(name, seed)}")
    return len(failed)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("simulation", nargs="?", choices=SIMULATIONS, help="all if not given")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    names = [options.simulation] if options.simulation else list(SIMULATIONS)
    if options.seeds == 1:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        return sum(bool(print_run(name, options.first)) for name in names)
    seeds = range(options.first, options.first + options.seeds)
    return 1 if run_all(names, seeds, options.processes) else 0


def print_run(name: str, seed: int) -> str | None:
    """Run one seed with its log; returns its failure."""
    run = run_seed(name, seed)
    print(run.failure or f"{name} {seed}: no failure, {run.count} leaders or records")
    return run.failure


if __name__ == "__main__":
    sys.exit(main())
