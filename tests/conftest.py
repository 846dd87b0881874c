"""Shared by all tests: the project's own pytest plugin, even where kbroker is not installed."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.running import descriptors, files_in_memory, forked_workers
from support.running.left_out import left_out
from support.running.own_process import run_in_own_process
from support.running.sanitizer import TIME_FACTOR
from support.running.selection import is_without_slow

from kbroker.testing import plugin, waiting
from perf.maven import MavenUnreachable

# Modules beside the tests whose assertions say as much as those of tests.
pytest.register_assert_rewrite("support.controller.store_contract", "support.faults.transactions")

# A wait ends as soon as its condition holds: a shorter timeout only fails correct tests on a
# machine that was stalled.
PATIENCE_S = 30.0
# How much there is of what repeats (tools/exam.py).
SCALE = max(1, int(os.environ.get("KBROKER_FAULT_SCALE", "1")))
TESTS = Path(__file__).resolve().parent
IN_MEMORY = pytest.StashKey[Path | None]()
# The folders whose tests mostly wait, and those that mostly compute; of each the slowest first.
WAITING = (
    "spark/",
    "fault/",
    "interop/",
    # Files of some length, so that none of them begins last.
    "integration/test_cluster_",
    "integration/test_zookeeper_",
    "integration/test_transactions_",
    "integration/",
)
COMPUTING = (
    "unit/replication/test_replicated_simulation.py",
    "unit/hosting/test_cluster_simulation.py",
    "unit/client/consumer/test_consumer_simulation.py",
    "unit/client/producer/test_producer_simulation.py",
    "property/",
    "",
)

# A machine that stalls for five seconds is not a finding. In CI runs must be reproducible;
# elsewhere each explores something new.
settings.register_profile(
    "kbroker",
    deadline=None,
    derandomize="KBROKER_CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("without slow tests", settings.get_profile("kbroker"), max_examples=40)


def pytest_configure(config: pytest.Config) -> None:
    """Load the plugin unless the installed package has done so, and that of test processes."""
    is_quick = is_without_slow(config)
    settings.load_profile("without slow tests" if is_quick else "kbroker")
    waiting.PATIENCE_S = PATIENCE_S * TIME_FACTOR
    descriptors.raise_limit()
    if is_quick and not hasattr(config, "workerinput"):
        place = config.stash[IN_MEMORY] = files_in_memory.begin()
        if place is not None and config.option.basetemp is None:
            config.option.basetemp = str(place / "t")
    if not config.pluginmanager.has_plugin("kbroker"):
        config.pluginmanager.register(plugin, "kbroker")
    config.pluginmanager.register(forked_workers, "forked workers")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """All tests have ended, also those in other processes."""
    place = session.config.stash.get(IN_MEMORY, None)
    if place is not None:
        files_in_memory.end(place, exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files that wait beside files that compute, so that the processors are busy all the time,
    and of each kind the slowest first, so that none is left alone at the end of a run. The order
    is kept otherwise.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    items[:] = chain.from_iterable(files[path] for path in in_order_of_running(files))


def in_order_of_running(paths: Iterable[Path]) -> list[Path]:
    """Both kinds of files, mixed so that they come to their ends together."""
    names = {path: str(path).removeprefix(f"{TESTS}/") for path in paths}
    places: dict[Path, float] = {}
    for kind in (WAITING, COMPUTING):
        own = [path for path in names if names[path].startswith(WAITING) == (kind is WAITING)]
        own.sort(
            key=lambda path: next(
                n for n, start in enumerate(kind) if names[path].startswith(start)
            )
        )
        places.update((path, place / len(own)) for place, path in enumerate(own))
    return sorted(places, key=lambda path: places[path])


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give the test the time that it needs under the sanitizers, and at a larger size."""
    factor = TIME_FACTOR * SCALE
    if factor == 1:
        return
    marker = item.get_closest_marker("timeout")
    limit = marker.args[0] if marker else float(item.config.getini("timeout") or 0)
    item.add_marker(pytest.mark.timeout(limit * factor), append=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Iterator[object]:
    """What a command adds to the root logger of this process ends with its test: later, it would
    write to a stream that is closed. So do the descriptors of what the test has left as garbage,
    if there are many.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        return (yield)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        descriptors.close_those_of_garbage()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test with the mark ``own_process`` in a fork."""
    if pyfuncitem.get_closest_marker("own_process") is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    run_in_own_process(partial(pyfuncitem.obj, **{n: pyfuncitem.funcargs[n] for n in names}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Leave a test out whose fixtures need Maven Central, where it is out of reach."""
    with _without_maven_central():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """The same for what the test itself fetches."""
    with _without_maven_central():
        return (yield)


@contextmanager
def _without_maven_central() -> Iterator[None]:
    try:
        yield
    except MavenUnreachable as error:
        if "CI" in os.environ or "KBROKER_CI" in os.environ:
            raise
        pytest.skip(str(error).partition(" for ")[0])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """16,000 items are no garbage: look for none meanwhile, and leave them alone later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """The tests left out are reported at the end, before pytest's own last line."""
    yield
    if is_without_slow(terminalreporter.config):
        terminalreporter.write_line("slow tests are not among these: make test-all runs them, too")
    reports = terminalreporter.getreports("skipped")
    text = left_out(report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple))
    if text:
        terminalreporter.write_line(text)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """``--dist loadfile``, but tests/spark counts as one file: a Spark session takes long to
    start.
    """
    if config.getoption("dist") != "loadfile":
        return None
    # Files are distributed in the order above, not by the number of their tests.
    config.option.loadscopereorder = False
    from xdist.scheduler import LoadFileScheduling

    class OneSparkSession(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith("tests/spark/"):
                return "tests/spark"
            return str(super()._split_scope(nodeid))

    return OneSparkSession(config, log)
