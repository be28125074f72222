"""Examples: drawn from named streams, laid out as tokens, cut into batches."""
