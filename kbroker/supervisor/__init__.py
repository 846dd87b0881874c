"""The parent process: makes what is shared; forks, restarts and stops the children."""
