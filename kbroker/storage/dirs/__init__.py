"""Log directories: their content, where a new log is created, and deletions."""
