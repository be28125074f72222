"""Define the schema of each section of a configuration, and report each mistake in one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import ValidationError

from pe_experiments.configuration.choices import keys_of, unknown_key
from pe_experiments.terminal.errors import NotApplicable, UserError, allowed, shown

_NO_CONTROL = r"[^\x00-\x1f\x7f-\x9f]*"
# A text with a visible character and without control characters.
PRINTABLE = rf"^{_NO_CONTROL}[^\x00-\x1f\x7f-\x9f\s]{_NO_CONTROL}$"
Schema = TypeVar("Schema", bound=BaseModel)
# Random streams are numbered within 32 bits (`randomness`), which bounds these values.
MAX_LENGTH = 131_071
MOST_EXAMPLES = 409_600
MOST_BATCHES = 1 << 29
FINAL_LEARNING_RATE = 0.05  # the default of configs/training
MAX_COUNT = (1 << 31) - 1  # of any other count, so that their products fit into 64 bits
MOST_LAYERS = 1000  # which take a second to build
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Seed = Annotated[int, Field(ge=0, le=(1 << 63) - 1)]
Jobs = Annotated[int, Field(ge=1, le=1024)]  # processes of one machine
Length = Annotated[int, Field(ge=1, le=MAX_LENGTH)]
NAME = r"^[A-Za-z0-9_(][A-Za-z0-9_.+=(),-]*$"  # does not start a spreadsheet formula
# Folders of results_dir that are not studies.
RESERVED = ("runs", "comparison", "encodings", "models", "multirun")


def _study_name(value: Any) -> Any:
    """Return the name of a study as text, because it may be a year; refuse reserved folders."""
    if isinstance(value, str) and value.partition("/")[0] in RESERVED:
        raise ValueError(f"study={value} is reserved; allowed: any name but {allowed(RESERVED)}")
    return str(value) if type(value) is int else value


# A name becomes part of paths and commands. The name of a study may contain one slash, as in text/rope.
STUDY_PATTERN = f"{NAME[:-1]}(/{NAME[1:-1]})?$"
StudyName = Annotated[str, BeforeValidator(_study_name), Field(pattern=STUDY_PATTERN, max_length=120)]
Folder = Annotated[str, Field(min_length=1, pattern=PRINTABLE)]
REPOSITORY = r"^[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*$"  # of the Hugging Face Hub
Repository = Annotated[str, Field(max_length=96, pattern=REPOSITORY)]
Words = Annotated[str, Field(min_length=1, max_length=120, pattern=PRINTABLE)]


def _require_letter(label: str) -> str:
    """Refuse a label without letters, which spreadsheets and pandas would read as a number."""
    if not any(map(str.isalpha, label)):
        raise ValueError(f"label={label} would be read as a number; allowed: a name with a letter")
    return label


Label = Annotated[str, Field(pattern=NAME, max_length=120), AfterValidator(_require_letter)]


class Section(BaseModel):
    """A section that refuses unknown keys and silent conversions of types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


MODEL_SIZES = ("causal", "d_model", "num_heads", "num_layers")


class ModelConfig(Section):
    """The class of a model, its sizes and its arguments (`models.Backbone`)."""

    model_config = ConfigDict(extra="allow", serialize_by_alias=True)

    target: str = Field(alias="_target_")
    causal: bool
    d_model: Count
    num_heads: Count
    num_layers: Annotated[int, Field(ge=1, le=MOST_LAYERS)]

    @model_validator(mode="after")
    def _check_width(self) -> ModelConfig:
        if self.d_model % self.num_heads:
            divisors = [str(n) for n in range(1, min(self.d_model, 64) + 1) if self.d_model % n == 0]
            wrong = f"model.num_heads={self.num_heads} does not divide model.d_model={self.d_model}"
            raise ValueError(f"{wrong}; allowed here: {allowed(divisors)}")
        if self.d_model == 1:
            raise ValueError("model.d_model=1: a layer norm over one column is constant; allowed: 2 or more")
        return self


class TrainingConfig(Section):
    """Data, duration and method of training (`training`)."""

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
    check_every: Count
    check_examples: Annotated[int, Field(ge=1, le=MOST_EXAMPLES)]
    stop_at_exact_match: Annotated[float, Field(gt=0, le=1)] | None

    @model_validator(mode="after")
    def _check_values_together(self) -> TrainingConfig:
        for lower, upper in (("min_length", "max_length"), ("warmup_steps", "steps")):
            value, bound = getattr(self, lower), getattr(self, upper)
            if value is not None and value > bound:
                problem = f"training.{lower}={value} is above training.{upper}={bound}"
                raise ValueError(f"{problem}; allowed: at most {bound}")
        if self.schedule == "constant" and self.final_learning_rate != FINAL_LEARNING_RATE:
            raise NotApplicable(
                f"training.final_learning_rate={self.final_learning_rate}: training.schedule=constant ends "
                f"at the rate it has; allowed: {FINAL_LEARNING_RATE}"
            )
        return self


class EvaluationConfig(Section):
    """Lengths, examples per length, decoding and window of the evaluation (`evaluation`)."""

    lengths: Annotated[list[Length], Field(min_length=1)] | None
    examples: Annotated[int, Field(ge=1, le=MOST_EXAMPLES)]
    decoding: Literal["teacher_forcing", "greedy"] = "teacher_forcing"  # absent in some saved runs
    every: Count | None = None  # steps between evaluations during training
    every_examples: Annotated[int, Field(ge=1, le=MOST_EXAMPLES)] = 200
    window: Annotated[int, Field(ge=2)] | None = None
    save: bool = False  # whether inputs, targets and answers are kept
    metrics: list[Words] = Field(default_factory=list)  # functions, such as mine.first_error


class TrainerConfig(Section):
    """Arguments of Lightning's Trainer, and the threads and the matmul backend of a CPU (`trainer`)."""

    accelerator: Literal["auto", "cpu", "gpu", "mps"]
    devices: Count
    num_nodes: Count
    strategy: Literal["auto", "ddp", "fsdp"]
    precision: Literal["32-true", "bf16-mixed", "64-true"] = "32-true"
    accumulate_grad_batches: Count = 1
    callbacks: list[dict[str, Any]] = Field(default_factory=list)
    threads: Count
    matmul: Literal["auto", "default", "onednn"]


def _check_loggers(sections: dict[str, Any]) -> dict[str, Any]:
    """Refuse a logger whose section is not a mapping with a ``_target_``; without, it is not used."""
    for name, section in sections.items():
        target = (section or {}).get("_target_", "a.b")
        if not isinstance(target, str) or "." not in target:
            example = "expected a logger such as pytorch_lightning.loggers.CSVLogger"
            raise ValueError(f"logger.{name}._target_={shown(target)}: {example}")
    return sections


# The arguments of Lightning's loggers by name (`tracking`).
LoggerSections = Annotated[dict[str, dict[str, Any] | None], AfterValidator(_check_loggers)]


def used_loggers(sections: LoggerSections) -> dict[str, dict[str, Any]]:
    """Return the sections of the loggers that are used; `configs/local` may have options of others."""
    return {name: section for name, section in sections.items() if section and "_target_" in section}


class LauncherConfig(Section):
    """How the runs of a sweep are launched (``hydra.launcher``); not part of a run's identity."""

    max_runs: Count  # most runs in a sweep


class ProcessesConfig(LauncherConfig):
    """Processes of this machine (``hydra/launcher=processes``)."""

    jobs: Jobs | None  # parallel runs; None: one per core, or as many as the GPUs hold
    jobs_per_device: Jobs  # parallel runs per GPU


class SubmititConfig(LauncherConfig):
    """Jobs through submitit (``hydra/launcher=slurm`` and ``submitit_local``)."""

    timeout_min: Count  # minutes per job; a longer run is queued again and resumes
    max_num_timeout: Annotated[int, Field(ge=0)]  # how often a run may be queued again
    parameters: dict[str, Any]  # further parameters of submitit, as slurm_partition


class RayConfig(LauncherConfig):
    """Tasks on Ray (``hydra/launcher=ray``)."""

    jobs: Jobs | None  # parallel runs on this machine
    address: str | None  # of a running Ray cluster; None starts Ray locally

    @model_validator(mode="after")
    def _check_jobs(self) -> RayConfig:
        if self.address and self.jobs:
            raise ValueError(f"hydra.launcher.jobs={self.jobs}: with an address the running Ray decides")
        return self


class ParentConfig(Section):
    """The record of the parent run that a child run stores when it begins (`store.parent`)."""

    name: str
    label: str
    run: str  # hash of the identity
    family: str  # hash of the identity without the seed
    length: Count | None  # `ModelShape.original_length`; None if the child's encoding depends on no length
    batches: Annotated[int, Field(ge=0)]  # number of batches the parent was trained on


# Options of `trainer` that change the trained model, and so belong to the identity of a run.
TRAINER_OPTIONS_IN_IDENTITY = ("precision", "accumulate_grad_batches", "callbacks")
ENCODING_AND_TASK = ("pe", "positions", "task")  # sections with a _target_ and its arguments


class Config(Section):
    """A whole configuration; ``pe``, ``positions``, ``task`` and ``optimizer`` hold a ``_target_``."""

    pe: dict[str, Any]
    positions: dict[str, Any]
    task: dict[str, Any]
    model: ModelConfig
    training: TrainingConfig
    optimizer: dict[str, Any]
    evaluation: EvaluationConfig
    trainer: TrainerConfig
    logger: LoggerSections = Field(default_factory=dict)
    seed: Seed
    study: StudyName | None
    label: Label | None
    results_dir: Folder
    rerun: bool
    init_from: Folder | None = None  # the directory of the run that this one continues
    parent: ParentConfig | None = None  # derived from ``init_from``
    # Options of a command, which are not saved with a run.
    dry_run: bool = Field(default=False, exclude=True)
    trust: bool = Field(default=False, exclude=True)

    @model_validator(mode="after")
    def _check_sections_together(self) -> Config:
        if (self.init_from is None) != (self.parent is None):
            raise ValueError("parent is not a setting; it follows from init_from")
        every, steps = self.evaluation.every, self.training.steps
        if every is not None and every > steps:
            raise ValueError(
                f"evaluation.every={every} is above training.steps={steps}; allowed: at most {steps}, or null"
            )
        if every is not None and self.trainer.strategy == "fsdp":
            raise NotApplicable(
                f"evaluation.every={every}: with trainer.strategy=fsdp no device has the whole model; "
                "allowed: null"
            )
        if re.match(r"~|\w\w+:|\w+::", self.results_dir):  # fsspec, which writes checkpoints, reads schemes
            problem = f"results_dir={self.results_dir} is an address or begins with ~"
            raise ValueError(f"{problem}; allowed: a path")
        return self


def warmup_steps(steps: int, configured: int | None = None) -> int:
    """Return the configured warm-up steps, by default a tenth of the training but at most 100."""
    return min(100, steps // 10) if configured is None else configured


def resolved(config: DictConfig) -> dict[str, Any]:
    """Return a composed configuration as plain values with ``${...}`` resolved."""
    try:
        plain: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    return plain


def validated(schema: type[Schema], content: Any, *above: str) -> Schema:
    """Return validated content; raise a `UserError` for an unknown key or an invalid value.

    The keys ``above`` lead to the content, a composed configuration or plain values.
    """
    if isinstance(content, DictConfig):
        content = resolved(content)
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        raise complaint(error, *above, known=keys_of(content, *above)) from error


_PART = "a part with a _target_ and _partial_: true, or a list of such where several are taken"
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list in brackets, such as '[a,b]'",
    "dict_type": "names with values in braces, such as '{{a:1}}'",
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "too_short": "at least one entry",
    "string_too_short": "at least one character",
    REPOSITORY: "ORG/NAME of letters, digits and _ . -",
    PRINTABLE: "text that is not blank, without control characters",
    "string_pattern_mismatch": "letters, digits and _ . + = ( ) , - only, first a letter, a digit, _ or (",
    "string_too_long": "at most {max_length} characters",
    "callable_type": _PART,
    "is_instance_of": _PART,
}
UNION_MEMBER = re.compile(r"list\[|constrained|literal\[|(bool|int|float|str)$")  # in pydantic's paths


def complaint(error: ValidationError, *above: str, known: Iterable[str] = ()) -> UserError:
    """Return the first validation error as one sentence with key, value and what is allowed.

    The keys ``above`` lead to the content. The error for an unknown key may suggest one that is ``known``.
    """
    errors = error.errors()
    first = errors[0]
    value = first["input"]
    # For a union, pydantic's path also contains the member of the union.
    where = [str(part) for part in first["loc"] if not UNION_MEMBER.match(str(part))]
    key = ".".join([*above, *where])
    if first["type"] == "value_error":
        cause = first["ctx"]["error"]
        return cause if isinstance(cause, UserError) else UserError(str(cause))
    if first["type"] == "extra_forbidden":
        return UserError(unknown_key(key, known))
    if first["type"] == "missing":
        return UserError(f"{key} is missing")
    expected = dict.fromkeys(_expected(entry) for entry in errors if entry["input"] is value)
    return UserError(f"{key}={shown(value)}: expected {allowed(expected)}")


def _expected(error: Any) -> str:
    """Return what a validation error says is allowed."""
    context = error.get("ctx", {})
    if words := _EXPECTED.get(context.get("pattern")) or _EXPECTED.get(error["type"]):
        return words.format(**context)
    return str(error["msg"]).removeprefix("Input should be ").replace("valid ", "").replace("'", "")
