"""The active end of a log, its indexes, its producers, and what waits for a commit."""
