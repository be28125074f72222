"""Runs on disk: their names, the code that made them, their files."""
