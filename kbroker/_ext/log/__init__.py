"""The active end of a log, its indexes, its producers, and requests that wait for a commit."""
