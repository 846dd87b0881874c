"""Shared memory and messages between the processes of one broker."""
