"""Banks, studies in which every encoding meets the same settings: scores, verdicts, and `sweep=versus`.

A setting is a configuration of depth, number of symbols, training length, blocks and heads, with its seed.
"""
