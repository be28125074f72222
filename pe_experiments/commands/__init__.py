"""The commands; `scripts/NAME.py` and, installed from a wheel, `pe-NAME` run them. Nothing imports them."""
