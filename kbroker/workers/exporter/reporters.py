"""Python classes that ``metric.reporters`` names, and what they are told of metrics.

A reporter is told of each metric when there is one, and asks for its present value when it likes.
Values are those of the last look, every ``kafka.metrics.polling.interval.secs``. Each reporter has
a thread, so one that hangs delays neither scrapes nor the others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.errors import ConfigError
from kbroker.exposition.mbeans import ATTRIBUTE, Samples, attributes, object_name
from kbroker.logcontext import RateLimit
from kbroker.security import plugins
from kbroker.workers.plugged import REPORTER_METHODS, REPORTERS

logger = logging.getLogger(__name__)

CLOSE_S = 2.0


class MBeanMetric(NamedTuple):
    """One attribute of an MBean. value: a call that returns the present one, None once it is gone.

    The first four are those of the clients' reporters. kind: of ``exposition.mbeans``.
    """

    name: str
    group: str
    tags: dict[str, str]
    value: Callable[[], float | None]
    domain: str
    attribute: str
    kind: str
    help: str


Key = tuple[str, str]  # name of the MBean, attribute


class Reporters:
    """The reporters of an exporter, and the metrics that they have been told of."""

    def __init__(self, names: Iterable[str], properties: Mapping[str, str]) -> None:
        """Raises ConfigError."""
        self._values: dict[Key, float] = {}
        self._told: dict[Key, MBeanMetric] = {}
        self._threads = [ReporterThread(name, _made(name, properties)) for name in names]

    def look(self, all_samples: Iterable[Samples]) -> None:
        """Take the present values; tell of metrics that are new or gone."""
        values: dict[Key, float] = {}
        added: list[MBeanMetric] = []
        for bean, samples in all_samples:
            for tags, value in samples:
                name = object_name(bean, tags)
                for attribute, number in attributes(bean, value).items():
                    key = name, attribute
                    values[key] = number
                    if key not in self._told:
                        metric = MBeanMetric(
                            attribute if bean.kind == ATTRIBUTE else bean.name,
                            bean.type,
                            dict(tags.pairs),
                            self._reader(key),
                            bean.domain,
                            attribute,
                            bean.kind,
                            bean.help,
                        )
                        self._told[key] = metric
                        added.append(metric)
        gone = [self._told.pop(key) for key in self._told.keys() - values.keys()]
        self._values = values  # readers have the old ones or these
        for thread in self._threads:
            thread.tell(added, gone)

    def _reader(self, key: Key) -> Callable[[], float | None]:
        return lambda: self._values.get(key)

    def close(self) -> None:
        """Let the reporters end, for as long as CLOSE_S."""
        for thread in self._threads:
            thread.stop()
        for thread in self._threads:
            thread.join(CLOSE_S)


def _made(name: str, properties: Mapping[str, str]) -> Any:
    reporter = plugins.load(REPORTERS, name, REPORTER_METHODS)
    try:
        return reporter(dict(properties))
    except Exception as error:
        raise ConfigError(REPORTERS, name, f"a class that can be made: {error!r}") from error


class ReporterThread(threading.Thread):
    """Calls one reporter. BOUND: what it has not taken yet is no more than there are metrics."""

    def __init__(self, name: str, reporter: Any) -> None:
        super().__init__(name=f"reporter {name}", daemon=True)
        self._class_name = name
        self._reporter = reporter
        self._failures = RateLimit()
        self._wakes = threading.Condition()
        self._added: dict[int, MBeanMetric] = {}
        self._gone: dict[int, MBeanMetric] = {}
        self._is_begun = self._is_ending = False

    def tell(self, added: Iterable[MBeanMetric], gone: Iterable[MBeanMetric]) -> None:
        """Have the reporter told. What comes and goes before it has looked is not told at all."""
        with self._wakes:
            for metric in added:
                self._added[id(metric)] = metric
            for metric in gone:
                if self._added.pop(id(metric), None) is None:
                    self._gone[id(metric)] = metric
            self._wakes.notify()
        if not self._is_begun:
            self._is_begun = True
            self.start()

    def stop(self) -> None:
        """End the thread after what it is doing."""
        with self._wakes:
            self._is_ending = True
            self._wakes.notify()

    def join(self, timeout: float | None = None) -> None:
        if self._is_begun:
            super().join(timeout)

    def run(self) -> None:
        with self._wakes:
            first, self._added = list(self._added.values()), {}
        self._call("init", first)
        for metric in first:
            self._call("metric_change", metric)
        while True:
            with self._wakes:
                while not (self._added or self._gone or self._is_ending):
                    self._wakes.wait()
                added, self._added = list(self._added.values()), {}
                gone, self._gone = list(self._gone.values()), {}
                is_stopped = self._is_ending
            for metric in added:
                self._call("metric_change", metric)
            for metric in gone:
                self._call("metric_removal", metric)
            if is_stopped:
                self._call("close")
                return

    def _call(self, what: str, *arguments: Any) -> None:
        method = getattr(self._reporter, what, None)
        if method is None:
            return  # metric_removal and close are optional
        try:
            method(*arguments)
        except BaseException:  # a reporter that calls sys.exit() is called again, too
            times = self._failures.due()
            if times:
                logger.exception("%s of %s failed (%d times)", what, self._class_name, times)
