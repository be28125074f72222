"""Training a model: what is tried before, the loop, the machine."""
