"""What a configuration may say, from the keys a person types to an experiment."""
