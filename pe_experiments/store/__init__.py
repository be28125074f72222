"""Store runs on disk: names, identities, environments and files."""
