"""RoPE removed from models with normalised queries and keys; results/extension shows these runs."""

from pe_experiments.studies import Study

STUDY = Study()
