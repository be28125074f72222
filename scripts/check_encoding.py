"""`pe_experiments.commands.encodings.check_encoding` as a script."""

from pe_experiments.commands.encodings import check_encoding

if __name__ == "__main__":
    check_encoding()
