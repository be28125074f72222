"""The ground: messages, files that are whole or not there, the process."""
