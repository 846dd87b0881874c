"""kbroker's own consumer in groups, alone and beside others' clients.

What is asked of every client (``test_groups``, ``test_group_churn``) is asked of it, too.
KBROKER_EXAM_BOOTSTRAP=host:port runs it against another broker.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from interop import test_group_churn as churning
from interop import test_groups as groups
from interop.conftest import combinations
from interop.test_group_churn import seed
from interop.test_group_churn import writer as churn_writer
from interop.test_groups import topic6, writer
from support.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing
from support.drivers.members import overlaps

from kbroker.testing import wait_until

__all__ = ["churn_writer", "seed", "topic6", "writer"]  # fixtures

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
]

WAYS = [
    ("classic", "range"),
    ("classic", "roundrobin"),
    ("classic", "sticky"),
    ("classic", "cooperative-sticky"),
    ("consumer", "uniform"),
]


@pytest.mark.parametrize(("protocol", "assignor"), WAYS)
def test_it_commits_and_its_successor_continues_there(
    protocol, assignor, join, writer, groups_of, topic6, group
):
    groups.test_member_commits_and_its_successor_continues_there(
        "kbroker", protocol, assignor, join, writer, groups_of, topic6, group
    )


@pytest.mark.parametrize(("protocol", "assignor"), WAYS)
def test_members_share_partitions_and_take_over(protocol, assignor, join, writer, topic6, group):
    groups.test_members_share_partitions_and_take_over(
        "kbroker", protocol, assignor, join, writer, topic6, group
    )


@pytest.mark.parametrize(("protocol", "assignor"), WAYS[3:])
def test_only_what_moves_is_stopped(protocol, assignor, join, writer, topic6, group):
    groups.test_cooperative_hand_over_stops_only_what_moves(
        "kbroker", protocol, assignor, join, writer, topic6, group
    )


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_static_member_bounces_without_a_rebalance(
    protocol, join, writer, groups_of, topic6, group
):
    groups.test_static_member_bounces_without_a_rebalance(
        "kbroker", protocol, join, writer, groups_of, topic6, group
    )


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_pattern_sees_a_new_topic(protocol, join, writer, create, topic, group):
    groups.test_subscription_by_pattern_sees_a_new_topic(
        "kbroker", protocol, join, writer, create, topic, group
    )


@pytest.mark.parametrize(
    ("names", "protocol", "assignor"),
    [
        pytest.param(one.values[:-2], *one.values[-2:], marks=one.marks, id=one.id)
        for one in combinations(
            ("kbroker", "kafka-python", "aiokafka", "classic", "range"),
            ("kafka-python", "kbroker", "confluent-kafka", "classic", "cooperative-sticky"),
            ("kbroker", "java 3.9.1", "confluent-kafka", "classic", "range"),
            ("java 4.3.0", "kbroker", "kafka-python", "classic", "roundrobin"),
            ("kbroker", "java 4.3.0", "java 3.9.1", "kbroker", "classic", "sticky"),
            ("java 3.9.1", "kbroker", "java 4.3.0", "classic", "cooperative-sticky"),
            ("kbroker", "java 4.3.0", "confluent-kafka", "consumer", "uniform"),
        )
    ],
)
def test_it_shares_a_group_with_others(names, protocol, assignor, join, writer, topic6, group):
    """Each takes its turn as the leader, because members leave in the order they joined."""
    members, left, values = [], [], []
    for number, name in enumerate(names):
        members.append(join(name, group, topic6, protocol=protocol, assignor=assignor))
        groups.wait_shared(topic6, members)
        values += groups.write(writer, topic6, f"join{number}", 3)
        groups.wait_for(members, values)
    while len(members) > 1:
        gone = members.pop(0)
        gone.commit()
        gone.close()
        left.append(gone)
        groups.wait_shared(topic6, members)
        values += groups.write(writer, topic6, f"leave{len(left)}", 3)
        groups.wait_for([*left, *members], values)


def test_members_of_both_protocols_meet_in_one_group(join, writer, topic6, group):
    old = join("kbroker", group, topic6)
    groups.wait_shared(topic6, [old], groups.PARTITIONS)
    new = join("kbroker", group, topic6, protocol="consumer")
    groups.wait_shared(topic6, [old, new], 3)
    values = groups.write(writer, topic6, "both", 3)
    groups.wait_for([old, new], values)
    old.close()
    groups.wait_shared(topic6, [new], groups.PARTITIONS)
    values += groups.write(writer, topic6, "new", 3)
    groups.wait_for([old, new], values)
    assert overlaps([old, new]) == []


JAVA = [] if java_missing() else ["java 4.3.0"]
CHURN = [
    pytest.param(["kbroker"] * 3 + ["confluent-kafka"] + JAVA, {}, id="eager"),
    pytest.param(
        ["kbroker"] * 2 + ["confluent-kafka"], {"assignor": "cooperative-sticky"}, id="cooperative"
    ),
    pytest.param(
        ["kbroker"] * 3 + ["confluent-kafka"] + JAVA, {"protocol": "consumer"}, id="consumer"
    ),
]


@pytest.mark.parametrize(("names", "how"), CHURN)
def test_each_record_has_one_owner_while_members_come_and_go(
    names, how, join, churn_writer, topic, group, seed
):
    run: Callable = churning.churn(join, names, group, topic, **how)
    members, everyone = run(random.Random(seed), churning.SHORT_S * 3)
    churning.check(churn_writer, members, everyone, topic)


def test_a_member_that_stops_is_replaced_after_its_session(join, writer, topic6, group):
    """It is not closed: its heartbeats end."""
    stopped = join("kbroker", group, topic6, session_ms=2000)
    stays = join("kbroker", group, topic6)
    groups.wait_shared(topic6, [stopped, stays], 3)
    member = stopped.consumer._core.membership._member
    member.state = type(member.state).GONE
    wait_until(
        lambda: stays.owned == groups.partitions_of(topic6), groups.JOIN_S, "the other takes over"
    )
