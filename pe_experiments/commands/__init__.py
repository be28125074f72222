"""The commands of the project: `scripts/NAME.py` in a checkout, `pe-NAME` when installed from a wheel."""
