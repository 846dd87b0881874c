"""AlterUserScramCredentials (51): Set and remove SCRAM credentials of users."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class AlterUserScramCredentialsRequest(Message, api=ApiKey.ALTER_USER_SCRAM_CREDENTIALS):
    FIELDS = """
    deletions          []ScramCredentialDeletion   0+
      name             string                      0+
      mechanism        int8                        0+
    upsertions         []ScramCredentialUpsertion  0+
      name             string                      0+
      mechanism        int8                        0+
      iterations       int32                       0+
      salt             bytes                       0+
      salted_password  bytes                       0+
    """


class AlterUserScramCredentialsResponse(Message, api=ApiKey.ALTER_USER_SCRAM_CREDENTIALS):
    FIELDS = """
    throttle_time_ms  int32                              0+
    results           []AlterUserScramCredentialsResult  0+
      user            string                             0+
      error_code      int16                              0+
      error_message   string                             0+  null 0+
    """
