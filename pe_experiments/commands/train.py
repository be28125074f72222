"""Train a model on short sequences and evaluate it on long ones; -m or sweep=NAME runs many.

python scripts/train.py                                       sinusoidal encoding, copying, decoder
python scripts/train.py pe=learned positions=random_offset task=unique_copy seed=1
python scripts/train.py -m pe=none,sinusoidal seed=0,1,2      every combination
python scripts/train.py sweep=first_look                      a prepared sweep and its comparison
python scripts/train.py init_from=NAME pe=rope_yarn training.max_length=80      continue a run
python scripts/train.py pe=my_module.MyEncoding +pe.slope=0.2     your own class
"""

from typing import Any

import yaml  # type: ignore[import-untyped]
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from pe_experiments.commands.command_line import command, show_result
from pe_experiments.configuration.overrides import key_of
from pe_experiments.configuration.schema import check
from pe_experiments.terminal.console import Lines, say
from pe_experiments.terminal.errors import UserError, one_line

METRICS = {"exact_match_in_distribution": "exact match in distribution", "exact_match_at_2x": "at 2x",
           "loss_in_distribution": "loss in distribution"}  # fmt: skip


def train(settings: dict[str, Any]) -> float:
    """Run one configuration and return its validation loss, which a sweeper of Hydra can minimise."""
    if settings["init_from"] is not None:
        from pe_experiments.store.parent import inherit_settings

        settings = inherit_settings(settings, map(key_of, HydraConfig.get().overrides.task))
    config = check(settings)  # before torch is imported
    from pe_experiments.configuration.experiment import resolve
    from pe_experiments.run import run_experiment, try_out
    from pe_experiments.store.status import run_status

    experiment = resolve(config)
    is_single_run = HydraConfig.get().mode != RunMode.MULTIRUN
    if config.dry_run:
        try_out(experiment)
        status = run_status(experiment)
        lengths = ", ".join(map(str, experiment.evaluation_lengths))
        remark = f" ({status.remark})" if status.remark else ""
        say(f"{status.state}: {status.run.path}{remark}\nevaluated at {lengths}\n")
        say(yaml.safe_dump(config.model_dump(by_alias=True), sort_keys=False).rstrip())
        return float("nan")
    result = run_experiment(experiment, Lines() if is_single_run else None)
    if is_single_run:
        show_result(result)
        if result.status != "completed":
            raise SystemExit(1)
        return result.validation_loss
    reason = one_line(str(result.result.get("reason", "")))
    if result.status == "error":
        raise UserError(reason)
    metrics = ""
    for key, name in METRICS.items():
        value = result.result.get(key)
        if value is not None:
            metrics += f", {name} {value:.3f}"
    outcome = "finished" if result.status == "completed" else f"{result.status} ({reason})"
    say(f"{result.result['name']}: {result.done}, {outcome}{metrics}")
    return result.validation_loss


run = command("train", __doc__, train, "config")
