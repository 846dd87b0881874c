"""A log moves to another log directory while it is served."""
