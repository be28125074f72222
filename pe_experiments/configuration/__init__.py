"""Turn typed keys into a checked configuration and an experiment."""
