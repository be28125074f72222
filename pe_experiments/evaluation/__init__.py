"""Evaluate a trained model at several lengths and summarise the curve."""
