"""A scheme of one's own against the bank of published baselines: tuned and repeated alike, stopped early.

`verdicts` says what the seeds of two schemes tell, `stopping` when further seeds would not change that, and
`versus` carries it out.
"""
