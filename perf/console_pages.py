"""How long pages of the console take to appear in headless Chromium; for ``perf/monitoring.py``."""

import sys
from collections.abc import Sequence
from pathlib import Path

from kbroker.client.admin.topics import NewTopic, create_topics
from kbroker.client.connections.cluster import Cluster
from perf.kafka_distribution import ROOT

# Of a topic each; a request has at most so many items.
TOPICS_A_REQUEST = 1000
TIMES = 9
CLICK = """
const [hash, text, done] = arguments;
const main = document.getElementById("main");
location.hash = "#/transactions";
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


def page_times(
    bootstrap: str,
    url: str,
    topics: Sequence[str],
    pages: Sequence[tuple[str, ...]],
    place: Path,
) -> dict[str, float]:
    """Medians of the milliseconds from the click until the text is there, by name. pages: of each
    its name, what follows ``#/``, and the text.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    from support.surfaces.browser import Browser

    with Cluster(bootstrap) as cluster:
        for at in range(0, len(topics), TOPICS_A_REQUEST):
            wanted = [NewTopic(name, 1, 1) for name in topics[at : at + TOPICS_A_REQUEST]]
            for made in create_topics(cluster, wanted).values():
                if isinstance(made, Exception):
                    raise made
    found = {}
    with Browser(place) as browser:
        browser.size(1200, 900)
        browser.open(f"{url}/console/#/transactions")
        browser.await_text("Transactions")
        for name, hash_, text in pages:
            arguments = {"script": CLICK, "args": [f"#/{hash_}", text]}
            times = sorted(
                float(browser.ask("POST", "/execute/async", arguments)) for _ in range(TIMES)
            )
            found[name] = times[TIMES // 2]
    return found
