"""Commands on an encoding or a task alone: check_encoding, check_task and show_encoding."""

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from pe_experiments.commands.command_line import command
from pe_experiments.configuration.choices import key_of
from pe_experiments.configuration.schema import validated
from pe_experiments.terminal.errors import UserError


def required_choice(group: str, example: str) -> None:
    """Raise an error if the user did not choose what a command checks, such as ``pe=mine.Recency``."""
    if group not in {key_of(text).partition(".")[0] for text in HydraConfig.get().overrides.task}:
        raise UserError(f"{group} is missing; for example {group}={example}")


@command("check_encoding")
def check_encoding(cfg: DictConfig) -> None:
    """Check an implementation of a positional encoding and identify it.

    python scripts/check_encoding.py pe._target_=my_module.MyEncoding [against=rope|new]
    """
    required_choice("pe", "mine.MyEncoding")
    from pe_experiments.checking.check_encoding import CheckSettings, check_encoding  # imports torch

    raise SystemExit(int(check_encoding(validated(CheckSettings, cfg))))


@command("check_task")
def check_task(cfg: DictConfig) -> None:
    """Check a task: its examples, its rule and the accuracies it states for guessing.

    python scripts/check_task.py task._target_=my_module.MyTask [+task.k=3]
    """
    required_choice("task", "mine.MyTask")
    from pe_experiments.checking.task_contract import TaskSettings, check_task  # imports torch

    if not check_task(validated(TaskSettings, cfg)):
        raise SystemExit(1)


@command("show_encoding")
def show_encoding(cfg: DictConfig) -> None:
    """Show one or several encodings without training, as tables and a page with sliders.

    python scripts/show_encoding.py pe=sinusoidal
    python scripts/show_encoding.py 'encodings=[sinusoidal,learned]'
    """
    overrides = HydraConfig.get().overrides.task
    pe_overrides = [text for text in overrides if key_of(text).partition(".")[0] == "pe"]
    if pe_overrides and cfg.encodings is not None:
        raise UserError(f"{pe_overrides[0]}: cannot be combined with encodings=...")
    from pe_experiments.analysis.show_encoding import ShowSettings, show_encodings  # imports torch

    show_encodings(validated(ShowSettings, cfg))
