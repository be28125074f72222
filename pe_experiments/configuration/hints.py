"""Suggest what a user may have meant by an unknown name."""

from __future__ import annotations

from collections.abc import Iterable

from pe_experiments.terminal import errors

# Names that other projects use for options and choices of this one.
ALSO_CALLED = {
    "theta": "base",
    "rope_theta": "base",
    "lr": "learning_rate",
    "hidden_size": "d_model",
    "encoding": "pe",
    "scheme": "pe",
    "positional_encoding": "pe",
    "dataset": "task",
    "tasks": "task",
    "seeds": "seed",
    "max_steps": "steps",
    "max_epochs": "steps",
    "rotary": "rope",
    "rotary_embedding": "rope",
    "llama": "rope",
    "llama3": "rope_llama3",
    "absolute": "sinusoidal",
    "vaswani": "sinusoidal",
    "bert": "learned",
    "gpt2": "learned",
    "relative": "shaw",
    "yarn": "rope_yarn",
    "ntk": "rope_ntk",
    "xl": "transformer_xl",
    "swa": "sliding_window",
    "pi": "rope_linear",
    "forgetting": "fox",
}
# Options that are listed first if there are too many to list.
FIRST = ("sinusoidal", "learned", "rope", "alibi", "none", "copy", "reverse", "text", "pe", "task", "model",
         "training", "evaluation", "seed", "steps", "batch_size", "max_length", "learning_rate")  # fmt: skip
RESUMES = "an interrupted run resumes from its last checkpoint when its command is repeated"
PARALLEL = "a sweep trains hydra.launcher.jobs=N runs at a time, by default one per core"
# Hints for keys that users of other Hydra and Lightning projects try first.
HINTS = {
    "experiment": "a prepared sweep is chosen with sweep=NAME",
    "ckpt_path": RESUMES,
    "resume": RESUMES,
    "ckpt": RESUMES,
    "resume_from_checkpoint": RESUMES,
    "wandb": "options of Weights & Biases are logger.wandb.mode, project, entity and tags",
    "logger.project": "write logger.wandb.project=NAME",
    "trainer.gradient_clip_val": "gradients are clipped by training.clip_norm",
    "trainer.max_epochs": "a training is one epoch of training.steps steps",
    "trainer.max_steps": "the length of a training is training.steps",
    "trainer.fast_dev_run": "for a short trial write training.steps=3, or dry_run=true to train nothing",
    "fast_dev_run": "for a short trial write training.steps=3, or dry_run=true to train nothing",
    **dict.fromkeys(("n_jobs", "jobs", "num_jobs", "workers", "num_workers", "parallel"), PARALLEL),
    **dict.fromkeys((f"hydra.launcher.{key}" for key in ("n_jobs", "num_jobs", "workers")), PARALLEL),
    "positional_encoding": "the encoding is chosen with pe=NAME",
    "dataset": "the task is chosen with task=NAME",
}


def nearest(word: str, options: Iterable[str]) -> str:
    """Return the end of an error message: `` Did you mean a?`` if an option is similar, then the options."""
    options = sorted(options, key=lambda option: (FIRST.index(option) if option in FIRST else 99, option))
    if (synonym := ALSO_CALLED.get(word)) in options:
        return f" Did you mean {synonym}?{errors.listed(options)}"
    return errors.nearest(word, options)
