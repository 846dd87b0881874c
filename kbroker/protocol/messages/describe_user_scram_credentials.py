"""DescribeUserScramCredentials (50): Which SCRAM mechanisms users have credentials for."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DescribeUserScramCredentialsRequest(Message, api=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS):
    FIELDS = """
    users   []UserName  0+  null 0+
      name  string      0+
    """


class DescribeUserScramCredentialsResponse(Message, api=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS):
    FIELDS = """
    throttle_time_ms    int32                                 0+
    error_code          int16                                 0+
    error_message       string                                0+  null 0+
    results             []DescribeUserScramCredentialsResult  0+
      user              string                                0+
      error_code        int16                                 0+
      error_message     string                                0+  null 0+
      credential_infos  []CredentialInfo                      0+
        mechanism       int8                                  0+
        iterations      int32                                 0+
    """
