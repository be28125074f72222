"""Turn overrides into a validated configuration and an experiment."""
