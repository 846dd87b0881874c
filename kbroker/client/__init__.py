"""A wire client of whole record batches; it speaks to any Kafka.

Blocking, driven by the caller, every call with a deadline. No record objects and no consumer group
(docs/decisions/0007-client-and-spark.md). ``kbroker.client.arrow`` is the part that needs pyarrow.
"""

import kbroker.record  # noqa: F401 - extensions need its codecs
