"""FindCoordinator (10): Find the broker that coordinates a group, transaction or share partition.

Version 4 asks for several keys at once and responds with a list.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class FindCoordinatorRequest(Message, api=ApiKey.FIND_COORDINATOR):
    FIELDS = """
    key               string    0-3
    key_type          int8      1+
    coordinator_keys  []string  4+
    """


class FindCoordinatorResponse(Message, api=ApiKey.FIND_COORDINATOR):
    FIELDS = """
    throttle_time_ms  int32          1+   ignorable
    error_code        int16          0-3
    error_message     string         1-3  null 1-3  ignorable
    node_id           int32          0-3
    host              string         0-3
    port              int32          0-3
    coordinators      []Coordinator  4+
      key             string         4+
      node_id         int32          4+
      host            string         4+
      port            int32          4+
      error_code      int16          4+
      error_message   string         4+   null 4+  ignorable
    """
