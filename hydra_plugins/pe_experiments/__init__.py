"""Plugins that Hydra discovers: launchers, a sweeper and sources of configuration files.

Hydra imports these modules at the start of every application, so they must not import slow modules.
"""

from __future__ import annotations

from typing import Any

from hydra.core.config_store import ConfigStore


def _itself(store: ConfigStore, memo: dict[int, Any]) -> ConfigStore:
    return store


# Hydra copies its repository for every composition and for each of the hundred groups of --help. Nearly all
# of the time goes into copying the ConfigStore, which is a singleton.
ConfigStore.__deepcopy__ = _itself
