"""Java's names of errors and the order of its hash maps."""

from __future__ import annotations

import pytest

from kbroker.cli.kafka.java_words import (
    hash_order,
    java_class,
    java_text,
    partition_hash,
    string_hash,
)
from kbroker.client.errors import RejectedError
from kbroker.errors import ErrorCode

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "UnknownTopicOrPartitionException"),
        (ErrorCode.TOPIC_ALREADY_EXISTS, "TopicExistsException"),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "ClusterAuthorizationException"),
        (ErrorCode.GROUP_ID_NOT_FOUND, "GroupIdNotFoundException"),
        (ErrorCode.NON_EMPTY_GROUP, "GroupNotEmptyException"),
        (ErrorCode.REQUEST_TIMED_OUT, "TimeoutException"),
    ],
)
def test_error_has_the_class_of_the_java_client(code, name):
    assert java_class(code) == f"org.apache.kafka.common.errors.{name}"


def test_message_is_the_brokers_own_or_that_of_the_code():
    own = RejectedError(ErrorCode.GROUP_ID_NOT_FOUND, "group g", "Group g not found.")
    bare = RejectedError(ErrorCode.NON_EMPTY_GROUP, "group g")

    assert java_text(own).endswith("GroupIdNotFoundException: Group g not found.")
    assert java_text(bare).endswith("GroupNotEmptyException: The group is not empty.")


def test_hash_codes_are_java_s():
    assert string_hash("") == 0
    assert string_hash("hello") == 99162322
    assert string_hash("𝄞") == 0xD834 * 31 + 0xDD1E
    assert partition_hash(("", 2)) == 31 * 33


def test_order_is_by_bucket_and_then_as_given():
    # Hash codes 97, 98, 113: the first and the last share a bucket of 16.
    assert hash_order(["q", "b", "a"], string_hash) == ["q", "a", "b"]
    assert hash_order("abq", string_hash, 64) == ["a", "b", "q"]
    assert hash_order([], string_hash) == []
