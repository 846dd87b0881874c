"""The parent process: creates what is shared; forks, restarts and stops the children."""
