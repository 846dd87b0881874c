"""RemoveRaftVoter (81): Remove a voter from the KRaft quorum."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class RemoveRaftVoterRequest(Message, api=ApiKey.REMOVE_RAFT_VOTER):
    FIELDS = """
    cluster_id          string  0+  null 0+
    voter_id            int32   0+
    voter_directory_id  uuid    0+
    """


class RemoveRaftVoterResponse(Message, api=ApiKey.REMOVE_RAFT_VOTER):
    FIELDS = """
    throttle_time_ms  int32   0+
    error_code        int16   0+
    error_message     string  0+  null 0+  ignorable
    """
