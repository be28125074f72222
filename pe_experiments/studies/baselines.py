"""An encoding of the user beside the published runs of a bank, in the same configurations."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_experiments.comparison.runs import Runs
from pe_experiments.store.names import safe_name
from pe_experiments.store.requested import Run
from pe_experiments.store.study_folder import PROVENANCE
from pe_experiments.studies.archive import SHIPPED, read_archive, select_runs
from pe_experiments.terminal.errors import UserError, allowed, few

MOST_CONFIGURATIONS = 16  # per task, because the test enumerates all combinations of signs
SHARED_SECTIONS = ("task", "model", "training")  # sections of the configuration that compared runs share
VERSUS = "versus"  # the folder that holds one study per encoding


@dataclass(frozen=True)
class BankComparison:
    """One encoding of the user and the bank that it is compared with."""

    bank: str  # name of the published study
    label: str  # of the user's encoding
    metric: str  # ``score``, or exact match at a multiple of the training length
    results_dir: Path  # contains the user's runs
    bank_runs: Runs  # of encodings that have run the user's configurations at the same learning rates
    task_by_run: dict[str, str]  # the name in the bank of the task of each of the user's runs

    @property
    def study(self) -> str:
        return f"{VERSUS}/{safe_name(self.label)}"

    @property
    def baseline_versions(self) -> str:
        """Return with which versions the baselines were trained."""
        names = list(self.bank_runs.runs["name"])
        numerics = {str(self.bank_runs.saved[name].numerics) for name in names}
        torch_versions = {str(self.bank_runs.environments[name]["libraries"]["torch"]) for name in names}
        return f"NUMERICS {few(sorted(numerics))} and PyTorch {few(sorted(torch_versions))}"


def compare_with_bank(
    runs: Sequence[Run], bank: str, baselines: Sequence[str] | None, metric: str
) -> BankComparison:
    """Return the comparison of the runs of one encoding with a bank; `versus.Versus` has the arguments.

    Raises:
        UserError: the bank does not exist, or a run cannot be compared with it.
    """
    labels = {run.experiment.label for run in runs}
    if len(labels) > 1:
        raise UserError(f"sweep=versus compares one encoding with the bank, got {len(labels)}")
    label = labels.pop()
    results_dir = Path(runs[0].config.results_dir)
    folders = [base / bank for base in (results_dir, SHIPPED)]
    folder = next((path for path in folders if (path / PROVENANCE).exists()), None)
    if folder is None:
        raise UserError(f"hydra.callbacks.report.bank={bank} is not a published study in {folders[0]}")
    bank_runs = read_archive(folder)
    if label in set(bank_runs.runs["label"]) and runs[0].config.label:
        raise UserError(f"label={label} is the name of an encoding of {bank}; choose another")
    published = {record.identity.key for record in bank_runs.saved.values()}
    if not runs[0].config.rerun and all(run.identity.key in published for run in runs):
        raise UserError(f"sweep=versus: {label} is in {bank}, with these runs; see {folder / 'README.md'}")
    available = sorted(set(bank_runs.runs["label"]) - {label})
    unknown = [name for name in baselines or () if name not in available]
    if unknown:
        key = "hydra.callbacks.report.baselines"
        raise UserError(f"{key}: {few(unknown)} is not in the bank; allowed: {allowed(available)}")
    bank_runs = select_runs(bank_runs, bank_runs.runs["label"].isin(baselines or available))
    tasks, names = _matching_runs(bank, bank_runs, runs)
    bank_runs = select_runs(bank_runs, bank_runs.runs["name"].isin(names))
    if bank_runs.runs.empty:
        raise UserError(f"{bank}: no encoding has run all of these configurations")
    most = bank_runs.runs.groupby("task")["seed"].nunique().max()
    if most > MOST_CONFIGURATIONS:
        problem = f"a task has {most} configurations; at most {MOST_CONFIGURATIONS} are allowed"
        raise UserError(f"sweep=versus: {problem}")
    return BankComparison(bank, label, metric, results_dir, bank_runs, tasks)


def _matching_runs(bank: str, bank_runs: Runs, runs: Iterable[Run]) -> tuple[dict[str, str], set[str]]:
    """Return the bank's name of the task of each run, and the names of the bank's runs to compare with.

    These are the runs of the encodings that have one in the configuration of each of the ``runs`` of a task.

    Raises:
        UserError: a run has a configuration that the bank does not have.
    """
    evaluations = bank_runs.curves.groupby("name").agg(
        examples=("examples", "first"), lengths=("content_length", list)
    )
    by_class: dict[str, list[tuple[str, str, str, dict[str, Any]]]] = {}  # of the task
    for name, task, label in bank_runs.runs[["name", "task", "label"]].itertuples(index=False):
        record = bank_runs.saved[name]
        examples, lengths = evaluations.loc[name]
        config = _compared_config(record.identity.config, int(examples), lengths)
        by_class.setdefault(record.trained["task"]["_target_"], []).append((task, label, name, config))
    tasks: dict[str, str] = {}
    matches: dict[str, list[dict[str, str]]] = {}  # by task and run: the name of the bank's run by label
    for run in runs:
        experiment = run.experiment
        component = experiment.components["task"]
        if component.target not in by_class:
            shipped_tasks = allowed(sorted(set(bank_runs.runs["task"])))
            raise UserError(f"task={component.choice} is not in {bank}; allowed: {shipped_tasks}")
        lengths = {experiment.evaluation_task.nearest_length(n) or n for n in experiment.evaluation_lengths}
        config = _compared_config(run.identity.config, run.config.evaluation.examples, lengths)
        candidates = by_class[component.target]
        same = [(task, label, name) for task, label, name, other in candidates if other == config]
        if not same:
            differing = [
                [key for key in {**config, **other} if config.get(key) != other.get(key)]
                for *_, other in candidates
            ]
            keys, (*_, other) = min(zip(differing, candidates, strict=True), key=lambda pair: len(pair[0]))
            both_values = [f"{key}={config.get(key)} (bank: {other.get(key)})" for key in keys]
            problem = f"{', '.join(both_values)} must be as in {bank}"
            raise UserError(f"sweep=versus, task={component.choice}: {problem}")
        tasks[run.name] = same[0][0]
        matches.setdefault(same[0][0], []).append({label: name for _, label, name in same})
    names: set[str] = set()
    for matches_of_task in matches.values():
        everywhere = set.intersection(*(set(by_label) for by_label in matches_of_task))
        names |= {by_label[label] for by_label in matches_of_task for label in everywhere}
    return tasks, names


def _compared_config(hashed: Mapping[str, Any], examples: int, lengths: Iterable[int]) -> dict[str, Any]:
    """Return the options that compared runs must share, by dotted key, without default arguments."""
    config = {f"{part}.{key}": hashed[part][key] for part in SHARED_SECTIONS for key in hashed[part]}
    config["seed"] = hashed["seed"]
    config["evaluation.examples"] = examples
    config["evaluation.lengths"] = sorted(lengths)
    return config
