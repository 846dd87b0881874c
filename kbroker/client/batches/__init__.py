"""Whole record batches, for what moves many records: driven by the caller, without threads."""
