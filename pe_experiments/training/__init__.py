"""Train a model: checks before training, the loop, and devices."""
