"""Audits and figures of encodings, without training."""
