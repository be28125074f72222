"""Write a trained model as a folder in the layout of the Hugging Face Hub, and read it back.

The folder contains ``model.safetensors``, ``config.json``, ``README.md`` (the model card), and the curve as
``extrapolation.csv`` and ``extrapolation.png``. Reading it composes nothing with Hydra and runs no code of
the folder: weights in safetensors are numbers, and classes from outside this package need ``trust``.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_model, save_model

from pe_experiments import NUMERICS, __version__
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.foreign import refuse_foreign
from pe_experiments.configuration.schema import Config, validated
from pe_experiments.drawing import markdown_table
from pe_experiments.models import Backbone, Transformer
from pe_experiments.store.csv_files import Row
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.finished import MOST_MODEL_BYTES, refuse_infinite
from pe_experiments.store.names import jsonable
from pe_experiments.store.own_code import code_digests
from pe_experiments.store.requested import Run
from pe_experiments.terminal.errors import UserError, few, one_line, user_errors
from pe_experiments.terminal.files import inside, read_json, require_file, write_atomically

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
LIBRARY = "pe_experiments"
# Sections of a run's configuration that are shared. Loggers, devices and folders of the author are not.
SECTIONS = ("pe", "positions", "task", "model", "training", "optimizer", "seed", "label", "parent")
TRAINER = {"accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto"}
TRAINER |= {"threads": 1, "matmul": "default"}
ON_THIS_MACHINE: dict[str, Any] = {"logger": {}, "study": None, "results_dir": "results", "rerun": False}


def write_model_folder(run: Run, model: Backbone, curve: list[Row], folder: Path) -> None:
    """Write the trained model of a finished run, its configuration, its curve and a model card.

    The folder exists and is empty or was written by this function.

    Raises:
        UserError: the folder holds other files of these names.
    """
    names = (CONFIG, WEIGHTS, CARD, run.directory.curve.name, run.directory.figure.name)
    present = [name for name in names if (folder / name).exists()]
    if present and not _was_written_here(folder):
        raise UserError(
            f"out={folder}: {present[0]} is not of a shared model; allowed: an empty or a new folder"
        )
    task = run.experiment.task
    if task.vocabulary and run.experiment.components["task"].arguments["path"] is not None:
        raise UserError(
            f"out={folder}: the tokens of task.path are not shared with a model; allowed: a model that was "
            f"trained with task.tokenizer=null, or on the default text"
        )
    received = {}  # read before anything is written, since a stranger may have made the run
    for path in (run.directory.curve, run.directory.figure):
        with user_errors(str(path), "cannot be read"):
            require_file(path, MOST_MODEL_BYTES)
            received[path.name] = path.read_bytes()
    with TemporaryDirectory() as scratch:
        draft = Path(scratch) / WEIGHTS
        save_model(model, str(draft), metadata={"format": "pt", "run": run.identity.hash})
        write_atomically(folder / WEIGHTS, draft.read_bytes())
    write_atomically(folder / CONFIG, json.dumps(_shared_config(run), indent=2) + "\n")
    for name, content in received.items():
        write_atomically(folder / name, content)
    write_atomically(folder / CARD, _card(run, curve))


def _shared_config(run: Run) -> dict[str, Any]:
    """Return the content of ``config.json``."""
    experiment = run.experiment
    saved = experiment.full_config
    sections: dict[str, Any] = {key: saved[key] for key in SECTIONS}
    paths = experiment.components["task"].cls.data_arguments  # type: ignore[attr-defined]
    sections["task"] = {key: value for key, value in saved["task"].items() if key not in paths}
    sections["evaluation"] = {"lengths": list(experiment.evaluation_lengths)}
    sections["evaluation"] |= {key: saved["evaluation"][key] for key in ("examples", "decoding")}
    sections["trainer"] = {key: saved["trainer"][key] for key in ("precision", "accumulate_grad_batches")}
    header = {"library_name": LIBRARY, "version": __version__, "numerics": NUMERICS, "run": run.identity.hash}
    content = {**header, "name": run.name, "classes": run.identity.classes, **sections}
    content["vocabulary"] = experiment.task.vocabulary
    return jsonable(content)


def _card(run: Run, curve: list[Row]) -> str:
    """Return the model card with its metadata, the curve as table and picture, and how to load the model."""
    experiment, training = run.experiment, run.config.training
    result = run.directory.read_result() or {}
    encoding, task = (experiment.components[group] for group in ("pe", "task"))
    tags = ["positional-encoding", "length-extrapolation", encoding.choice, task.choice]
    metadata = "\n".join(["---", f"library_name: {LIBRARY}", "tags:", *(f"- {tag}" for tag in tags), "---"])
    score, name = ("exact_match", "exact match") if task.cls.exact else ("loss", "loss (nats)")  # type: ignore[attr-defined]
    rows = [
        [
            f"{row['content_length']}",
            f"{row['content_length'] / experiment.max_length:.3g}",
            f"{row[score]:.3f}",
            f"{row['token_accuracy']:.3f}",
        ]
        for row in curve
    ]
    table = markdown_table(["input length", "times the training length", name, "token accuracy"], rows)
    user_modules = {module for digests in run.identity.classes.values() for module in digests}
    trust, needs = "", ""
    if user_modules:
        trust = ", trust=True"
        needs = (
            f"\nIt needs the module {few(sorted(user_modules))} of its author, which `trust=True` imports.\n"
        )
    lengths = f"{min(experiment.train_lengths)} to {experiment.max_length}"
    return f"""{metadata}

# {experiment.label} on {task.label}

A transformer (`{experiment.model_choice}`, {result.get("parameters", 0):,} parameters) with the positional
encoding `{encoding.label}`. It was trained for {training.steps:,} steps on inputs of {lengths} symbols of the
task `{task.label}`, and evaluated on longer ones.

![Metrics over input length](extrapolation.png)

{table}

## Use

```python
from huggingface_hub import snapshot_download
from pe_experiments import load_model

trained = load_model(snapshot_download("ORG/NAME"){trust})  # or the path of this folder
trained.answers(inputs)  # symbols of the task, [batch, length]
trained.model            # a torch.nn.Module
```
{needs}
Trained with pe_experiments {__version__} (run `{run.identity.hash[:16]}`), configuration in `config.json`.
"""


def _was_written_here(folder: Path) -> bool:
    """Return whether the folder has the configuration of a model that this project shared."""
    try:
        return read_json(folder / CONFIG).get("library_name") == LIBRARY
    except (OSError, ValueError, AttributeError):
        return False


def is_model_folder(folder: Path) -> bool:
    """Return whether a folder was written by `write_model_folder`, and is no run."""
    return (folder / CONFIG).exists() and not RunDirectory(folder).config.exists()


def read_model_folder(folder: Path, trust: bool) -> tuple[Experiment, Backbone]:
    """Return the experiment and the trained model of a folder that `write_model_folder` wrote.

    Raises:
        UserError: a file is missing or damaged, the code of a user's class has changed since, or without
            ``trust`` the configuration names modules or files from outside this package.
    """
    option = f"run={folder}"
    try:
        content = read_json(inside(folder, CONFIG))
        if content.get("library_name") != LIBRARY:
            raise ValueError(f"its library_name is not {LIBRARY}")
        classes: dict[str, dict[str, str]] = {key: {**value} for key, value in content["classes"].items()}
        config: dict[str, Any] = {key: content[key] for key in (*SECTIONS, "evaluation")} | ON_THIS_MACHINE
        config["trainer"] = content["trainer"] | TRAINER
        if config["parent"]:
            config["init_from"] = config["parent"]["name"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = one_line(f"{type(error).__name__}: {error}")
        raise UserError(f"{option}: its {CONFIG} is not that of a shared model ({why})") from error
    refuse_foreign(option, config, {}, trust)
    experiment = Experiment(validated(Config, config))
    for group, recorded in classes.items():
        component = experiment.components.get(group)
        if component and code_digests(component.own_classes) != recorded:
            raise UserError(f"{option}: {few(sorted(recorded))} changed since the model was trained")
    if content.get("vocabulary", "") != experiment.task.vocabulary:
        raise UserError(f"{option}: its tokens are those of another Python's library, the default text")
    weights = inside(folder, WEIGHTS)
    try:
        require_file(weights, MOST_MODEL_BYTES)
        _refuse_larger_model(experiment, weights)
        model = experiment.untrained_model()
        load_model(model, str(weights))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        why = one_line(str(error))
        raise UserError(f"{weights} is missing, damaged or of another model ({why})") from error
    refuse_infinite(model, weights)
    return experiment, model


def _refuse_larger_model(experiment: Experiment, weights: Path) -> None:
    """Raise a ValueError, before a model is built, if it needs more weights than the file has bytes.

    Each layer of a `Transformer` has a matrix of ``d_model`` rows and columns.
    """
    shape = experiment.shape
    is_transformer = issubclass(experiment.components["model"].cls, Transformer)
    needed = shape.num_layers * shape.d_model**2 if is_transformer else 0
    size = weights.stat().st_size
    if size < needed:
        raise ValueError(f"its configuration needs at least {needed:,} weights, and it has {size:,} bytes")


def upload_folder(folder: Path, repository: str) -> str:
    """Upload a folder to a model repository of the Hugging Face Hub and return its address.

    Args:
        folder: of the model.
        repository: ``ORG/NAME``; created if it does not exist.

    Raises:
        UserError: huggingface_hub is not installed, or the upload fails.
    """
    hub = require_hub()
    try:
        hub.HfApi().create_repo(repository, exist_ok=True)
        files = [CONFIG, WEIGHTS, CARD, "extrapolation.csv", "extrapolation.png"]
        hub.HfApi().upload_folder(repo_id=repository, folder_path=str(folder), allow_patterns=files)
    except Exception as error:  # of the network, of the login or of the name; the folder stays
        why = one_line(f"{type(error).__name__}: {error}")
        raise UserError(f"push_to_hub={repository}: {why}; the files are in {folder}") from error
    return f"https://huggingface.co/{repository}"


def require_hub() -> Any:
    """Return the module huggingface_hub; raise a `UserError` if it is not installed."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise UserError("push_to_hub: pip install huggingface_hub, then hf auth login") from error
    return huggingface_hub
