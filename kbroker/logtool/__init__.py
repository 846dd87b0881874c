"""Inspects, checks and repairs the files of a log directory while no broker uses them.

``kbroker-log`` (``kbroker/cli/log.py``) is its command line. ``kbroker.storage`` and
``kbroker.record`` decide what a file means; nothing here knows a byte of a format.
"""

import kbroker.record  # noqa: F401 - extensions need its codecs
