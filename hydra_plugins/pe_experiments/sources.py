"""Add choices to Hydra's config groups: classes by dotted name, and YAML files of the working directory."""

from __future__ import annotations

import re
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from pe_experiments.configuration.choices import ALIASES, COMPONENT_GROUPS, read_choice
from pe_experiments.terminal.files import CONFIG_DIR

CLASS_PATH = re.compile(rf"(?:{'|'.join(COMPONENT_GROUPS)})/((?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*)(?<!\.yaml)")


class ClassSource(ConfigSource):
    """Resolve ``pe=my_module.MyEncoding`` to a section with this ``_target_`` and no arguments."""

    @staticmethod
    def scheme() -> str:
        return "class"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return False

    def is_config(self, config_path: str) -> bool:
        group, _, name = config_path.rpartition("/")
        return (group == "pe" and name in ALIASES) or bool(CLASS_PATH.fullmatch(config_path))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return []

    def load_config(self, config_path: str) -> ConfigResult:
        group, _, name = config_path.rpartition("/")
        if name in ALIASES:
            section = read_choice(group, ALIASES[name])
        else:
            common_options = read_choice(group, "custom") if group == "model" else {}
            section = {**common_options, "_target_": name}
        return ConfigResult(
            self.provider, self.full_path(), OmegaConf.create(section), header={"package": None}
        )


class WorkingDirectory(SearchPathPlugin):
    """Let the commands also search ``configs/`` of the working directory, and classes by dotted name."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        primary = [str(entry.path) for entry in search_path.get_path() if entry.provider == "main"]
        if [path.removeprefix("file://") for path in primary] != [str(CONFIG_DIR)]:
            return  # another Hydra application
        try:
            user_configs = Path.cwd() / "configs"
        except OSError:  # the working directory was deleted
            return
        if user_configs.is_dir() and user_configs.resolve() != CONFIG_DIR:
            search_path.append("working directory", f"file://{user_configs}")
        search_path.append("classes", "class://")
