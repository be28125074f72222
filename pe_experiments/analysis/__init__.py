"""Audits and pictures of encodings, without training a task."""
