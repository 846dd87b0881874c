"""The loop of a network worker, and its ways to the io workers."""
