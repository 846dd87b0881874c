"""Classes of others: what refuses a start, and what their failures mean later."""

from __future__ import annotations

from typing import Any

import pytest
from support.brokers.plugged_in import NamesAuthorizer

from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError, ErrorCode, WireError
from kbroker.security.acl_authorizer import CLASS_NAMES, AclAuthorizer
from kbroker.security.authorizer import AllowAll
from kbroker.security.custom_authorizer import CustomAuthorizer
from kbroker.security.operations import AclOperation, Kind
from kbroker.security.policies import ConfigRequest, TopicRequest
from kbroker.security.principal import ANONYMOUS, KafkaPrincipal
from kbroker.workers import plugged

pytestmark = pytest.mark.unit

AUTHORIZER = "authorizer.class.name"
TOPIC_POLICY = "create.topic.policy.class.name"
CONFIG_POLICY = "alter.config.policy.class.name"


def config(name: str, value: str) -> BrokerConfig:
    return BrokerConfig({name: value})


def authorizer(name: str, **properties: str) -> Any:
    return plugged.make_authorizer(
        config(AUTHORIZER, f"support.brokers.plugged_in.{name}"), properties
    )


def test_authorizer_without_a_name_allows_everything() -> None:
    plugged.check(BrokerConfig({}))
    assert isinstance(plugged.make_authorizer(BrokerConfig({}), {}), AllowAll)


@pytest.mark.parametrize("name", CLASS_NAMES)
def test_authorizer_of_kafka_is_kbrokers_with_its_settings(name: str) -> None:
    settings = {
        AUTHORIZER: name,
        "super.users": "User:admin",
        "allow.everyone.if.no.acl.found": "true",
    }
    made = plugged.make_authorizer(BrokerConfig(settings), {})

    plugged.check(BrokerConfig(settings))
    assert isinstance(made, AclAuthorizer)
    assert made.allows_everything(KafkaPrincipal("User", "admin"), "h")
    assert made.authorize(ANONYMOUS, "h", AclOperation.READ, Kind.TOPIC, ["t"]) == [True]


@pytest.mark.parametrize("setting", [AUTHORIZER, TOPIC_POLICY, CONFIG_POLICY])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("org.example.JavaAuthorizer", "Java classes are never loaded"),
        ("kafka.security.authorizer.AclAuthoriser", "no module"),
        ("support.brokers.plugged_in.Missing", "Missing"),
        ("support.brokers.plugged_in.AclOperation", "a class with a method"),
        ("NoModule", "package.module.Class"),
        ("os; import sys.x", "package.module.Class"),
    ],
)
def test_class_that_cannot_be_loaded_refuses_the_start(setting: str, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        plugged.check(config(setting, name))
    assert refused.value.key == setting


def test_class_that_cannot_be_made_refuses_the_start() -> None:
    with pytest.raises(ConfigError, match="cannot reach the directory"):
        authorizer("RefusingAuthorizer")


def test_custom_authorizer_is_asked_and_has_the_properties() -> None:
    made = authorizer("NamesAuthorizer", a="b")

    names = ["open", "secret-1"]
    verdicts = made.authorize(ANONYMOUS, "h", AclOperation.READ, Kind.TOPIC, names)
    assert verdicts == [True, False]
    assert made.allows_everything(KafkaPrincipal("User", "root"), "h")
    assert made.authorize_any(ANONYMOUS, "h", AclOperation.READ, Kind.TOPIC)
    assert not made.changed()
    inner = made._authorizer
    assert isinstance(inner, NamesAuthorizer) and inner.properties == {"a": "b"}


def test_custom_authorizer_that_fails_denies() -> None:
    made = authorizer("FailingAuthorizer")

    assert not made.allows_everything(ANONYMOUS, "h")
    assert made.authorize(ANONYMOUS, "h", AclOperation.READ, Kind.TOPIC, ["a"]) == [False]
    assert not made.authorize_any(ANONYMOUS, "h", AclOperation.READ, Kind.TOPIC)


def test_custom_authorizer_says_when_verdicts_change() -> None:
    class Changing(NamesAuthorizer):
        def changed(self) -> bool:
            return True

    assert CustomAuthorizer(Changing({}), "x").changed()


def test_policies_reject_with_their_text() -> None:
    made = plugged.make_policies(
        BrokerConfig(
            {
                TOPIC_POLICY: "support.brokers.plugged_in.TopicPolicy",
                CONFIG_POLICY: "support.brokers.plugged_in.ConfigPolicy",
            }
        ),
        {"num.partitions": "2"},
    )

    made.check_topic(TopicRequest("t", 2, 1, None, {}))
    with pytest.raises(WireError, match="t: at most 2") as rejected:
        made.check_topic(TopicRequest("t", 3, 1, None, {}))
    assert rejected.value.code is ErrorCode.POLICY_VIOLATION
    with pytest.raises(WireError, match="not yours"):
        made.check_configs(ConfigRequest("topic", "t", {"retention.ms": "1"}))
    with pytest.raises(WireError) as failed:
        made.check_topic(TopicRequest("breaks-policy", 1, 1, None, {}))
    assert failed.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_policies_that_are_not_configured_reject_nothing() -> None:
    made = plugged.make_policies(BrokerConfig({}), {})

    made.check_topic(TopicRequest("t", 10_000, 1, None, {}))
    made.check_configs(ConfigRequest("topic", "t", {"retention.ms": "1"}))
