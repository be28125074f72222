"""Configuration: from the keys a person types to an experiment."""
