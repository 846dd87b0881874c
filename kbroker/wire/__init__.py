"""A connection to a broker without its I/O: frames, their order and bounds, and how to log in."""
