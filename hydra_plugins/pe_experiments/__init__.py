"""Plugins that Hydra finds by itself: launchers, a sweeper, and places of configuration files.

Hydra imports these modules when any of its applications starts, so they import nothing that is slow.
"""

from __future__ import annotations

from typing import Any

from hydra.core.config_store import ConfigStore


def _itself(store: ConfigStore, memo: dict[int, Any]) -> ConfigStore:
    return store


# Hydra copies its repository for every composition, and for each of the hundred groups that --help lists.
# Nearly all of that time goes into the ConfigStore, of which there is only one.
ConfigStore.__deepcopy__ = _itself
