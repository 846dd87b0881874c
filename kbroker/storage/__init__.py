"""The log on disk: segments, indexes, checkpoints, recovery and retention.

Only io workers write it.
"""
