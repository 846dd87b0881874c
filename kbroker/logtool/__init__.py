"""Looks at, checks and repairs the files of a log directory while no broker runs on them.

``kbroker-log`` (``kbroker/cli/log.py``) is its command line. What a file means is decided by
``kbroker.storage`` and ``kbroker.record``; nothing here knows a byte of a format.
"""
