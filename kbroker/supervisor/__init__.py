"""The parent process: creates shared resources; forks, restarts and stops the children."""
