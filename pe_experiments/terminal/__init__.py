"""Messages, atomic files and the process."""
