"""The face of the admin client: settings, deadlines, threads."""

from __future__ import annotations

import inspect
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from support.clients.scripted_produce import Scripted

from kbroker.client import KafkaAdminClient
from kbroker.client.admin.access_calls import AccessCalls
from kbroker.client.admin.admin_settings import SETTINGS
from kbroker.client.admin.calls import AdminCalls
from kbroker.client.admin.cluster_calls import ClusterCalls
from kbroker.client.admin.group_calls import GroupCalls
from kbroker.client.admin.topic_calls import TopicCalls
from kbroker.client.errors import ClientClosed, SettingRefused, Timeout, UnreachableError
from kbroker.errors import ErrorCode

pytestmark = pytest.mark.unit

DOCS = Path(__file__).parents[4] / "docs" / "clients.md"


def public(kind: type) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]


def test_settings_are_checked_and_those_without_effect_are_told(caplog):
    with pytest.raises(SettingRefused, match="did you mean request"):
        KafkaAdminClient(bootstrap_servers="a:1", requests_timeout_ms=5)
    with pytest.raises(SettingRefused, match="bootstrap"):
        KafkaAdminClient()
    made = KafkaAdminClient({"bootstrap.servers": "a:1", "retries": 3})
    assert made.client_id.startswith("adminclient-")
    assert [record.getMessage() for record in caplog.records] == [
        f"the setting retries has no effect: {SETTINGS['retries'].no_effect}"
    ]


def test_call_has_the_deadline_of_the_client_or_of_its_view():
    with KafkaAdminClient(bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=100) as admin:
        with pytest.raises(UnreachableError):
            admin.list_topics()
    with Scripted() as broker, KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        broker.leader = -1
        with pytest.raises(Timeout, match=r"delete records.*t-0: LEADER_NOT_AVAILABLE"):
            admin.within(0.2).delete_records({("t", 0): 1})


def test_threads_share_a_client():
    found: list[Any] = []
    with Scripted() as broker, KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:

        def ask() -> None:
            found.extend(topic.name for topic in admin.describe_topics(["t"]))

        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert found == ["t"] * 5


def test_rejected_topic_is_an_error():
    with Scripted() as broker, KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        broker.topic_error = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        with pytest.raises(Exception, match="topic t"):
            admin.describe_topics(["t"])
    with pytest.raises(ClientClosed):
        admin.list_topics()


@pytest.mark.parametrize("kind", [TopicCalls, GroupCalls, AccessCalls, ClusterCalls])
def test_every_call_is_documented(kind):
    """With annotations and a docstring, and in the table of docs/clients.md."""
    told = set(re.findall(r"`(\w+)", DOCS.read_text()))
    assert issubclass(kind, AdminCalls)
    for name in public(kind):
        signature = inspect.signature(getattr(kind, name))
        assert getattr(kind, name).__doc__, name
        assert signature.return_annotation is not inspect.Signature.empty, name
        assert name in told, name
