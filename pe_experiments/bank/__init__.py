"""Banks: studies in which all encodings share the same configurations, with scores and verdicts.

A configuration of a bank sets the depth and symbols of the task, the training length, the blocks and heads of
the model, and the seed. The code calls it a setting, like the column ``setting`` of the published CSVs.
"""
