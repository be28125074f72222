"""Plugins that Hydra discovers: launchers, a sweeper and sources of configuration files.

Hydra imports these modules at the start of every application, so they must not import slow modules.
"""

from __future__ import annotations

from typing import Any

from hydra.core.config_store import ConfigStore


def _return_singleton(store: ConfigStore, memo: dict[int, Any]) -> ConfigStore:
    """Return the ConfigStore itself as its deep copy, because it is a singleton."""
    return store


# Hydra copies its repository for every composition and for each of the hundred groups of --help. Copying the
# ConfigStore takes nearly all of this time.
ConfigStore.__deepcopy__ = _return_singleton
