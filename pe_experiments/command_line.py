"""What the scripts share: reading overrides, and turning every mistake into one sentence."""

from __future__ import annotations

import difflib
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pe_experiments.composition import ALIASES, choices_of, compose_config, parts_outside
from pe_experiments.errors import UserError, allowed, nearest, shown
from pe_experiments.files import CONFIG_DIR

CHANGEABLE = ("pe", "task", "evaluation", "hardware", "logger")  # of a run that is trained
GROUPS = (
    "pe",
    "positions",
    "task",
    "model",
    "training",
    "evaluation",
    "hardware",
    "logger",
    "engine",
    "sweep",
)


def run_script(main: Callable[[], int | None]) -> int:
    """Run a script's main and answer its exit code; mistakes are one line on stderr, never a traceback."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands errors on instead of printing its own form of them
    signal.signal(signal.SIGTERM, _interrupt)  # a sweep then ends its workers, as on Ctrl-C
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # schemes and tasks of the user's own lie in the working directory
    try:
        return main() or 0
    except (UserError, HydraException, OmegaConfBaseException) as error:
        return _complain(sentence(error))
    except KeyboardInterrupt:
        same = "the same command without rerun=true" if "rerun=true" in sys.argv else "the same command"
        return _complain(f"interrupted; {same} goes on from the last checkpoint", code=130)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(f"{error.filename or 'a file'} cannot be used: {error.strerror or error}")
    except Exception as error:  # our mistake, or that of a scheme from outside
        with tempfile.NamedTemporaryFile("w", prefix="pe_experiments_", suffix=".log", delete=False) as log:
            log.write(traceback.format_exc())
        return _complain(f"{type(error).__name__}: {error} (unexpected; traceback in {log.name})")


def normalised(arguments: list[str]) -> list[str]:
    """Arguments with aliases resolved.

    Raises:
        UserError: a list where one choice belongs, or something that is no ``key=value``.
    """
    result = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not key:
            raise UserError(_unreadable(argument))
        if key in GROUPS and value.startswith("["):
            several = value.strip("[]").replace(" ", "")
            raise UserError(
                f"{shown(argument)}: {key} takes one choice; for several runs write -m {key}={several}"
            )
        if key == "sweep" and "," in value:
            raise UserError(f"{shown(argument)}: one sweep at a time")
        if key in GROUPS and any(choice.endswith(".yaml") for choice in value.split(",")):
            raise UserError(f"{shown(argument)}: choices are written without .yaml")
        if key == "sweep.baselines" and value and value[0] not in "[\"'":  # one list, not several sweeps
            value = f"[{value}]"
        if key in GROUPS and value in ("", "null") and equals and key != "sweep":
            raise UserError(f"{shown(argument)}: {key} needs a choice.{nearest(value, choices_of(key))}")
        for alias, name in ALIASES.get(key, {}).items():
            value = ",".join(name if part == alias else part for part in value.split(","))
        result.append(f"{key}{equals}{value}")
    return result


HYDRA_FLAGS = """-m --multirun -h --help --hydra-help --version --cfg -c --resolve --package -p --run -r
--info -i --config-path -cp --config-name -cn --config-dir -cd --shell-completion -sc --experimental-rerun"""


def refuse_unknown_flags(arguments: list[str]) -> None:
    """Hydra's own parser would answer with a page of usage.

    Raises:
        UserError: a flag Hydra does not have.
    """
    for argument in arguments:
        flag = argument.partition("=")[0]
        if flag.startswith("-") and flag not in HYDRA_FLAGS.split():
            raise UserError(
                f"{shown(argument)} is not a flag; settings are written key=value, and -m makes a sweep"
            )


def flags_first(arguments: list[str]) -> list[str]:
    """Overrides behind flags: Hydra's parser takes no override before ``-m`` together with some behind it."""
    overrides = [a for a in arguments if "=" in a and not a.startswith("-")]
    return [a for a in arguments if a not in overrides] + overrides


def parse_overrides(arguments: list[str]) -> list[Override]:
    """The arguments as Hydra reads them.

    Raises:
        UserError: one is no ``key=value``.
    """
    parser = OverridesParser.create()
    parsed = []
    for argument in arguments:
        try:
            parsed.append(parser.parse_override(argument))
        except (HydraException, ValueError) as error:
            raise UserError(_unreadable(argument)) from error
    return parsed


def composed(config_name: str, arguments: list[str]) -> DictConfig:
    """The configuration a script's arguments describe, without Hydra's run machinery.

    Raises:
        UserError: an unknown key or choice, a value that cannot be read.
    """
    arguments = normalised(arguments)
    parse_overrides(arguments)
    try:
        return compose_config(config_name, arguments)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(sentence(error, config_name)) from error


def wants_help(usage: str | None, config_name: str) -> bool:
    """Whether ``--help`` was asked for; prints the usage and the script's settings then."""
    if not {"-h", "--help"} & set(sys.argv[1:]):
        return False
    settings = (CONFIG_DIR / config_name).with_suffix(".yaml").read_text()
    print(f"{usage}\n\n{settings}")
    if "- pe:" in settings:
        print("Encodings (pe=NAME)\n")
        for name in choices_of("pe"):
            about = (CONFIG_DIR / "pe" / f"{name}.yaml").read_text().partition("\n")[0]
            print(f"{name:20}{about.removeprefix('# ')}")
    return True


def evaluation_changes(arguments: list[str]) -> tuple[Path, dict[str, Any]]:
    """The run to evaluate, and the sections of its saved configuration with the changes made.

    Raises:
        UserError: no run named, no such run, a change of what was trained, an unknown key, or parts from
            outside the package without ``trust=true``.
    """
    from pe_experiments.runs import RunDirectory

    named = [argument.partition("=")[2] for argument in arguments if argument.lstrip("+").startswith("run=")]
    if not named:
        raise UserError("run is missing; for example run=results/runs/NAME")
    path = Path(
        named[-1].strip("'\"")
    )  # not for Hydra to read: run names hold signs that mean something to it
    others = [argument for argument in arguments if not argument.lstrip("+").startswith(("run=", "trust="))]
    overrides = {override.key_or_group: override for override in parse_overrides(normalised(others))}
    if not (path / "config.yaml").exists():
        raise UserError(f"run={path}: there is no run (no config.yaml); finished ones lie under results/runs")
    saved = OmegaConf.create(RunDirectory(path).read_config())
    changed = {}
    for key, override in sorted(overrides.items(), key=lambda item: "." in item[0]):  # choices come first
        section, _, rest = key.partition(".")
        if override.is_sweep_override():
            raise UserError(f"{override.input_line}: one evaluation at a time; a list is written '[3,4]'")
        if section not in CHANGEABLE or (not rest and section not in ("pe", "task")):
            raise UserError(
                f"{key}: this run is trained; only {allowed(CHANGEABLE)} can change, as in pe=NAME or "
                f"evaluation.lengths=..."
            )
        if not rest:
            choice = str(override.value())
            if choice not in choices_of(section):
                raise UserError(f"{key}={choice} is not a choice.{nearest(choice, choices_of(section))}")
            saved[section] = _other_choice(saved[section], section, choice)
        else:
            _update(saved, key, override.value())
        changed[section] = OmegaConf.to_container(saved[section])
    if "trust=true" not in (argument.lstrip("+") for argument in arguments):
        typed = {str(override.value()) for override in overrides.values()}
        _refuse_strange_parts(path, saved, {target.rpartition(".")[0] for target in typed})
    return path, changed


def _refuse_strange_parts(path: Path, saved: DictConfig, named: set[str]) -> None:
    """A run from somebody else may name any module; one that was typed is known to whoever typed it."""
    built = OmegaConf.to_container(OmegaConf.masked_copy(saved, ["pe", "positions", "task"]))
    if strange := [part for part in parts_outside(built) if part.rpartition(".")[0] not in named]:
        raise UserError(
            f"run={path}: its config.yaml names {shown(strange[0])}, from outside this package; evaluating "
            f"it imports that module and runs its code. If you trust it, add trust=true"
        )


def _update(saved: DictConfig, key: str, value: Any) -> None:
    try:
        OmegaConf.update(saved, key, value, force_add=True)
    except (OmegaConfBaseException, AttributeError, TypeError, ValueError) as error:
        parent = key.rpartition(".")[0]
        raise UserError(f"{shown(key)} is not a setting: {parent} holds no settings") from error


# What a model with RoPE was trained with, whatever scheme extends it, and where its classes start.
FREQUENCIES = {"base": 10_000.0, "rotary_fraction": 1.0, "kept_frequencies": 1.0}


def _other_choice(trained: DictConfig, section: str, choice: str) -> DictConfig:
    """Another choice for a trained run; among rotations it keeps the frequencies that were trained.

    An argument in which the choice itself differs from plain RoPE (the share that p_rope keeps) is what was
    chosen.
    """
    chosen = OmegaConf.load(CONFIG_DIR / section / f"{choice}.yaml")
    assert isinstance(chosen, DictConfig)
    if all(key in chosen and key in trained for key in FREQUENCIES):
        plain = [key for key, start in FREQUENCIES.items() if chosen[key] == start]
        chosen.update({key: trained[key] for key in plain})
    return chosen


def sentence(error: BaseException, config_name: str = "config") -> str:
    """One sentence for an error: what was written, what is wrong with it, what is allowed."""
    if isinstance(error, UserError):
        return str(error)
    text = str(error)
    if match := re.search(r"Could not find '([^']+)'\s+Available options in '([^']+)'", text):
        group, choice = match[2], match[1].removeprefix(f"{match[2]}/")
        choices = re.findall(r"^\s+(\S+)$", text.partition("Available options")[2], re.MULTILINE)
        return f"{group}={shown(choice)} is not a choice.{nearest(choice, choices)}"
    if match := re.search(r"In '[^']*': Could not find '(\w+)/([^']+)'", text):
        return f"{match[1]}={match[2]} is not a choice.{nearest(match[2], choices_of(match[1]))}"
    if match := re.search(r"Ambiguous value for argument '([^']+)'", text):
        return f"{match[1]}: several values are a sweep; put -m before them"
    if match := re.search(r"Could not override '([^']+)'", text):
        return _unknown_key(match[1], config_name)
    if match := re.search(r"Key '([^']+)' is not in struct\s+full_key: (\S+)", text):
        return _unknown_key(match[2], config_name)
    if match := re.search(r"Error parsing override '([^']+)'", text, re.DOTALL):
        return _unreadable(match[1])
    if isinstance(error.__cause__, OSError):
        return f"{error.__cause__.filename} cannot be used: {error.__cause__.strerror}"
    return " ".join(line.strip() for line in text.splitlines()[:2])


def _unknown_key(key: str, config_name: str) -> str:
    head, _, last = key.rpartition(".")
    node: Any = compose_config(config_name, [])
    whole = node
    for part in head.split(".") if head else []:
        node = node.get(part) if isinstance(node, DictConfig) else None
    if head in ("pe", "positions", "task"):
        return (
            f"{key} is not a setting of the chosen {head}; see configs/{head}, or give your own class an "
            f"argument with +{key}=..."
        )
    known = [str(name) for name in node] if isinstance(node, DictConfig) else list(GROUPS)
    inside = [f"{section}.{name}" for section in GROUPS for name in whole.get(section) or {}]
    close = difflib.get_close_matches(last, {name.partition(".")[2] for name in inside}, 1, 0.8)
    if close and (last in close or not difflib.get_close_matches(last, known, 1, 0.8)):
        meant = [name for name in inside if name.partition(".")[2] in close]
        return f"{shown(key)} is not a setting. Did you mean {allowed(meant)}?"
    return f"{shown(key)} is not a setting.{nearest(last or key, known)}"


def _unreadable(argument: str) -> str:
    if not argument.partition("=")[0] or "=" not in argument:
        return f"{shown(argument)!r} is no key=value; for example pe=sinusoidal or training.steps=500"
    return f"{shown(argument)!r} cannot be read; quote special signs, as in 'evaluation.lengths=[50,100]'"


def _complain(text: str, code: int = 1) -> int:
    sys.stdout.flush()
    print(f"error: {one_line(text)}", file=sys.stderr)
    return code


def one_line(text: str) -> str:
    """The text with every run of white space as one blank."""
    return " ".join(text.split())


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


WITH_A_VALUE = ("--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn")


def command_alone(overrides: Iterable[str]) -> list[str]:
    """The command that carries out one run of this process's sweep alone, given the run's overrides."""
    overrides, flags, words = list(overrides), list[str](), iter(sys.argv[1:])
    for word in words:
        if word.startswith("-") and word not in ("-m", "--multirun"):
            flags.append(word)
            if word in WITH_A_VALUE:
                flags.append(next(words, ""))
    mode = ["hydra.mode=RUN"] if any(text.startswith("sweep=") for text in overrides) else []
    return ["python", "scripts/train.py", *flags, *mode, *overrides]
