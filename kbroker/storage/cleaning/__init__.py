"""Compaction: what is compacted, what it keeps, and the swap of the cleaned segments."""
