"""Whether today's code gives the numbers of a published study: its kinds of run are replayed and compared.

The beginning of a run is replayed in double precision, where rounding is too small to matter: on every
machine, and in whatever order code adds up its sums, it must come out as when the study was published
(``witness.csv``). A few runs are replayed as they were, to their end: digit for digit, or else within their
intervals.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.published.archive import DIGITS
from pe_experiments.published.kinds import OF_EXAMPLES, OF_WEIGHTS, RECORDED, Kind
from pe_experiments.published.replay import Outcome, replayed
from pe_experiments.terminal.console import Display
from pe_experiments.terminal.errors import UserError

WHOLE_SECONDS = 200  # of training in whole runs, on the machine that published them
ROUNDING = 1e-9  # relative; in double precision another order of sums changes 1e-16
NUDGE = 1e-14  # of the first weights, some times rounding: training may carry it far
CARRIED = 30  # how much farther than a nudge another order of sums may be carried

Same = Callable[[float, float], bool]


@dataclass
class Finding:
    """What replaying some kinds came to.

    Attributes:
        kinds: whose beginning was replayed, ``whole`` those replayed to their end as well.
        agrees_with: what today's numbers were held against, for people.
        differing: by run, how it differs, for people.
        difference: largest relative difference of a recorded loss, from that.
    """

    kinds: list[Kind]
    whole: list[Kind]
    agrees_with: str = "come out as published"
    differing: dict[str, str] = field(default_factory=dict)
    difference: float = 0.0

    def note(self, kind: Kind, said: str) -> None:
        """Remember how a kind differs; the first time counts."""
        if said:
            self.differing.setdefault(kind.run, f"{kind.label} on {kind.task} {said}")

    def refused(self) -> dict[str, list[Kind]]:
        """The unknown parts to blame for what differs, the fewest that explain it, each with its kinds.

        Kinds of known code, which only another machine or library can change, stand under no part's name.
        """
        left = [kind for kind in self.kinds if kind.run in self.differing]
        blamed: dict[str, list[Kind]] = {}
        among = Counter(part for kind in self.kinds for part in kind.code)
        while counts := Counter(part for kind in left for part in kind.unknown):
            part = max(sorted(counts), key=lambda one: (counts[one] / among[one], counts[one]))
            blamed[part] = [kind for kind in left if part in kind.unknown]
            left = [kind for kind in left if part not in kind.unknown]
        return blamed | ({"": left} if left else {})


def witness(kinds: Sequence[Kind], whole: int, steps: int | None, scratch: Path, display: Display) -> Finding:
    """Replay kinds of one study and hold them against what is published.

    Args:
        kinds: of the study.
        whole: how many of them, drawn at random from those that are not long, to replay to their end too.
        steps: of each beginning; None: all that are witnessed.
        scratch: folder in which an interrupted call leaves what it has done, for the next.
        display: shows the progress.

    Raises:
        UserError: nobody has witnessed the beginning of one of them.
    """
    finding = Finding(list(kinds), _drawn(kinds, whole))
    if unwitnessed := [kind.run for kind in kinds if kind.witnessed is None]:
        raise UserError(f"nothing is known of how {unwitnessed[0]} begins; publish its study again")
    requests = [kind.beginning(steps) for kind in kinds] + [kind.whole() for kind in finding.whole]
    code = {kind.run: kind.code for kind in kinds}
    outcomes = replayed(requests, scratch, display, code)
    pairs = list(zip(kinds, outcomes, strict=False))
    unlike = [(kind, mine) for kind, mine in pairs if _drifts(kind, mine)]
    nudged = replayed([kind.beginning(steps, NUDGE) for kind, _ in unlike], scratch, display, code)
    for (_, mine), other in zip(unlike, nudged, strict=True):
        _allow_rounding(mine, other)
    for kind, mine in pairs:
        assert kind.witnessed is not None
        finding.note(kind, apart(mine, kind.witnessed, nearly))
        rows = zip(mine.get("rows", ()), kind.witnessed["rows"], strict=False)
        off = [_relative(one, two) for one, two in rows]
        finding.difference = max(finding.difference, *off, 0.0)
    for kind, mine in zip(finding.whole, outcomes[len(kinds) :], strict=True):
        if apart(mine, kind.published, to_digits(DIGITS)):
            finding.note(kind, beyond_rounding(kind, mine))
            finding.agrees_with = "come out as published up to rounding"
    return finding


def _drifts(kind: Kind, mine: Outcome) -> bool:
    """Whether a beginning is first as witnessed, and later apart from it."""
    assert kind.witnessed is not None
    first = mine | {"rows": mine.get("rows", [])[:1], "curve": [], "until": 0}
    return not apart(first, kind.witnessed, nearly) and bool(apart(mine, kind.witnessed, nearly))


def _allow_rounding(mine: Outcome, nudged: Outcome) -> None:
    """Note in every row of a beginning how far rounding is carried there, from one with other rounding."""
    far = 0.0
    for key in ("rows", "curve"):
        for one, two in zip(mine[key], nudged[key], strict=True):
            far = max(far, _relative(one, two))
            one["rounding"] = CARRIED * far


def _relative(one: Outcome, two: Outcome) -> float:
    """How far apart two losses are."""
    return abs(one["loss"] - two["loss"]) / max(abs(two["loss"]), 1e-12)


def _drawn(kinds: Sequence[Kind], whole: int) -> list[Kind]:
    """So many kinds at random, of those that fit into `WHOLE_SECONDS`; or the shortest.

    Steady ones where there are any: of others another rounding can change any number.
    """
    draw = random.Random(str(sorted(str(kind.code) for kind in kinds)))  # the same after an interruption
    cheap = [kind for kind in kinds if kind.seconds * kind.last_step * whole <= WHOLE_SECONDS]
    steady = [kind for kind in cheap if kind.steady]
    among = steady or cheap
    return draw.sample(among, min(whole, len(among))) if among or not whole else [kinds[-1]]


def nearly(one: float, two: float) -> bool:
    """Whether two numbers computed in double precision differ by rounding alone."""
    return math.isclose(one, two, rel_tol=ROUNDING, abs_tol=ROUNDING)


def to_digits(digits: int) -> Same:
    """Whether two numbers agree, rounded to so many digits after the point."""
    return lambda one, two: round(one, digits) == round(two, digits)


def apart(mine: Outcome, published: Outcome, same: Same) -> str:
    """How a replayed run first differs from what is or will be published of it, or nothing.

    Args:
        mine: replayed.
        published: the same run as it was, or its beginning.
        same: whether two numbers count as one.
    """
    if error := mine.get("error"):
        return f"cannot be replayed: {error}"
    recorded = {row["step"]: row for row in mine["rows"]}
    for row in published["rows"] if recorded else ():
        step = int(row["step"])
        if step > max(recorded):
            break
        if step not in recorded:
            return f"records nothing at step {step}, published does"
        if said := _first_apart(recorded[step], row, RECORDED, same):
            return f"differs from step {step} on: {said}"
    last = int(max(row["step"] for row in published["rows"]))
    if mine["until"] is None and max(recorded) != last:
        return f"ends at step {max(recorded)}, published at {last}"
    points = {point["content_length"]: point for point in published["curve"]}
    evaluated = {point["length"] for point in mine["curve"]}
    unlike = OF_WEIGHTS if max(recorded, default=last) < last else ()  # there: of other weights
    for length in mine.get("lengths", ()) if evaluated else ():
        if length not in evaluated:
            return f"is not evaluated at length {length}, published is"
    for point in mine["curve"]:
        length = point["content_length"]
        if length not in points:
            return f"is evaluated at length {length}, published not"
        keys = [key for key in point if key in points[length] and key not in unlike]
        if said := _first_apart(point, points[length], keys, same):
            return f"differs at length {length}: {said}"
    return ""


def _first_apart(mine: Outcome, published: Outcome, keys: Sequence[str], same: Same) -> str:
    """The first of these columns in which two rows differ, in words."""
    for key in keys:
        one, other = _cell(mine.get(key)), _cell(published.get(key))
        if isinstance(one, float | int) and isinstance(other, float | int):
            equal = same(one, other) or math.isclose(one, other, rel_tol=mine.get("rounding", 0.0))
        else:
            equal = one == other
        if not equal:
            return _told(key, one, other)
    return ""


def _cell(value: Any) -> Any:
    """A value as it compares: NaN and an empty cell are the same."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _told(key: str, one: Any, two: Any) -> str:
    for digits in (4, 6, 17):  # as few as tell them apart
        mine, theirs = (f"{v:.{digits}g}" if isinstance(v, int | float) else str(v) for v in (one, two))
        if mine != theirs:
            break
    return f"{key.replace('_', ' ')} {mine}, published {theirs}"


def beyond_rounding(kind: Kind, mine: Outcome) -> str:
    """How a whole run replayed with another rounding differs by more than that may cause, or nothing.

    Columns of the curve that depend on no weights must agree, and of a steady kind Wilson's intervals of
    exact match within the training lengths must meet.
    """
    points = {point["content_length"]: point for point in kind.published["curve"]}
    of_weights = (*OF_WEIGHTS, *OF_EXAMPLES)
    curve = [{key: point[key] for key in point if key not in of_weights} for point in mine["curve"]]
    if said := apart(mine | {"rows": [], "until": 0, "curve": curve}, kind.published, to_digits(17)):
        return said
    for point in mine["curve"]:
        there = points[point["content_length"]]
        if kind.steady and point["split"] == "in_distribution" and point["exact_match"] is not None:
            above = point["exact_match_low"] > there["exact_match_high"]
            if above or there["exact_match_low"] > point["exact_match_high"]:
                told = _told("exact match", point["exact_match"], there["exact_match"])
                return f"differs at length {point['content_length']} by more than rounding: {told}"
    return ""


def witnessed(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Beginnings that were replayed, as a table: a row per recorded step, then one per evaluated length."""
    rows = []
    for outcome in outcomes:
        for row in outcome["rows"]:
            rows.append({"name": outcome["run"], "step": row["step"]} | _recorded(row))
        for point in outcome["curve"]:
            rows.append({"name": outcome["run"], "length": point["content_length"]} | _recorded(point))
    table = pd.DataFrame(rows, columns=["name", "step", "length", *RECORDED])
    return table.astype({"step": "Int64", "length": "Int64"})


def _recorded(row: Outcome) -> Outcome:
    return {key: row.get(key) for key in RECORDED}
