"""Audits and plots of encodings, without training a task."""
