"""The loop of an io worker, and Produce in it."""
