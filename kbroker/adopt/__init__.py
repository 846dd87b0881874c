"""Opens data directories of Apache Kafka in kbroker, and prepares those of kbroker for Kafka.

Used by ``kbroker-adopt``, while no broker runs. docs/migration.md is the page for users.
"""

import kbroker.record  # noqa: F401 - extensions need its codecs
