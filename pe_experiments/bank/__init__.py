"""An encoding against a bank: its report, and the callback that makes it while the sweep runs."""
