"""The table of error codes and the exception families."""

import pickle

import pytest

from kbroker.errors import ConfigError, ErrorCode, StorageError, WireError

pytestmark = pytest.mark.unit


def test_error_codes_cover_every_code_without_a_gap():
    assert [int(code) for code in ErrorCode] == list(range(-1, 134))
    assert len(ErrorCode) == 135


def test_error_code_from_an_int_is_the_member_itself():
    assert ErrorCode(6) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER == 6
    assert ErrorCode(6).name == "NOT_LEADER_OR_FOLLOWER"


def test_text_for_a_client_that_repeats_what_it_sent_is_cut():
    """It did not fit a string of the wire: created topics of the request got UNKNOWN_SERVER_ERROR
    because of the one that was rejected.
    """
    error = WireError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Brokers " + "123, " * 10_000)

    assert len(error.message) == 2_000
    assert error.message.endswith("...")
    assert pickle.loads(pickle.dumps(error)).message == error.message


def test_error_code_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="9999"):
        ErrorCode(9999)


def test_error_codes_agree_with_kafka_python_on_what_is_retriable():
    errors = pytest.importorskip("kafka.errors")
    theirs = {
        cls.errno: bool(cls.retriable)
        for cls in vars(errors).values()
        if isinstance(cls, type) and isinstance(getattr(cls, "errno", None), int)
    }
    # kafka-python never retries after a corrupt batch, Kafka's own clients do.
    theirs.pop(ErrorCode.CORRUPT_MESSAGE)
    assert len(theirs) > 100

    assert {code: ErrorCode(code).retriable for code in theirs} == theirs


def test_wire_error_without_text_carries_the_default_message():
    error = WireError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    assert error.message == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.message
    assert WireError(ErrorCode.INVALID_CONFIG, "segment.bytes=1").message == "segment.bytes=1"


@pytest.mark.parametrize(
    "error",
    [
        WireError(ErrorCode.INVALID_CONFIG, "text"),
        StorageError("/data/a", "disk full"),
        ConfigError("num.io.threads", "x", "an integer from 1 to 64"),
    ],
)
def test_errors_survive_the_way_between_processes(error):
    copy = pickle.loads(pickle.dumps(error))

    assert vars(copy) == vars(error)
    assert str(copy) == str(error)
