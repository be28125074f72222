"""From finished runs to the CSVs of a study: made by one known state of the code, and repeatable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

import pe_experiments.published.archive as archive
from pe_experiments.comparison.runs import Runs, read_runs
from pe_experiments.configuration.compose import OURS, common_to_runs, targets
from pe_experiments.configuration.experiment import resolve
from pe_experiments.configuration.schema import PARTS, check
from pe_experiments.published.adopt import apart, beyond_rounding, register, witnessed
from pe_experiments.published.pages import code_of, make, mirror
from pe_experiments.published.replay import Kind, Numbers, Request, kind_of_run, kinds_of, replayed
from pe_experiments.store.directory import COMPLETED, run_directory
from pe_experiments.store.identity import CODE_OF, identify, is_code
from pe_experiments.terminal.console import Lines, say
from pe_experiments.terminal.errors import UserError, few
from pe_experiments.terminal.files import CONFIG_DIR, write_atomically
from pe_experiments.training.device import describe_environment, prepare_device

ONE_IN, MOST = 10, 3  # runs drawn at random are repeated
# Where these agree, so does every bit of a run.
MACHINE = ("processor", "device", "matmul", "threads", "python", "libraries")


def publish(named: str, results_dir: Path) -> None:
    """Write the CSVs of a study (or of a sweep's) and everything that follows from them; all or nothing."""
    sweep = CONFIG_DIR / "sweep" / f"{named}.yaml"
    said = common_to_runs([f"sweep={named}"])[0] if sweep.exists() else {}  # with what it inherits
    study = str(said.get("study") or named)
    # Of such a study what is finished is published, and what was published stays; of others, all or nothing.
    folder, grows = results_dir / study, (said.get("sweep") or {}).get("publish") == "finished"
    found = read_runs(results_dir, study)
    if not (found.saved or found.left_out):
        raise UserError(f"publish={study}: it has no runs")
    for name, saved in found.saved.items():
        result = run_directory(results_dir, name).read_result() or {}
        saved[archive.EVALUATED] = result["evaluation"]["code"] if result.get("status") == COMPLETED else {}
    grown = grows and (folder / archive.FILES[-1]).exists()
    published = archive.joined(archive.read_archive(folder), found) if grown else found
    require_one_known_source(study, published)
    if not grows:
        _require_finished(study, found)
    elif waiting := set(found.left_out) - set(published.saved):
        say(f"{study}: {len(waiting)} runs are not finished yet")
    say(f"{study}: {len(published.saved)} runs, {len(found.saved)} of them from {results_dir / 'runs'}")
    before = archive.read_witness(folder)
    kinds = kinds_of(published, before)
    witnesses = repeat_some(study, found, kinds, before)
    code = code_of(folder)
    with TemporaryDirectory() as scratch:
        made = Path(scratch) / study
        archive.write_archive(published, made)
        write_atomically(made / archive.WITNESS, witnesses.to_csv(index=False))
        if hasattr(code, "measure"):
            code.measure(made, published, results_dir)
        make(made, code)
        mirror(made, folder)
    if results_dir.resolve() == archive.SHIPPED:  # nobody else's studies say which code the project's is
        register(kinds)


def _require_finished(study: str, runs: Runs) -> None:
    """Refuse a study with a run that is not finished, or a seed that not every combination has."""
    why = [f"{name}: {reason}" for name, reason in runs.left_out.items()]
    if not why and runs.runs.groupby(["protocol", "scheme"])["seed"].agg(frozenset).nunique() > 1:
        why = ["some combinations lack seeds that others have"]
    if why:
        raise UserError(f"publish={study}: not finished ({few(why)}); the commands that began it finish it")


def require_one_known_source(study: str, runs: Runs) -> None:
    """Refuse runs of edited or unknown source, and runs that different code has trained or evaluated."""
    sources = {name: str(made.get("source") or "+edited") for name, made in runs.environments.items()}
    if edited := [name for name, source in sources.items() if source.endswith("+edited")]:
        some = f"{len(edited)} of {len(sources)} runs are of an edited or unknown source ({few(edited)})"
        raise UserError(f"study={study}: {some}; commit the source and train them again")
    seen: dict[str, tuple[str, Any]] = {}
    for name, saved in runs.saved.items():
        for what, state in _states(saved):
            one, before = seen.setdefault(what, (name, state))
            if state != before:
                both = f"{one} and {name} were made by different states of {what}"
                raise UserError(f"study={study}: {both}; the commands that made them bring both up to date")
        if outside := [one for one in targets(saved["identity"]["trained"]) if not OURS.fullmatch(one)]:
            raise UserError(f"study={study}: {few(outside)} of {name} is no code of this project")


def _states(saved: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The parts of a run, in words, with the state of the code of each; data files are no code."""
    trained, sources = saved["identity"]["trained"], saved["identity"]["sources"]
    classes = {group: list(targets(trained.get(group))) for group in CODE_OF}
    for group in set(sources) & set(CODE_OF):
        of_code = {name: digest for name, digest in sources[group].items() if is_code(name)}
        yield f"{CODE_OF[group]} {few(classes[group])}".rstrip(), of_code
    if evaluated := saved[archive.EVALUATED]:
        common = [evaluated.get(name) for name in ("evaluation", "pe_experiments.evaluation")]
        yield "the code that evaluates", common
        yield f"what evaluates {few([one for group in PARTS for one in classes[group]])}", evaluated


def repeat_some(study: str, made: Runs, kinds: list[Kind], before: pd.DataFrame) -> pd.DataFrame:
    """Repeat a few runs, drawn at random, and beginnings not witnessed ``before``: the beginnings of all."""
    finished = made.runs[made.runs["status"] == COMPLETED]
    some = finished.sample(min(MOST, -(-len(finished) // ONE_IN))).to_dict("records")
    drawn = [kind_of_run(made, row, before) for row in some]
    for kind in drawn:
        if (now := identify(resolve(check(kind.commanded()))).name) != kind.run:
            raise UserError(f"study={study}: the code has changed, the command of {kind.run} trains {now}")
    say(f"{study}: repeating {few([kind.run for kind in drawn])}")
    requests = [Request(kind) for kind in drawn]
    requests += [kind.beginning() for kind in kinds if not kind.witnessed]
    with TemporaryDirectory() as scratch:
        numbers = replayed(requests, Path(scratch), Lines())
    for kind, mine in zip(drawn, numbers, strict=False):
        _require_repeated(study, kind, mine)
    kept = before[before["name"].isin({kind.run for kind in kinds})]
    return pd.concat([kept, witnessed(numbers[len(drawn) :])], ignore_index=True)


def _require_repeated(study: str, kind: Kind, mine: Numbers) -> None:
    """A run must come out to the last digit; on another kind of machine, up to rounding."""
    if not (said := apart(mine, kind.published)):
        return
    what = f"study={study}: {kind.run} repeated"
    here = describe_environment(prepare_device(kind.experiment().config))
    if all(kind.environment.get(key) == here[key] for key in MACHINE):
        raise UserError(f"{what} on the same kind of machine {said}")
    if more := beyond_rounding(kind, mine):
        raise UserError(f"{what} {more}")
    say(f"{kind.run}: repeated up to rounding, on another machine")
