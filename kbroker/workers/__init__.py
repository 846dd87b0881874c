"""One module per kind of child process."""
