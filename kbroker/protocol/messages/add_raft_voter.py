"""AddRaftVoter (80): Add a voter to the KRaft quorum."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class AddRaftVoterRequest(Message, api=ApiKey.ADD_RAFT_VOTER):
    FIELDS = """
    cluster_id          string      0+  null 0+
    timeout_ms          int32       0+
    voter_id            int32       0+
    voter_directory_id  uuid        0+
    listeners           []Listener  0+
      name              string      0+
      host              string      0+
      port              uint16      0+
    ack_when_committed  bool        1+  = true
    """


class AddRaftVoterResponse(Message, api=ApiKey.ADD_RAFT_VOTER):
    FIELDS = """
    throttle_time_ms  int32   0+
    error_code        int16   0+
    error_message     string  0+  null 0+  ignorable
    """
