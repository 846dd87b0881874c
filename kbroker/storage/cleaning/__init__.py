"""Compaction: which records it keeps, and the swap of the cleaned segments."""
