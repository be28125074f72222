"""Runs of flip-flop as in the paper on PaTH attention; results/replications shows their errors."""

from pe_experiments.studies import Study

STUDY = Study(sweep=("replicate_path",), compare=True)
