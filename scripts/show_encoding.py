"""`pe_experiments.commands.encodings.show_encoding` as a script."""

from pe_experiments.commands.encodings import show_encoding

if __name__ == "__main__":
    show_encoding()
