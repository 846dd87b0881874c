"""What the history of a broker measures: names of its series, and the totals that they come from.

The exporter records them, the console's API asks for them by these names.
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.metrics import catalog
from kbroker.metrics.catalog import MetricRow

# A total of the broker -> what its rate is called.
RATES: Mapping[str, tuple[MetricRow, ...]] = {
    "records_in": (catalog.PRODUCE_MESSAGES, catalog.OWN_MESSAGES),
    "bytes_in": (catalog.PRODUCE_BYTES, catalog.OWN_BYTES),
    "bytes_out": (catalog.CONSUMER_BYTES,),
    "replicated_in": (catalog.FOLLOWED_BYTES,),
    "replicated_out": (catalog.FOLLOWER_BYTES,),
    "failures": (catalog.PRODUCE_FAILURES, catalog.PARTITION_READS_FAILED),
}
CONNECTIONS, REQUESTS = "connections", "requests"
# What of a request -> its row of times: that of its API key.
TIMES: Mapping[str, int] = {"produce_ms": 0, "fetch_ms": 1}
TOPIC_IN, TOPIC_OUT, LAG, FREE = "topic_bytes_in", "topic_bytes_out", "lag", "free_bytes"
CLIENT_IN, CLIENT_OUT = "client_bytes_in", "client_bytes_out"
HOUR, DAY = "hour", "day"
OF_BROKER = (*RATES, REQUESTS, CONNECTIONS, *TIMES)
OF_TOPICS, OF_GROUPS, OF_DISKS = (TOPIC_IN, TOPIC_OUT), (LAG,), (FREE,)
OF_CLIENTS = CLIENT_IN, CLIENT_OUT
