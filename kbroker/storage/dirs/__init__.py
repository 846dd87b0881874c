"""Log directories: what they hold, where a new log goes, and what is deleted from them."""
