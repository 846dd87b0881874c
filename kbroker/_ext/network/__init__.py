"""The loop of a network process, and how it reaches the io workers."""
