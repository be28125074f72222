"""Draw examples from named random streams, lay them out as tokens and cut them into batches."""
