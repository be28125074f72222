"""The command that trains: a run, or with -m many."""

import yaml  # type: ignore[import-untyped]
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from pe_experiments.commands.command_line import command, show_result
from pe_experiments.configuration.choices import key_of
from pe_experiments.configuration.schema import Config, validated
from pe_experiments.terminal.console import Display, Lines, say
from pe_experiments.terminal.errors import UserError, one_line


@command("train", config="config")
def run(cfg: DictConfig) -> float:
    """Train a model on short sequences and evaluate it on long ones; -m or sweep=NAME runs many.

    python scripts/train.py                                       sinusoidal encoding, copying, decoder
    python scripts/train.py pe=learned positions=random_offset task=unique_copy seed=1
    python scripts/train.py -m pe=none,sinusoidal seed=0,1,2,3,4  every combination
    python scripts/train.py sweep=first_look                      a prepared sweep and its comparison
    python scripts/train.py init_from=NAME pe=rope_yarn training.max_length=80      continue a run
    python scripts/train.py pe=my_module.MyEncoding +pe.slope=0.2     your own class
    """
    is_single_run = HydraConfig.get().mode != RunMode.MULTIRUN
    overrides = HydraConfig.get().overrides.task
    if cfg.get("init_from") is not None:
        from pe_experiments.store.parent import inherited  # imports torch

        config = validated(Config, inherited(cfg, map(key_of, overrides)))
    else:
        config = validated(Config, cfg)
    from pe_experiments.run import is_other_rank, run_experiment  # imports torch

    if config.dry_run:
        _show(config)
        return float("nan")
    result = run_experiment(config, Lines() if is_single_run else Display())
    if is_other_rank(config):  # rank 0 shows the result
        raise SystemExit
    reason = one_line(str(result.result.get("reason", "")))
    if is_single_run:
        show_result(result)
        if result.status != "completed":
            raise SystemExit(1)
    elif result.status == "error":
        raise UserError(reason)
    return result.validation_loss  # which a sweeper of Hydra can minimise


def _show(config: Config) -> None:
    """Print the configuration and the state of its run, after checking what training would use."""
    from pe_experiments.run import try_out
    from pe_experiments.store.requested import Run

    run = Run(config)
    try_out(run)
    say(yaml.safe_dump(config.model_dump(by_alias=True), sort_keys=False))
    remark = f" ({run.remark})" if run.remark else ""
    lengths = ", ".join(map(str, run.experiment.evaluation_lengths))
    say(f"{run.shown_state}: {run.final_directory.path}{remark}\nevaluated at {lengths}")
