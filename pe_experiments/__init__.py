"""Which positional encoding should I use, and does it extrapolate?"""

__version__ = "0.1.0"
