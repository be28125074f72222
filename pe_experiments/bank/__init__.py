"""Banks: studies in which all encodings share the same configurations, with scores and verdicts.

A configuration of a bank fixes depth, number of symbols, training length, blocks, heads and the seed. The
code calls it a setting, after the column ``setting`` of the published CSVs.
"""
