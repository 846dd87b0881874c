"""Watches every surface that shows health while something is wrong, and notes when it turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from kbroker.testing import Broker

# Between two looks at a surface; commands take longer than that to start.
PAUSE_S = 0.25
COMMAND = "import sys; from kbroker.commands import kbroker; sys.exit(kbroker())"
# Whether it shows that something is wrong.
Surface = Callable[[], bool]


class Watch(threading.Thread):
    """Looks at one surface again and again. turned: of each change, when the look began that showed
    it, and whether it was red. A command takes a second or more until it has looked.
    """

    def __init__(self, name: str, surface: Surface) -> None:
        super().__init__(name=name, daemon=True)
        self._surface = surface
        self._ends = threading.Event()
        self.turned: list[tuple[float, bool]] = []
        self.looks = 0

    def run(self) -> None:
        while not self._ends.is_set():
            at = time.monotonic()
            is_red = self._surface()
            self.looks += 1
            if not self.turned or self.turned[-1][1] != is_red:
                self.turned.append((at, is_red))
            self._ends.wait(PAUSE_S)

    def end(self) -> None:
        self._ends.set()
        self.join()

    @property
    def is_red(self) -> bool:
        return bool(self.turned) and self.turned[-1][1]

    def seconds_until(self, is_red: bool, since: float) -> float | None:
        """Until it was first seen so, and stays so for now; None: it is not."""
        if not self.turned or self.turned[-1][1] != is_red:
            return None
        return max(0.0, self.turned[-1][0] - since)


@contextmanager
def watching(surfaces: Mapping[str, Surface]) -> Iterator[dict[str, Watch]]:
    """Look at all of them at the same time."""
    watches = {name: Watch(name, surface) for name, surface in surfaces.items()}
    for watch in watches.values():
        watch.start()
    try:
        yield watches
    finally:
        for watch in watches.values():
            watch.end()


def page(broker: Broker, path: str) -> tuple[int, str]:
    """Status 0: no answer."""
    try:
        with urllib.request.urlopen(broker.metrics_url + path, timeout=2) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """A command of ``kbroker``."""
    environment = {**os.environ, "KBROKER_TIMEOUT": "3"}
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *words], capture_output=True, text=True, env=environment
    )


def of_broker(broker: Broker) -> dict[str, Surface]:
    """What speaks of one broker."""

    def probe(path: str) -> Surface:
        return lambda: page(broker, path)[0] != 200

    def metrics() -> bool:
        return "\nkbroker_healthy 1\n" not in page(broker, "/metrics")[1]

    def top() -> bool:
        found = run("top", "--pid", str(broker.pid), "-n", "1", "-o", "json")
        return found.returncode != 0 or bool(json.loads(found.stdout)["findings"])

    return {
        "/livez": probe("/livez"),
        "/readyz": probe("/readyz"),
        "/readyz?for=writes": probe("/readyz?for=writes"),
        "/healthz": probe("/healthz"),
        "/health": probe("/health"),
        "/metrics": metrics,
        "health": lambda: run("health", "-b", broker.bootstrap).returncode != 0,
        "status --local": lambda: (
            run("status", "--local", "--pid", str(broker.pid)).returncode != 0
        ),
        "top": top,
    }


def of_cluster(brokers: Sequence[Broker]) -> dict[str, Surface]:
    """What speaks of the cluster, as one of these brokers tells it."""
    asked = brokers[0].bootstrap

    def metrics() -> bool:
        texts = [page(broker, "/metrics")[1] for broker in brokers]
        return not any("\nkbroker_brokers_missing 0\n" in text for text in texts)

    def console() -> bool:
        status, text = page(brokers[0], "/api/v1/findings")
        return status != 200 or bool(json.loads(text)["findings"])

    return {
        "status": lambda: run("status", "-b", asked).returncode != 0,
        "health --cluster": lambda: run("health", "--cluster", "-b", asked).returncode != 0,
        "doctor": lambda: run("doctor", "--watch", "0", "-b", asked).returncode != 0,
        "console": console,
        "/metrics, missing": metrics,
    }
