"""Code that gives the published numbers counts as the code that published them (`known`)."""

from __future__ import annotations

import copy
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from pe_experiments.comparison.runs import Runs
from pe_experiments.published.archive import EVALUATED, FILES, SHIPPED, read_archive, read_witness
from pe_experiments.published.kinds import Kind, kinds_of
from pe_experiments.published.replay import code_of
from pe_experiments.published.witness import Finding, witness
from pe_experiments.store.code import Digests
from pe_experiments.store.identity import CODE_OF, is_code
from pe_experiments.store.known import FILE, Half, known, write_known
from pe_experiments.terminal.console import display_for, say
from pe_experiments.terminal.errors import UserError, few, nearest

ALL = "all"
HALVES = get_args(Half)
WHOLE = 5  # runs of a study that are replayed to their end
NAMES = {"training": "the training code", "evaluation": "the code that evaluates"}


def adopt(named: str, folders: Sequence[Path], results_dir: Path) -> int:
    """Replay published studies, say what came out, and take the code that agrees for the published one.

    Args:
        named: a study, or ``all``.
        folders: of the published studies.
        results_dir: above them.

    Returns:
        The exit code: 1 where something gives other numbers.

    Raises:
        UserError: no such study.
    """
    there = {
        str(folder.relative_to(results_dir)): folder for folder in folders if (folder / FILES[-1]).exists()
    }
    if named != ALL and named not in there:
        raise UserError(f"adopt={named}: no such published study.{nearest(named, [*there, ALL])}")
    differing = 0
    for study in there if named == ALL else [named]:
        kinds = kinds_of(read_archive(there[study]), read_witness(there[study]))
        differing += len(hold(study, kinds, WHOLE, None, results_dir).differing)
    return int(bool(differing))


def register(runs: Runs) -> None:
    """Note the code of newly published runs where it was not known: it is what their names were made of."""
    parts: Digests = {}
    for saved in runs.saved.values():
        sources = saved["identity"]["sources"]
        made = {part: digest for group in CODE_OF for part, digest in sources.get(group, {}).items()}
        made |= saved[EVALUATED]
        today = code_of(saved["identity"]["trained"])
        parts |= {
            part: digest for part, digest in made.items() if today.get(part) == digest and is_code(part)
        }
    if parts:
        states = {part: {half: {part: digest} for half in HALVES} for part, digest in parts.items()}
        _write(parts, states, "as published", 0.0)


def hold(study: str, kinds: Sequence[Kind], whole: int, steps: int | None, results_dir: Path) -> Finding:
    """Hold kinds against what is published, say what came out, and note the code that agrees.

    Args:
        study: that they are of; ``kinds``, ``whole`` and ``steps`` as in `witness`.
        results_dir: keeps what an interrupted call has done, for the next.
    """
    scratch = results_dir / ".replays" / study.replace("/", "-")
    finding = witness(kinds, whole, steps, scratch, display_for())
    shutil.rmtree(scratch)
    refused = finding.refused()
    for part, those in refused.items():
        others = f" ({len(those)} of {len(kinds)} kinds)" if len(those) > 1 else ""
        why = f"{spoken(part)} gives other numbers than published" if part else "on this machine"
        say(f"{study}: {why}: {finding.differing[those[0].run]}{others}")
    agreeing = [kind for kind in kinds if kind.run not in finding.differing]
    if agreeing:
        ends = sum(kind.run not in finding.differing for kind in finding.whole)
        counted = f"{len(agreeing)} kinds" + f" and {ends} whole runs" * bool(ends)
        say(f"{counted} of {study} {finding.agrees_with}")
    _note(study, finding, agreeing, set(refused))
    return finding


def spoken(part: str) -> str:
    """A part's name for people."""
    return NAMES.get(part, part.rpartition(".")[2])


def _note(study: str, finding: Finding, agreeing: Sequence[Kind], refused: set[str]) -> None:
    """Write what agrees into the list of known code."""
    ends = {kind.run for kind in finding.whole} & {kind.run for kind in agreeing}
    adopted = {
        part: kind.code[part]
        for kind in agreeing
        for part in kind.unknown - refused
        if kind.names(part) and (part != "evaluation" or ends)
    }
    if adopted:
        replayed = f"{len(agreeing)} kinds, {len(ends)} whole runs of {study} {finding.agrees_with}"
        _write(adopted, {}, replayed, finding.difference)
        say(f"{study}: adopted {few([spoken(part) for part in adopted])}; commit {FILE.name}, which holds it")


def _write(parts: Digests, states: Mapping[str, Any], replayed: str, difference: float) -> None:
    """Make these the known code of these parts; their published states stay where none are given."""
    content, commit = copy.deepcopy(known()), _clean_commit()
    for part, digest in parts.items():
        content["parts"][part] = (
            content["parts"].get(part, {})
            | states.get(part, {})
            | {
                "digest": digest,
                "commit": commit,
                "torch": torch.__version__,
                "replayed": replayed,
                "difference": float(f"{difference:.2g}"),
            }
        )
    write_known(content)


def _clean_commit() -> str | None:
    """The commit of this checkout; None where other files than `FILE` differ from it, or without git."""
    git = ["git", "-C", str(SHIPPED.parent)]
    watched = ["pe_experiments", "configs", f":(exclude){FILE.relative_to(SHIPPED.parent)}"]
    try:
        edited = subprocess.check_output([*git, "status", "--porcelain", "--", *watched], text=True)
        return None if edited else subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    except (OSError, subprocess.SubprocessError):
        return None
