"""DeleteTopics (20): Delete topics.

Version 6 names topics by name or id; earlier versions have a list of names.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DeleteTopicsRequest(Message, api=ApiKey.DELETE_TOPICS):
    FIELDS = """
    topics       []DeleteTopicState  6+
      name       string              6+   null 6+  = null
      topic_id   uuid                6+
    topic_names  []string            0-5  ignorable
    timeout_ms   int32               0+
    """


class DeleteTopicsResponse(Message, api=ApiKey.DELETE_TOPICS):
    FIELDS = """
    throttle_time_ms  int32                   1+  ignorable
    responses         []DeletableTopicResult  0+
      name            string                  0+  null 6+
      topic_id        uuid                    6+  ignorable
      error_code      int16                   0+
      error_message   string                  5+  null 5+  = null  ignorable
    """
