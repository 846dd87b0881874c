"""The cleaner: which log it compacts next, and one compaction step by step."""
