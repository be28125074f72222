"""The studies under `results/`: from finished runs to CSVs, and from CSVs to pages, byte for byte."""
