"""Where Hydra 1.3 and Hydra 1.4 are called differently."""

from typing import Any

import hydra

IS_1_3 = hydra.__version__.startswith("1.3.")
# Hydra 1.3 behaves as 1.1 without this argument, Hydra 1.4 deprecates it.
VERSION_BASE: dict[str, str] = {"version_base": "1.3"} if IS_1_3 else {}
# Hydra 1.4 instantiates callbacks, launchers and sweepers only from the packages that an application names.
# Plugins of the user are in the namespace package hydra_plugins.
PLUGINS = ("pe_experiments.*", "hydra_plugins.*", "hydra.*", "optuna.*")
MAIN: dict[str, Any] = VERSION_BASE if IS_1_3 else {"execution_whitelist": PLUGINS}
