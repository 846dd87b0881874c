"""The log on disk: segments, indexes, checkpoints, recovery and retention.

Only io workers write it.
"""

import kbroker.record  # noqa: F401 - extensions need its codecs
