"""Show one or several encodings without training, as tables and a page with sliders.

python scripts/show_encoding.py pe=sinusoidal
python scripts/show_encoding.py 'encodings=[sinusoidal,learned]'
"""

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from pe_experiments.commands.command_line import command
from pe_experiments.configuration.hydra_errors import key_of
from pe_experiments.configuration.schema import validated
from pe_experiments.terminal.errors import UserError


@command("show_encoding", __doc__)
def run(cfg: DictConfig) -> None:
    overrides = HydraConfig.get().overrides.task
    pe_overrides = [text for text in overrides if key_of(text).partition(".")[0] == "pe"]
    if pe_overrides and cfg.encodings is not None:
        raise UserError(f"{pe_overrides[0]}: cannot be combined with encodings=...")
    from pe_experiments.analysis.show_encoding import ShowSettings, show_encodings  # imports torch

    show_encodings(validated(ShowSettings, cfg))
