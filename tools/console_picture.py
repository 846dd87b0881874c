#!/usr/bin/env python3
"""Takes docs/console.png, the picture of the web console that README shows.

It starts a broker, fills it with made-up topics and groups, opens a page in headless Chromium and
saves what it shows. Needs chromium and chromium-driver.
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.surfaces.browser import Browser  # noqa: E402

from kbroker.client import KafkaAdminClient, KafkaConsumer, KafkaProducer  # noqa: E402
from kbroker.client.admin.topics import NewTopic  # noqa: E402
from kbroker.testing import Broker  # noqa: E402

# Topic -> its partitions and records.
TOPICS = {
    "clicks": (6, 48_000),
    "invoices": (3, 900),
    "orders": (6, 12_000),
    "payments": (3, 7_500),
}
WIDTH, HEIGHT = 1000, 340


def fill(broker: Broker) -> None:
    """Topics with records, and a group that is behind in one of them."""
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, sizes[0]) for name, sizes in TOPICS.items()])
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for name, (_, records) in TOPICS.items():
            producer.send_many(name, [b'{"id": %d}' % number for number in range(records)])
    with KafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        group_id="billing",
        auto_offset_reset="earliest",
        max_poll_records=5_000,
    ) as consumer:
        consumer.subscribe(["orders"])
        while not consumer.poll(1.0):
            pass
        consumer.commit_sync()


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--page", default="topics", help="what follows #/ in the address")
    parser.add_argument("--text", default="payments", help="what the page shows when it is there")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "console.png")
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as place,
        Broker(console_enable="true", num_network_threads=1, num_io_threads=1) as broker,
        Browser(Path(place)) as browser,
    ):
        fill(broker)
        browser.size(WIDTH, HEIGHT)
        browser.open(f"{broker.metrics_url}/console/#/{chosen.page}")
        browser.await_text(chosen.text)
        chosen.output.write_bytes(base64.b64decode(browser.ask("GET", "/screenshot")))
    print(f"wrote {chosen.output}: {chosen.output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
