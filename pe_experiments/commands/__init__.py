"""The commands, run by `scripts/NAME.py` and, installed from a wheel, by `pe-NAME`."""
