"""Code that gives the published numbers counts as the code that published them (`known`): it is replayed."""

from __future__ import annotations

import math
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import torch

from pe_experiments.published.archive import DIGITS, FILES, read_archive, read_witness
from pe_experiments.published.replay import RECORDED, Kind, Numbers, Request, kinds_of, replayed, weightless
from pe_experiments.store.code import FILE, Half, known, write_known
from pe_experiments.terminal.console import Display, Lines, say
from pe_experiments.terminal.errors import UserError, few, nearest

ALL = "all"
HALVES = get_args(Half)
NAMES = {"training": "the training code", "evaluation": "the code that evaluates"}
WHOLE = 5  # runs of a study that are replayed to their end
WHOLE_SECONDS = 200  # of training in these, on the machine that published them
DOUBLE = 1e-9  # what rounding in double precision changes by the first recorded steps; 1e-16 each
NUDGE = 1e-14  # of the first weights, some times rounding: training may carry it far
CARRIED = 30  # how much farther than a nudge another order of sums may be carried


@dataclass
class Finding:
    """What replaying gave: the beginnings of kinds, and of some the ``whole`` run."""

    kinds: Sequence[Kind]
    whole: Sequence[Kind]
    agrees: str = "come out as published"  # or how else, for people
    differing: dict[str, str] = field(default_factory=dict)  # how, by run, for people

    def note(self, kind: Kind, said: str) -> None:
        if said:
            self.differing.setdefault(kind.run, f"{kind.label} on {kind.task} {said}")

    def refused(self) -> dict[str, list[Kind]]:
        """The fewest unknown parts that explain what differs, each with its kinds."""
        left = [kind for kind in self.kinds if kind.run in self.differing]
        blamed: dict[str, list[Kind]] = {}
        among = Counter(part for kind in self.kinds for part in kind.code)
        while counts := Counter(part for kind in left for part in kind.unknown):
            part = max(sorted(counts), key=lambda one: (counts[one] / among[one], counts[one]))
            blamed[part] = [kind for kind in left if part in kind.unknown]
            left = [kind for kind in left if part not in kind.unknown]
        return blamed | ({"": left} if left else {})  # known code: another machine or library


def adopt(named: str, folders: Sequence[Path], results_dir: Path) -> int:
    """Take the code that agrees with a published study, or all; the exit code is 1 if something does not."""
    studies = [folder for folder in folders if (folder / FILES[-1]).exists()]
    there = {str(folder.relative_to(results_dir)): folder for folder in studies}
    if named != ALL and named not in there:
        raise UserError(f"adopt={named}: no such published study.{nearest(named, [*there, ALL])}")
    differing = 0
    for study in there if named == ALL else [named]:
        kinds = kinds_of(read_archive(there[study]), read_witness(there[study]))
        if not all(kind.has_data for kind in kinds):
            say(f"{study}: left out, since the data files that it was trained on are not here as they were")
            continue
        differing += len(hold(study, kinds, WHOLE, results_dir).differing)
    return int(bool(differing))


def hold(study: str, kinds: Sequence[Kind], whole: int, results_dir: Path) -> Finding:
    """Hold kinds against what is published (`witness`), say what came out, and note the code that agrees."""
    scratch = results_dir / ".replays" / study.replace("/", "-")
    finding = witness(kinds, whole, None, scratch, Lines())
    shutil.rmtree(scratch)
    refused = finding.refused()
    for part, those in refused.items():
        others = f" ({len(those)} of {len(kinds)} kinds)" if len(those) > 1 else ""
        why = f"{spoken(part)} gives other numbers than published" if part else "on this machine"
        say(f"{study}: {why}: {finding.differing[those[0].run]}{others}")
    agreeing = [kind for kind in kinds if kind.run not in finding.differing]
    ends = sum(kind.run not in finding.differing for kind in finding.whole)
    said = f"{len(agreeing)} kinds" + f" and {ends} whole runs" * bool(ends) + f" of {study} {finding.agrees}"
    if agreeing:
        say(said)
    adopted = {
        part: {half: known()["parts"][part][half] for half in HALVES} | _today(kind.code[part], said)
        for kind in agreeing
        for part in kind.unknown.difference(refused)
        if kind.names(part) and (part != "evaluation" or ends)
    }
    if adopted:
        write_known({"parts": known()["parts"] | adopted})
        say(f"{study}: adopted {few([spoken(part) for part in adopted])}; commit {FILE.name}, which holds it")
    return finding


def register(kinds: Sequence[Kind]) -> None:
    """Note the code of newly published runs where it was not known: it is what their names were made of."""
    parts: dict[str, Any] = {}
    for kind in kinds:
        made = {**kind.states["trained"], **kind.states["evaluated"]}
        for part, digest in kind.code.items():
            if made.get(part) == digest:
                parts[part] = {half: {part: digest} for half in HALVES} | _today(digest, "as published")
    if parts:
        write_known({"parts": known()["parts"] | parts})


def _today(digest: str, replayed: str) -> dict[str, Any]:
    return {"digest": digest, "torch": torch.__version__, "replayed": replayed}


def spoken(part: str) -> str:
    return NAMES.get(part, part.rpartition(".")[2])


def witness(kinds: Sequence[Kind], whole: int, steps: int | None, scratch: Path, display: Display) -> Finding:
    """Replay kinds of one study and hold them against what is published.

    In double precision rounding is too small to matter: a beginning (of so many ``steps``, or all that are
    witnessed) must come out as when the study was published, on every machine and in whatever order sums are
    added up. So many ``whole`` runs, drawn at random, must come out digit for digit, or up to rounding.
    """
    if unwitnessed := [kind.run for kind in kinds if not kind.witnessed]:
        raise UserError(f"nothing is known of how {unwitnessed[0]} begins; publish its study again")
    finding = Finding(kinds, _drawn(kinds, whole))
    requests = [kind.beginning(steps) for kind in kinds] + [Request(kind) for kind in finding.whole]
    numbers = replayed(requests, scratch, display)
    begun = list(zip(kinds, numbers, strict=False))
    drifting = [  # first as witnessed, and apart from it later
        (kind, mine)
        for kind, mine in begun
        if apart(mine, kind.witnessed, DOUBLE) and not apart(_first(mine), kind.witnessed, DOUBLE)
    ]
    nudged = replayed([kind.beginning(steps, NUDGE) for kind, _ in drifting], scratch, display)
    for (_, mine), other in zip(drifting, nudged, strict=True):
        _allow_rounding(mine, other)
    for kind, mine in begun:
        finding.note(kind, apart(mine, kind.witnessed, DOUBLE))
    for kind, mine in zip(finding.whole, numbers[len(kinds) :], strict=True):
        if apart(mine, kind.published, 10**-DIGITS):
            finding.note(kind, beyond_rounding(kind, mine))
            finding.agrees = "come out as published up to rounding"
    return finding


def _drawn(kinds: Sequence[Kind], whole: int) -> list[Kind]:
    """So many kinds at random, steady if there are any, that fit into `WHOLE_SECONDS`; or the shortest."""
    draw = random.Random(str(sorted(str(kind.code) for kind in kinds)))  # the same after an interruption
    most = WHOLE_SECONDS / max(1, whole)
    cheap = [kind for kind in kinds if kind.seconds * kind.published["rows"][-1]["step"] <= most]
    among = [kind for kind in cheap if kind.steady] or cheap
    return draw.sample(among, min(whole, len(among))) if among or not whole else [kinds[-1]]


def _first(mine: Numbers) -> Numbers:
    return mine | {"rows": mine["rows"][:1], "curve": [], "until": 0}


def _allow_rounding(mine: Numbers, nudged: Numbers) -> None:
    """Note in every row of a beginning how far rounding is carried there, from one with other rounding."""
    far = 0.0
    for key in ("rows", "curve"):
        for one, two in zip(mine[key], nudged[key], strict=False):
            far = max(far, abs(one["loss"] - two["loss"]) / max(abs(two["loss"]), 1e-12))
            one["rounding"] = CARRIED * far


def apart(mine: Numbers, published: Numbers, tolerance: float = 0.0) -> str:
    """How a replayed run or its beginning first differs from what is published of it, or nothing."""
    if error := mine.get("error"):
        return f"cannot be replayed: {error}"
    recorded = {row["step"]: row for row in mine["rows"]}
    last, end = max(recorded), int(published["rows"][-1]["step"])
    for row in published["rows"]:
        step = int(row["step"])
        if step <= last and (said := _first_apart(recorded.get(step, {}), row, RECORDED, tolerance)):
            return f"differs from step {step} on: {said}"
    if mine["until"] is None and (said := _end_apart(mine, published)):
        return said
    return _curve_apart(mine if last >= end else weightless(mine, few=True), published, tolerance)


def _end_apart(mine: Numbers, published: Numbers) -> str:
    last, end = mine["rows"][-1]["step"], int(published["rows"][-1]["step"])
    return "" if last == end else f"ends at step {last}, published at {end}"


def _curve_apart(mine: Numbers, published: Numbers, tolerance: float) -> str:
    """How the curve of a replayed run first differs, in the columns that both have."""
    points = {point["content_length"]: point for point in published["curve"]}
    evaluated = {point["length"] for point in mine["curve"]}
    if evaluated and (left_out := [length for length in mine["lengths"] if length not in evaluated]):
        return f"is not evaluated at length {left_out[0]}, published is"
    for point in mine["curve"]:
        length = point["content_length"]
        if length not in points:
            return f"is evaluated at length {length}, published not"
        keys = [key for key in point if key in points[length]]
        if said := _first_apart(point, points[length], keys, tolerance):
            return f"differs at length {length}: {said}"
    return ""


def _first_apart(mine: Numbers, published: Numbers, keys: Iterable[str], tolerance: float) -> str:
    """The first of these columns in which two rows differ, in words."""
    relative = max(tolerance, mine.get("rounding", 0.0))
    for key in keys:
        one, other = (None if pd.isna(row.get(key)) else row[key] for row in (mine, published))
        if isinstance(one, float | int) and isinstance(other, float | int):
            equal = math.isclose(one, other, rel_tol=relative, abs_tol=tolerance)
        else:
            equal = one == other
        if not equal:
            return f"{key.replace('_', ' ')} {one}, published {other}"
    return ""


def beyond_rounding(kind: Kind, mine: Numbers) -> str:
    """How a whole run replayed with another rounding differs by more than that may cause, or nothing.

    It must end at the same step, columns of the curve that depend on no weights must agree, and of a steady
    kind Wilson's intervals of exact match within the training lengths must meet.
    """
    if said := apart(_first(mine), kind.published, 0.1):
        return said
    stops = kind.trained["training"].get("stop_at_exact_match")  # maybe at another step
    if said := mine.get("error") or ("" if stops else _end_apart(mine, kind.published)):
        return said
    if said := _curve_apart(weightless(mine), kind.published, 0.0):
        return said
    points = {point["content_length"]: point for point in kind.published["curve"]}
    for point in mine["curve"] if kind.steady else ():
        there = points[point["content_length"]]
        above = point["exact_match_low"] > there["exact_match_high"]
        below = there["exact_match_low"] > point["exact_match_high"]
        if point["split"] == "in_distribution" and (above or below):
            told = _first_apart(point, there, ["exact_match"], 0.0)
            return f"differs at length {point['content_length']} by more than rounding: {told}"
    return ""


def witnessed(numbers: Sequence[Numbers]) -> pd.DataFrame:
    """Beginnings that were replayed, as a table: a row per recorded step, then one per evaluated length."""
    rows: list[Numbers] = []
    for made in numbers:
        if error := made.get("error"):
            raise UserError(f"{made['run']} cannot be replayed: {error}")
        named = {"name": made["run"]}
        rows += [named | row for row in made["rows"]]
        rows += [named | point | {"length": point["content_length"]} for point in made["curve"]]
    table = pd.DataFrame(rows, columns=["name", "step", "length", *RECORDED])
    return table.astype({"step": "Int64", "length": "Int64"})
