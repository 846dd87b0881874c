"""The cleaner: which log it takes, and one compaction step by step."""
