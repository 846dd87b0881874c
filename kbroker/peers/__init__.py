"""Requests between brokers, and the connections that carry them."""
