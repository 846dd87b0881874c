"""Subscription and assignment: the data of consumers in JoinGroup and SyncGroup.

The bytes on the wire begin with the version as an int16, which is not part of these definitions. A
reader takes a newer version than it knows for the newest one it knows and ignores what follows.
Version 1 adds the partitions a member owns, 2 its generation, 3 its rack.
"""

from kbroker.protocol.message import Message


class ConsumerProtocolSubscription(Message, versions=(0, 3)):
    FIELDS = """
    topics            []string          0+
    user_data         bytes             0+  null 0+  = null
    owned_partitions  []TopicPartition  1+  ignorable
      topic           string            1+
      partitions      []int32           1+
    generation_id     int32             2+  = -1  ignorable
    rack_id           string            3+  null 3+  = null  ignorable
    """


class ConsumerProtocolAssignment(Message, versions=(0, 3)):
    FIELDS = """
    assigned_partitions  []TopicPartition  0+
      topic              string            0+
      partitions         []int32           0+
    user_data            bytes             0+  null 0+  = null
    """
