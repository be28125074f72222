"""What runs must be before they are published: made by one known state of the code, and repeatable."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from pe_experiments.comparison.runs import Runs
from pe_experiments.configuration.compose import CATALOGUE, targets
from pe_experiments.configuration.schema import PARTS, HardwareConfig
from pe_experiments.published.archive import EVALUATED
from pe_experiments.published.kinds import Kind, kind_of_run, kinds_of
from pe_experiments.published.replay import MACHINE, Outcome, named_by, replayed
from pe_experiments.published.witness import apart, beyond_rounding, to_digits, witnessed
from pe_experiments.store.directory import COMPLETED
from pe_experiments.store.identity import CODE_OF, is_code
from pe_experiments.terminal.console import display_for, say
from pe_experiments.terminal.errors import UserError, few
from pe_experiments.training.hardware import describe_environment, prepare_hardware

REPEATED = 3  # runs drawn at random


def require_one_known_source(study: str, runs: Runs) -> None:
    """Refuse runs of edited or unknown source, and runs that different code has trained or evaluated.

    Raises:
        UserError: there are such runs.
    """
    sources = {name: str(made.get("source") or "+edited") for name, made in runs.environments.items()}
    if edited := [name for name, source in sources.items() if source.endswith("+edited")]:
        raise UserError(
            f"study={study}: {len(edited)} of {len(sources)} runs are of an edited or unknown source "
            f"({few(edited)}); commit the source and train them again"
        )
    seen: dict[str, tuple[str, Any]] = {}
    for name, saved in runs.saved.items():
        for what, state in _states(saved):
            one, before = seen.setdefault(what, (name, state))
            if state != before:
                raise UserError(
                    f"study={study}: {one} and {name} were made by different states of {what}; the commands "
                    f"that made them bring both up to date"
                )
        if outside := [one for one in targets(saved["identity"]["trained"]) if not one.startswith(CATALOGUE)]:
            raise UserError(
                f"study={study}: {few(outside)} of {name} is no code of this project; its source is unknown"
            )


def _states(saved: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The parts of a run, in words, with the state of the code of each; data files are no code."""
    trained, sources = saved["identity"]["trained"], saved["identity"]["sources"]
    classes = {group: list(targets(trained.get(group))) for group in CODE_OF}
    for group in set(sources) & set(CODE_OF):
        of_code = {name: digest for name, digest in sources[group].items() if is_code(name)}
        yield f"{CODE_OF[group]} {few(classes[group])}".rstrip(), of_code
    if evaluated := saved[EVALUATED]:
        yield (
            "the code that evaluates",
            [evaluated.get(name) for name in ("evaluation", "pe_experiments.evaluation")],
        )
        yield f"what evaluates {few([one for group in PARTS for one in classes[group]])}", evaluated


def repeat_some(study: str, made: Runs, published: Runs, before: pd.DataFrame) -> pd.DataFrame:
    """Repeat a few of the runs, drawn at random, and the beginning of one of each kind in double precision.

    Args:
        study: its name.
        made: since the study was published last.
        published: all of them.
        before: beginnings that were replayed then.

    Returns:
        The beginnings of all kinds.

    Raises:
        UserError: a run comes out otherwise; on another kind of machine, by more than rounding.
    """
    finished = made.runs[made.runs["status"] == COMPLETED]
    some = finished.sample(min(REPEATED, len(finished))).to_dict("records")
    drawn, kinds = [kind_of_run(made, row, before) for row in some], kinds_of(published, before)
    for kind in drawn:
        if (now := named_by(kind.command)) != kind.run:
            raise UserError(
                f"study={study}: the command of {kind.run} now trains {now}: the code has changed"
            )
    say(f"{study}: repeating {few([kind.run for kind in drawn])}")
    requests = [kind.whole() for kind in drawn]
    requests += [kind.beginning() for kind in kinds if kind.witnessed is None]
    with TemporaryDirectory() as scratch:
        outcomes = replayed(requests, Path(scratch), display_for(), {})
    for kind, mine in zip(drawn, outcomes, strict=False):
        _require_repeated(study, kind, mine)
    kept = before[before["name"].isin({kind.run for kind in kinds})]
    return pd.concat([kept, witnessed(outcomes[len(drawn) :])], ignore_index=True)


def _require_repeated(study: str, kind: Kind, mine: Outcome) -> None:
    said, what = apart(mine, kind.published, to_digits(17)), f"study={study}: {kind.run} repeated"
    if said and kind.machine == this_machine():
        raise UserError(f"{what} on the same kind of machine {said}")
    begun = mine | {"rows": mine["rows"][:1], "curve": [], "until": 0}
    if said and (more := apart(begun, kind.published, close) or beyond_rounding(kind, mine)):
        raise UserError(f"{what} {more}")
    if said:
        say(f"{kind.run}: repeated up to rounding, on another machine")


def close(one: float, two: float) -> bool:
    """Whether two numbers at the beginning of a run may differ by rounding in single precision."""
    return math.isclose(one, two, rel_tol=0.1, abs_tol=0.1)


@cache
def this_machine() -> dict[str, Any]:
    """What decides about the last digits of a run here."""
    usual = HardwareConfig(accelerator="cpu", devices=1, threads=1)
    machine = describe_environment(prepare_hardware(usual))
    return {key: machine[key] for key in MACHINE} | {"threads": 1}
