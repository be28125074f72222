"""Measure, draw and export encodings without training them."""
