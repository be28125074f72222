"""What a configuration may say, and everything that follows from it.

`check` validates a composed configuration by the schemas below and is quick; `resolve` builds the parts,
derives what is derived (format, lengths, sizes) and still writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_serializer, model_validator

from pe_experiments.errors import NotApplicable, UserError, allowed, shown
from pe_experiments.validation import validated

if TYPE_CHECKING:
    from pe_experiments.components import Component
    from pe_experiments.encodings import ModelShape
    from pe_experiments.formats import Format
    from pe_experiments.positions import PositionPolicy
    from pe_experiments.tasks import Task

# The random streams number what they draw inside 32 bits (`randomness`), which bounds these.
LONGEST, MOST_EXAMPLES, MOST_BATCHES = 131_071, 409_600, 1 << 29
Count = Annotated[int, Field(ge=1)]
Length = Annotated[int, Field(ge=1, le=LONGEST)]
NAME = r"^[A-Za-z0-9_+=(),-][A-Za-z0-9_.+=(),-]*$"
# A name becomes part of a path and of a command line; a year is a fair name for a study, and so is bank/v1.
Study = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    Field(pattern=f"{NAME[:-1]}(/{NAME[1:-1]})?$", max_length=120),
]
Folder = Annotated[str, Field(min_length=1)]
Label = Annotated[str, Field(pattern=NAME, max_length=120)]


class Section(BaseModel):
    """Strict: no unknown key, no silent conversion."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


SIZES = ("causal", "d_model", "num_heads", "num_layers")


class ModelConfig(Section):
    """A model's class, its sizes, and the arguments of the class (`models.Backbone`)."""

    model_config = ConfigDict(extra="allow")

    target: str = Field(alias="_target_")
    causal: bool
    d_model: Count
    num_heads: Count
    num_layers: Count

    @property
    def part(self) -> dict[str, Any]:
        """The class and its arguments, without the sizes."""
        return {"_target_": self.target, **(self.model_extra or {})}

    @model_serializer
    def _as_written(self) -> dict[str, Any]:
        sizes = {key: getattr(self, key) for key in SIZES}
        return {"_target_": self.target, **sizes, **(self.model_extra or {})}

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> ModelConfig:
        if self.d_model % self.num_heads:
            divisors = [str(n) for n in range(1, min(self.d_model, 64) + 1) if self.d_model % n == 0]
            raise ValueError(
                f"model.num_heads={self.num_heads} does not divide model.d_model={self.d_model}; "
                f"allowed here: {allowed(divisors)}"
            )
        if self.d_model == 1:
            raise ValueError("model.d_model=1: a layer norm over one column is constant; allowed: 2 or more")
        return self


class TrainingConfig(Section):
    """What is trained on, for how long and how (`training`)."""

    steps: Annotated[int, Field(ge=1, le=MOST_BATCHES)]
    batch_size: Count
    min_length: Length
    max_length: Length
    batching: Literal["mixed", "single_length"]
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    warmup_steps: Annotated[int, Field(ge=0)] | None
    schedule: Literal["cosine", "linear", "constant"]
    final_learning_rate: Annotated[float, Field(ge=0, le=1)]
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    clip_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    precision: Literal["float32", "bfloat16"]
    check_every: Count
    check_examples: Count
    stop_at_exact_match: Annotated[float, Field(gt=0, le=1)] | None

    @model_validator(mode="after")
    def _lengths_are_ordered(self) -> TrainingConfig:
        if self.min_length > self.max_length:
            raise ValueError(
                f"training.min_length={self.min_length} is above training.max_length={self.max_length}; "
                f"allowed: 1 to {self.max_length}"
            )
        return self


class EvaluationConfig(Section):
    """At which lengths, on how many examples each, and how answers are decoded (`evaluation`)."""

    lengths: Annotated[list[Length], Field(min_length=1)] | None
    examples: Annotated[int, Field(ge=1, le=MOST_EXAMPLES)]
    decoding: Literal["teacher_forcing", "greedy"] = "teacher_forcing"  # runs of version 0.1 lack it


class HardwareConfig(Section):
    """Where it runs. None of it enters a run's identity."""

    accelerator: Literal["auto", "cpu", "gpu"]
    devices: Literal[1]
    threads: Count
    matmul: Literal["auto", "default", "onednn"] = "auto"  # runs of version 0.1 lack it


class LoggerConfig(Section):
    """What goes to Weights & Biases (`tracking`)."""

    mode: Literal["offline", "online", "disabled"]
    project: str
    entity: str | None
    tags: list[str]


class SweepConfig(Section):
    """How a sweep is carried out (`sweeps`). None of it enters a run's identity."""

    jobs: Count | None
    jobs_per_device: Count
    baselines: list[str]
    cases: list[list[str]]
    schemes: list[list[str]] = Field(default_factory=list)
    tune: str | None
    tuning_seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None
    tune_outwards: Annotated[int, Field(ge=0)]
    publish: Literal["seeds", "finished"] = "seeds"
    against: Study | None = None


class EngineConfig(Section):
    """What carries out the runs of a sweep (`sweeps.engines`).

    Attributes:
        kind: processes of this machine, jobs through submitit, or Ray.
        cluster: of submitit: ``slurm``, or ``local`` for processes of this machine.
        timeout_min: minutes one job may take; then it is queued again, and its run goes on.
        max_num_timeout: how often at most.
        parameters: others of submitit's, such as ``slurm_partition``.
        address: of a running Ray; null starts one here.
    """

    kind: Literal["local", "submitit", "ray"]
    cluster: Literal["slurm", "local"] = "slurm"
    timeout_min: Count = 240
    max_num_timeout: Annotated[int, Field(ge=0)] = 10
    parameters: dict[str, Any] = Field(default_factory=dict)
    address: str | None = None


RESERVED = ("runs", "comparison", "encodings")  # folders of results_dir that are no studies
CLI_ONLY = ("dry_run", "sweep", "engine")  # said to train.py, not about a run
PARTS = ("pe", "positions", "task")  # sections of a _target_ and its arguments


class Config(Section):
    """A whole configuration. ``pe``, ``positions`` and ``task`` hold ``_target_`` and its arguments."""

    pe: dict[str, Any]
    positions: dict[str, Any]
    task: dict[str, Any]
    model: ModelConfig
    training: TrainingConfig
    evaluation: EvaluationConfig
    hardware: HardwareConfig
    logger: LoggerConfig
    seed: Annotated[int, Field(ge=0)]
    study: Study | None
    label: Label | None
    results_dir: Folder
    rerun: bool

    @model_validator(mode="after")
    def _study_has_a_folder_of_its_own(self) -> Config:
        if self.study and self.study.partition("/")[0] in RESERVED:
            raise ValueError(f"study={self.study} is reserved; allowed: any name but {allowed(RESERVED)}")
        if self.label and not any(map(str.isalpha, self.label)):
            raise ValueError(
                f"label={self.label} would be read back as a number; allowed: a name with a letter"
            )
        return self


@dataclass(frozen=True)
class Experiment:
    """A checked configuration with all that follows from it."""

    config: Config
    components: dict[str, Component]
    task: Task
    positions: PositionPolicy
    format: Format
    shape: ModelShape
    train_lengths: tuple[int, ...]
    evaluation_lengths: tuple[int, ...]
    evaluation_task: Task  # mostly the one trained on
    evaluated_on: Component  # that makes it

    @property
    def model_choice(self) -> str:
        """The model as a run's name says it: ``decoder``, ``encoder``, ``llama``, or a class."""
        from pe_experiments.components import model_choice

        return model_choice(self.config.model.model_dump(), self.components["model"])

    @property
    def other_task(self) -> Component | None:
        """The task it is evaluated on where that is not the one trained on."""
        return None if self.evaluated_on == self.components["task"] else self.evaluated_on

    @property
    def decoding(self) -> Literal["teacher_forcing", "greedy"]:
        """How answers are decoded; where a format feeds nothing back, both are the same forward pass."""
        return self.config.evaluation.decoding if self.format.feeds_back else "teacher_forcing"

    @property
    def max_length(self) -> int:
        """Longest input trained on; below ``training.max_length`` where the task cannot make that."""
        return max(self.train_lengths)

    @property
    def derived(self) -> dict[str, Any]:
        """The derived values, as saved in ``config.yaml``."""
        return {
            "vocab_size": self.format.vocab_size,
            "format": type(self.format).__name__.removesuffix("Format").lower(),
            "train_length": self.shape.train_length,
            "train_positions": self.shape.train_positions,
            "warmup_steps": warmup_steps(self.config.training),
            "train_lengths": list(self.train_lengths),
            "evaluation_lengths": list(self.evaluation_lengths),
            **({"evaluation_task": self.other_task.section} if self.other_task else {}),
        }


def check(config: DictConfig | dict[str, Any]) -> Config:
    """The configuration in typed form.

    Raises:
        UserError: an unknown key, a missing or wrong value.
    """
    mapping: Any = config
    try:
        if not isinstance(config, dict) or "${" in str(config):  # else there is nothing to resolve
            mapping = OmegaConf.to_container(OmegaConf.create(config), resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"the configuration cannot be read: {str(error).splitlines()[0]}") from error
    assert isinstance(mapping, dict)
    if "sweep" in mapping:
        validated(SweepConfig, mapping["sweep"], "sweep")
    is_dry_run(mapping)
    return validated(Config, {str(key): value for key, value in mapping.items() if key not in CLI_ONLY})


def is_dry_run(config: Mapping[Any, Any]) -> bool:
    """What ``dry_run`` says.

    Raises:
        UserError: neither true nor false.
    """
    if not isinstance(dry_run := config.get("dry_run", False), bool):
        raise UserError(f"dry_run={shown(dry_run)}: expected true or false")
    return dry_run


def resolve(config: Config, other_task: dict[str, Any] | None = None) -> Experiment:
    """Build the parts and derive the rest.

    Args:
        config: what is, or was, trained.
        other_task: section of a task to evaluate on; lengths, sizes and ids stay those of the training.

    Raises:
        UserError: parts that do not exist, do not fit their arguments or do not fit each other.
    """
    # Imported here: torch takes a second or two that a misspelt key need not wait for.
    from pe_experiments.components import load_component, user_errors
    from pe_experiments.encodings import ModelShape
    from pe_experiments.formats import format_for, refuse_misfit

    components = {group: load_component(group, getattr(config, group)) for group in PARTS}
    components["model"] = load_component("model", config.model.part)
    task = components["task"].build()
    positions = components["positions"].build()
    with user_errors("task"):
        layout = format_for(task, config.model.causal)
        if not config.model.causal and (why := getattr(task, "decoder_only", None)):
            raise NotApplicable(f"task: {type(task).__name__} is for a decoder alone, because {why}")
    train_lengths = _train_lengths(config.training, task)
    train_length = max(layout.tokens(n, task.target_length(n)) for n in train_lengths)
    with user_errors("positions"):
        positions.check(task, train_lengths)
        train_positions = positions.train_positions(train_length)
    model = config.model
    shape = ModelShape(
        d_model=model.d_model,
        num_heads=model.num_heads,
        num_layers=model.num_layers,
        causal=model.causal,
        train_length=train_length,
        train_positions=train_positions,
    )
    on = load_component("task", other_task or config.task)
    shown = task if on == components["task"] else on.build()
    with user_errors(f"task={on.choice}"):
        refuse_misfit(format_for(shown, model.causal), layout)
        positions.check(shown, [shortest_length(shown)])
    lengths = evaluation_lengths(config.evaluation.lengths, train_lengths, shown)
    return Experiment(config, components, task, positions, layout, shape, train_lengths, lengths, shown, on)


def warmup_steps(training: TrainingConfig) -> int:
    """The stated warm-up, or a tenth of the training and at most 100 steps, so that short trials work."""
    return min(100, training.steps // 10) if training.warmup_steps is None else training.warmup_steps


def evaluation_lengths(asked: list[int] | None, trained: tuple[int, ...], task: Task) -> tuple[int, ...]:
    """The lengths to evaluate at: those asked for, or a default grid around the longest training length.

    The default grid holds the quarters of the longest trained length and 1.25, 1.5, 2, 3, 4 and 8 times it,
    without those the task cannot make to within a tenth and those below the shortest trained length.

    A length between two that the task can make (even ones alone, say) is evaluated at the one below.

    Raises:
        UserError: a length asked for below the shortest or above the longest the task can make, or a task
            without any length in the default grid.
    """
    name = type(task).__name__
    if asked is not None:
        for length in asked:
            nearest = task.nearest_length(length)
            if nearest is None:
                bound = f"shortest is {shortest_length(task)}"
            elif nearest < length and task.nearest_length(2 * length) == nearest:
                bound = f"longest is {nearest}"
            else:
                continue
            raise UserError(
                f"evaluation.lengths: {name} cannot make an input of length {length}; its {bound}"
            )
        return tuple(sorted(set(asked)))
    ratios = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0)
    grid = sorted({min(LONGEST, max(1, round(ratio * max(trained)))) for ratio in ratios})
    made = [(length, task.nearest_length(length)) for length in grid]
    kept = tuple(length for length, nearest in made if nearest and nearest >= max(0.9 * length, min(trained)))
    if not kept:
        raise UserError(
            f"evaluation.lengths=null: {name} makes none of {', '.join(map(str, grid))}; say which lengths"
        )
    return kept


def shortest_length(task: Task) -> int:
    """The shortest input the task can make."""
    return next((n for n in range(1, 100_000) if task.nearest_length(n) == n), 100_000)


def _train_lengths(training: TrainingConfig, task: Task) -> tuple[int, ...]:
    lengths = range(training.min_length, training.max_length + 1)
    made = tuple(length for length in lengths if task.nearest_length(length) == length)
    if not made:
        raise UserError(
            f"training.min_length={training.min_length}, training.max_length={training.max_length}: "
            f"{type(task).__name__} makes no input of such a length; its shortest is {shortest_length(task)}"
        )
    return made
