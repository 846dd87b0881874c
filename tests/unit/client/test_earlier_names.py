"""Modules of the client by the names that they had before they moved into rooms.

The list is written out here on purpose: it is what programs could import then.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from tests.support.in_one import in_one

EARLIER = {
    "kbroker.client.addresses": "parse_addresses",
    "kbroker.client.arrow": "read_arrow",
    "kbroker.client.arrow_sets": "read",
    "kbroker.client.client_metrics": "Metric",
    "kbroker.client.client_settings": "Setting",
    "kbroker.client.cluster": "Cluster",
    "kbroker.client.common_settings": "COMMON",
    "kbroker.client.connection": "Connection",
    "kbroker.client.controller_calls": "ask_controller",
    "kbroker.client.counts": "count_records",
    "kbroker.client.fetch": "RangeFetch",
    "kbroker.client.flushed": "FlushedAtEnd",
    "kbroker.client.hosts": "require_threads",
    "kbroker.client.kerberos": "Kerberos",
    "kbroker.client.oauth": "OAuthBearer",
    "kbroker.client.offsets": "list_offsets",
    "kbroker.client.produce": "BatchProducer",
    "kbroker.client.record_arrays": "Fields",
    "kbroker.client.retry": "Retry",
    "kbroker.client.security": "Security",
    "kbroker.client.stores": "trusted",
    "kbroker.client.topic_reader": "TopicReader",
    "kbroker.client.transactions": "ProducerIdentity",
}
WITH_PYARROW = {"kbroker.client.arrow", "kbroker.client.arrow_sets"}


@in_one("name", EARLIER)
def test_earlier_name_gives_the_module_that_is_there_now(name):
    if name in WITH_PYARROW:
        pytest.importorskip("pyarrow")
    module = import_module(name)

    assert sys.modules[module.__name__] is module, "loaded a second time"
    assert module.__name__ != name
    assert module.__spec__.name == module.__name__
    assert hasattr(module, EARLIER[name])


def test_earlier_name_first_loads_what_the_rest_uses():
    """A class that two modules had each would be caught by nobody who names the other."""
    program = (
        "from kbroker.client.cluster import Cluster\n"
        "import kbroker.client.connection\n"
        "from kbroker.client.connections.cluster import Cluster as Now\n"
        "assert Cluster is Now\n"
        "import kbroker.client.connections.connection as now\n"
        "assert kbroker.client.connection is now\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True)


def test_name_that_never_was_is_no_module():
    with pytest.raises(ModuleNotFoundError, match=r"kbroker\.client\.clusters"):
        import_module("kbroker.client.clusters")
