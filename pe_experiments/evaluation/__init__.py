"""Measuring a trained model at every length, and what sums a curve up."""
