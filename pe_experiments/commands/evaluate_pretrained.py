"""The command that evaluates a pretrained language model."""

from omegaconf import DictConfig

from pe_experiments.commands.command_line import command
from pe_experiments.configuration.schema import resolved, validated
from pe_experiments.terminal.console import Lines


@command("evaluate_pretrained", renamed={"model": "path"})
def run(cfg: DictConfig) -> None:
    """Measure a pretrained language model over context length, as it is and with rescaled RoPE.

    python scripts/evaluate_pretrained.py model=FOLDER text=FOLDER 'rope=[as_is,yarn]' 'lengths=[2048,16384]'
    python scripts/evaluate_pretrained.py model=FILE.gguf              on Python's standard library
    python scripts/evaluate_pretrained.py model=FOLDER measure=needle  a fact hidden in the text
    python scripts/evaluate_pretrained.py model=FOLDER text=A finetune.text=B finetune.steps=100
    """
    settings = resolved(cfg)
    settings["model"] = settings.pop("path")
    from pe_experiments.pretrained.context_curve import (  # imports torch
        PretrainedSettings,
        evaluate_pretrained,
    )
    from pe_experiments.pretrained.report import show

    # configs/local may contain options of other commands.
    options = {key: settings[key] for key in PretrainedSettings.model_fields}
    show(evaluate_pretrained(validated(PretrainedSettings, options), Lines()))
