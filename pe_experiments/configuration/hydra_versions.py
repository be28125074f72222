"""Where Hydra 1.3 with OmegaConf 2.3 and Hydra 1.4 with OmegaConf 2.4 are called differently."""

from collections.abc import Callable
from typing import Any

import hydra
from omegaconf import OmegaConf

IS_1_3 = hydra.__version__.startswith("1.3.")
# Hydra 1.3 behaves as 1.1 without this argument, Hydra 1.4 deprecates it.
VERSION_BASE: dict[str, str] = {"version_base": "1.3"} if IS_1_3 else {}
# Hydra 1.4 instantiates callbacks, launchers and sweepers only from the packages that an application names.
# Plugins of the user are in the namespace package hydra_plugins.
PLUGINS = ("pe_experiments.*", "hydra_plugins.*", "hydra.*", "optuna.*")
MAIN: dict[str, Any] = VERSION_BASE if IS_1_3 else {"execution_whitelist": PLUGINS}
# OmegaConf 2.4 gave the new kind of resolvers the name that older versions use for the oldest kind.
register_resolver: Callable[..., None] = (
    OmegaConf.register_new_resolver if IS_1_3 else OmegaConf.register_resolver
)
