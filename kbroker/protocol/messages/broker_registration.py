"""BrokerRegistration (62): A broker registers with a KRaft controller.

Versions 0 to 3 cannot carry features whose first version is 0.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class BrokerRegistrationRequest(Message, api=ApiKey.BROKER_REGISTRATION):
    FIELDS = """
    broker_id                int32       0+
    cluster_id               string      0+
    incarnation_id           uuid        0+
    listeners                []Listener  0+
      name                   string      0+
      host                   string      0+
      port                   uint16      0+
      security_protocol      int16       0+
    features                 []Feature   0+
      name                   string      0+
      min_supported_version  int16       0+
      max_supported_version  int16       0+
    rack                     string      0+  null 0+
    is_migrating_zk_broker   bool        1+
    log_dirs                 []uuid      2+  ignorable
    previous_broker_epoch    int64       3+  = -1  ignorable
    """


class BrokerRegistrationResponse(Message, api=ApiKey.BROKER_REGISTRATION):
    FIELDS = """
    throttle_time_ms  int32  0+
    error_code        int16  0+
    broker_epoch      int64  0+  = -1
    """
