"""Modules of the client by the names that they had before they moved into rooms.

The list is written out here on purpose: it is what programs could import then.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
from support.running.in_one import in_one

from kbroker.client.admin import acls
from kbroker.legacy import KeyedMessage

EARLIER = {
    "kbroker.client.addresses": "parse_addresses",
    "kbroker.client.arrow": "read_arrow",
    "kbroker.client.arrow_sets": "read",
    "kbroker.client.client_metrics": "Metric",
    "kbroker.client.client_settings": "ClientSettings",
    "kbroker.client.cluster": "Cluster",
    "kbroker.client.cluster_admin": "describe_cluster",
    "kbroker.client.common_settings": "COMMON",
    "kbroker.client.config_admin": "TOPIC",
    "kbroker.client.connection": "Connection",
    "kbroker.client.controller_calls": "ask_controller",
    "kbroker.client.counts": "count_records",
    "kbroker.client.feature_admin": "UPGRADE",
    "kbroker.client.fetch": "RangeFetch",
    "kbroker.client.flushed": "FlushedAtEnd",
    "kbroker.client.group_admin": "list_groups",
    "kbroker.client.hosts": "require_threads",
    "kbroker.client.kerberos": "KerberosInitiator",
    "kbroker.client.oauth": "OAuthBearer",
    "kbroker.client.offsets": "list_offsets",
    "kbroker.client.partition_admin": "elect_leaders",
    "kbroker.client.produce": "BatchProducer",
    "kbroker.client.quota_admin": "EVERY",
    "kbroker.client.reassignment_admin": "PartitionReplica",
    "kbroker.client.record_arrays": "Fields",
    "kbroker.client.replica_reads": "read_replicas",
    "kbroker.client.retry": "Retry",
    "kbroker.client.security": "Security",
    "kbroker.client.stores": "trusted",
    "kbroker.client.token_admin": "Token",
    "kbroker.client.topic_admin": "NewTopic",
    "kbroker.client.topic_reader": "TopicReader",
    "kbroker.client.transaction_admin": "list_transactions",
    "kbroker.client.transactions": "ProducerIdentity",
    "kbroker.client.legacy.async_producer": "AsyncProducer",
    "kbroker.client.legacy.broker_watch": "BrokerWatch",
    "kbroker.client.legacy.channel": "Channel",
    "kbroker.client.legacy.cluster_view": "ClusterView",
    "kbroker.client.legacy.dispatcher": "Dispatcher",
    "kbroker.client.legacy.encoders": "StringEncoder",
    "kbroker.client.legacy.event_handlers": "CallbackHandler",
    "kbroker.client.legacy.fetching": "FetchRequest",
    "kbroker.client.legacy.group_nodes": "group_nodes",
    "kbroker.client.legacy.keyed_message": "KeyedMessage",
    "kbroker.client.legacy.legacy_errors": "QueueFull",
    "kbroker.client.legacy.message_set": "MessageSet",
    "kbroker.client.legacy.offset_channel": "OffsetChannel",
    "kbroker.client.legacy.offset_pairs": "OffsetPairs",
    "kbroker.client.legacy.offset_requests": "OffsetRequest",
    "kbroker.client.legacy.old_import": "OldImport",
    "kbroker.client.legacy.old_logs": "partitions_in",
    "kbroker.client.legacy.old_nodes": "read_layout",
    "kbroker.client.legacy.old_producer": "Producer",
    "kbroker.client.legacy.partitioners": "Partitioner",
    "kbroker.client.legacy.producer_config": "ProducerConfig",
    "kbroker.client.legacy.registered_brokers": "registered_brokers",
    "kbroker.client.legacy.simple_consumer": "SimpleConsumer",
    "kbroker.client.legacy.sync_producer": "SyncProducer",
    "kbroker.client.legacy.topic_metadata": "TopicMetadata",
    "kbroker.client.legacy.znodes": "Znodes",
    "kbroker.client.legacy.zookeeper_consumer": "Consumer",
    "kbroker.client.legacy.zookeeper_consumer.topic_filters": "Whitelist",
    "kbroker.client.legacy.zookeeper_link": "connected",
    "kbroker.client.legacy.zookeeper_tls": "ZooKeeperTls",
}
WITH_PYARROW = {"kbroker.client.arrow", "kbroker.client.arrow_sets"}


@in_one("name", EARLIER)
def test_earlier_name_gives_the_module_that_is_there_now(name):
    if name in WITH_PYARROW:
        pytest.importorskip("pyarrow")
    module = import_module(name)

    value = getattr(module, EARLIER[name])
    home = getattr(value, "__module__", module.__name__)
    assert not f"{home}.".startswith(f"{name}."), "loaded a second time"
    assert getattr(sys.modules[home], EARLIER[name]) is value


def test_earlier_name_first_loads_what_the_rest_uses():
    """A class that two modules had each would be caught by nobody who names the other."""
    program = (
        "from kbroker.client.cluster import Cluster\n"
        "import kbroker.client.connection\n"
        "from kbroker.client.connections.cluster import Cluster as Now\n"
        "assert Cluster is Now\n"
        "import kbroker.client.connections.connection as now\n"
        "assert kbroker.client.connection is now\n"
        "from kbroker.client import config_admin\n"
        "import kbroker.client.admin.configs as configs\n"
        "assert config_admin is configs\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True)


def test_module_that_is_a_room_now_has_what_it_had():
    """``admin`` was the module of users and ACLs."""
    names = (
        "Acl CLUSTER_NAME Credential ITERATIONS MECHANISMS OPERATIONS PATTERN_TYPES PERMISSIONS"
        " RESOURCE_TYPES acl_text create_acls delete_acls delete_credentials list_acls"
        " list_credentials set_password"
    )
    module = import_module("kbroker.client.admin")

    assert [name for name in names.split() if not hasattr(module, name)] == []
    assert not hasattr(module, "no_such_name")


def test_words_of_acls_have_the_numbers_of_the_protocol():
    """WIRE: KIP-140, KIP-290 and KIP-430; written out beside where they come from."""
    assert acls.RESOURCE_TYPES == {
        "ANY": 1,
        "TOPIC": 2,
        "GROUP": 3,
        "CLUSTER": 4,
        "TRANSACTIONAL_ID": 5,
        "DELEGATION_TOKEN": 6,
        "USER": 7,
    }
    assert acls.PATTERN_TYPES == {"ANY": 1, "MATCH": 2, "LITERAL": 3, "PREFIXED": 4}
    assert acls.PERMISSIONS == {"ANY": 1, "DENY": 2, "ALLOW": 3}
    assert list(acls.OPERATIONS.items())[:3] == [("ANY", 1), ("ALL", 2), ("READ", 3)]
    assert list(acls.OPERATIONS.items())[-1] == ("TWO_PHASE_COMMIT", 15)


def test_package_of_0_8_gives_its_classes_by_its_earlier_name():
    earlier = import_module("kbroker.client.legacy")

    assert earlier.KeyedMessage is KeyedMessage
    assert "KeyedMessage" in dir(earlier)


def test_name_that_never_was_is_no_module():
    with pytest.raises(ModuleNotFoundError, match=r"kbroker\.client\.clusters"):
        import_module("kbroker.client.clusters")
