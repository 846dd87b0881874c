"""Counters of the broker.

What there is (catalog), where it is counted (slots), how it is shown (export).
"""
