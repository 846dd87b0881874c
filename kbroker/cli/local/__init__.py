"""What can be seen of a broker on this machine without asking it."""
