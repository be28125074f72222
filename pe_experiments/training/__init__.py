"""Train a model: the loop, the optimizer, and devices."""
