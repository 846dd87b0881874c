"""How long the pages of the console, and the API behind them, take; for ``perf/monitoring.py``.

Pages are timed in headless Chromium, from the click on a link until the text is there that comes
last. Paths of the API are timed once at first, when nothing of the user is kept, and then some more
times.
"""

import http.client
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from kbroker.client.admin.topics import NewTopic, create_topics
from kbroker.client.batches.offsets import commit
from kbroker.client.connections.cluster import Cluster
from perf.kafka_distribution import ROOT

# Of a topic each; a request has at most so many items. A machine with other work takes its time.
TOPICS_A_REQUEST = 200
FILL_S = 600.0
# Topics that a group reads.
TOPICS_OF_GROUP = 50
TIMES = 9
TIMES_OF_API = 7
CLICK = """
const [hash, text, done] = arguments;
const main = document.getElementById("main");
location.hash = "#/elsewhere";
setTimeout(() => {
  const began = performance.now();
  location.hash = hash;
  const look = () => {
    if (!main.innerText.includes(text)) return setTimeout(look, 2);
    done(performance.now() - began);
  };
  look();
}, 300);
"""

Pages = Sequence[tuple[str, ...]]


def fill_console(bootstrap: str, topics: Sequence[str], groups: Sequence[str]) -> None:
    """Create topics of a partition each, and let each group have offsets of some of them."""
    with Cluster(bootstrap, request_timeout=FILL_S, deadline=FILL_S) as cluster:
        for at in range(0, len(topics), TOPICS_A_REQUEST):
            wanted = [NewTopic(name, 1, 1) for name in topics[at : at + TOPICS_A_REQUEST]]
            for made in create_topics(cluster, wanted).values():
                if isinstance(made, Exception):
                    raise made
        for number, group in enumerate(groups):
            first = number * TOPICS_OF_GROUP
            read = {topics[(first + n) % len(topics)] for n in range(TOPICS_OF_GROUP)}
            commit(cluster, group, {(name, 0): (0, "") for name in read})


def page_times(url: str, pages: Pages, place: Path) -> dict[str, float]:
    """Medians of the milliseconds from the click until the text is there, by name. pages: of each
    its name, what follows ``#/``, and the text.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    from support.surfaces.browser import Browser

    found = {}
    with Browser(place) as browser:
        browser.size(1200, 900)
        browser.open(f"{url}/console/#/elsewhere")
        browser.await_text("There is no such page")
        for name, hash_, text in pages:
            arguments = {"script": CLICK, "args": [f"#/{hash_}", text]}
            times = [float(browser.ask("POST", "/execute/async", arguments)) for _ in range(TIMES)]
            found[name] = median(times)
    return found


def api_times(address: str, paths: Sequence[str]) -> Mapping[str, tuple[float, float]]:
    """Milliseconds until the last byte by path: the first time, and the median of some more."""
    first = {path: _timed(address, path) for path in paths}
    return {
        path: (first[path], median(_timed(address, path) for _ in range(TIMES_OF_API)))
        for path in paths
    }


def _timed(address: str, path: str) -> float:
    began = time.monotonic()
    get(address, f"/api/v1{path}")
    return (time.monotonic() - began) * 1000


def get(address: str, path: str) -> bytes:
    """The body of a response. Raises RuntimeError for any but 200."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"{path}: {response.status} {body[:200]!r}")
    return body
