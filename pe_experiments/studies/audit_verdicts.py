"""What the audits say of the claims of tutorials that need no training: one verdict per claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pandas as pd

from pe_experiments.analysis.audit import AUDITED
from pe_experiments.errors import UserError
from pe_experiments.studies.audits import CRITERIA, LONGEST, NOISE, ODD, ROWS, TEACHING, WIDTH

HOLDS, FAILS, DEPENDS, UNSUPPORTED = "holds", "does not hold", "depends", "not supported"

Audited = Callable[[str, str, str], float]


@dataclass(frozen=True)
class Verdict:
    """One claim: how it was tested, what was found, and whether it holds.

    Attributes:
        claim: as tutorials put it.
        tested: how.
        finding: with the numbers.
        verdict: ``holds``, ``does not hold``, ``depends``, or ``not supported`` where nothing decides.
        figure: name of a figure, empty where a sentence says it all.
    """

    claim: str
    tested: str
    finding: str
    verdict: str
    figure: str


def judged(audits: pd.DataFrame) -> list[Verdict]:
    """The verdicts that need no training, in the order tutorials make the claims.

    Raises:
        UserError: a value is missing in ``audits``.
    """
    stored = audits.set_index(["claim", "setting", "quantity"])["value"].astype(float).to_dict()

    def audited(claim: str, setting: str, quantity: str) -> float:
        if (claim, setting, quantity) not in stored:
            raise UserError(f"audits: no row {claim}, {setting}, {quantity}; measure them again")
        return stored[claim, setting, quantity]

    parts = (_of_formula, _of_code, _of_sizes, _of_order, _of_vectors, _of_alternatives)
    return [verdict for part in parts for verdict in part(audited)]


def judge(*conditions: bool) -> str:
    return HOLDS if all(conditions) else DEPENDS if any(conditions) else FAILS


def _size(value: float) -> str:
    return f"{value:.3g}" if value else f"below {NOISE:g}"


def _of_formula(a: Audited) -> Iterator[Verdict]:
    quantity = "largest error against a loop of scalars"
    errors = [a("formula", f"d={d}", quantity) for d in (WIDTH, 7)]
    text = f"Largest error {_size(max(errors))} at d={WIDTH} and d=7, gaps and fractions included."
    tested = "The implementation against a loop of scalars"
    yield Verdict(
        "PE(p,2i) = sin(p/10000^(2i/d)), PE(p,2i+1) = cos(same)", tested, text, judge(max(errors) < 1e-9), ""
    )
    error = a("formula", "worked table, d=4", "largest error against its four decimals")
    text = f"Largest difference {error:.2g}: the rounding to four decimals."
    yield Verdict("The worked table, 3 positions by d=4", "Recomputed", text, judge(error < 1e-4), "")
    setting = f"d={WIDTH}"
    first, last = (a("frequency", setting, f"period of the {w} dimension") for w in ("first", "last"))
    faster = a("frequency", setting, "dimensions faster than the one before")
    text = f"Period {first:,.2f} in the first pair of {setting}, {last:,.0f} in the last; {faster:.0f} pairs "
    text += "are faster than the one before."
    tested = "Periods read off the vector of position 1"
    yield Verdict("Low dimensions oscillate fast", tested, text, judge(first < last, faster == 0), "")
    yield Verdict("Early dimensions are the low frequencies", tested, text, judge(first > last), "")
    parameters = a("frequency", setting, "trainable parameters")
    text = f"{parameters:.0f} trainable parameters: the frequencies are fixed."
    yield Verdict("The model learns the frequencies", "Parameters counted", text, judge(parameters > 0), "")


def _of_code(a: Audited) -> Iterator[Verdict]:
    odd = a("formula", "module sample, d=7", "crashes")
    ours = _size(a("formula", "d=7", "largest error against a loop of scalars"))
    text = f"{_crashed(odd)} at d=7. With the last cosine dropped, as here, the error is {ours}."
    tested = "The usual code sample, run"
    yield Verdict("`pe[:, 1::2] = cos(...)` works for every d", tested, text, judge(not odd), "")
    quantity = "spread over positions, batch first"
    theirs, ours_apart = (a("sample", s, quantity) for s in ("module sample", "sinusoidal"))
    text = f"Between positions what it adds differs by {theirs:.3g}: one constant vector per sequence, "
    text += f"without an error. The encoding here: {ours_apart:.3g}."
    text += " It is documented as sequence-first, and right when it is fed so."
    tested = "The module sample fed [batch, length, d]"
    as_documented = a("sample", "module sample", "spread over positions, sequence first")
    rule = judge(as_documented > 0, theirs > 0)
    yield Verdict("The module sample can be used as it is", tested, text, rule, "")
    quantity = f"crashes at {LONGEST + 1} tokens"
    theirs, ours_crash = (a("sample", s, quantity) for s in ("module sample", "sinusoidal"))
    text = f"At {LONGEST + 1:,} tokens the sample: {_crashed(theirs).lower()}; the encoding here: "
    text += f"{_crashed(ours_crash).lower()}."
    yield Verdict("Its fixed table serves any length", "Longer than its table", text, judge(not theirs), "")
    theirs, ours_stored = (a("sample", s, "numbers in a checkpoint") for s in ("module sample", "sinusoidal"))
    refuses = a("sample", "module sample", "refuses its own checkpoint at another max_len")
    text = f"The buffer puts {theirs:,.0f} numbers into the checkpoint (here {ours_stored:.0f}). Loading at "
    text += f"another max_len: {_crashed(refuses).lower()}."
    tested = "State dict saved and loaded"
    yield Verdict("Its checkpoint does not depend on max_len", tested, text, judge(not refuses), "")


def _of_sizes(a: Audited) -> Iterator[Verdict]:
    crashes = a("documents", "sample that defines position and reads s", "crashes")
    text = f"{_crashed(crashes)}: it defines `position` and reads `s`."
    yield Verdict("The sample function runs", "Run as printed", text, judge(not crashes), "")
    value = a("documents", "binary counter", "1010 read in binary")
    text = f"1010 in binary is {value:.0f}; 2 is 0010."
    yield Verdict("In a binary counter 1010 stands for 2", "Read in binary", text, judge(value == 2), "")
    left = a("documents", f"loop over k below d // 2, d={ODD}", "columns left empty")
    text = f"At d={ODD} {left:.0f} column stays empty: the last sine."
    claim = "A loop over k up to d/2 fills every column"
    yield Verdict(claim, "The loop, run at odd d", text, judge(left == 0), "")
    fixed, learned = (
        a("documents", f"{ROWS} positions, d={WIDTH}", f"parameters, {k}") for k in ("fixed", "learned")
    )
    text = f"At {ROWS} positions and d={WIDTH}: fixed {fixed:,.0f}, learned {learned:,.0f}."
    claim = "A fixed encoding has no parameters, a learned one a row per position"
    yield Verdict(claim, "Parameters counted", text, judge(fixed == 0, learned == ROWS * WIDTH), "")
    added, larger, halved = (
        a("documents", f"transformer, d={WIDTH}", f"parameters, {how}")
        for how in ("added", "put beside a token as wide", "put beside a token half as wide")
    )
    text = f"Added at d={WIDTH} {added:,.0f}; put beside a token as wide, which doubles the vector, "
    text += f"{larger:,.0f}; beside a token half as wide, which keeps it, {halved:,.0f}."
    claim = "Adding needs fewer parameters than concatenating"
    tested = "Parameters of a two-layer transformer, 10 symbols"
    yield Verdict(claim, tested, text, judge(added < larger, added < halved), "")


def _crashed(flag: float) -> str:
    return "Crashes" if flag else "Works"


def _of_order(a: Audited) -> Iterator[Verdict]:
    none = "encoder, none"
    moved = a("order", none, "output at the same token")
    place, pooled = (a("order", none, q) for q in ("output at the same place", "pooled output"))
    tested = "Untrained models in float64, input permuted"
    text = f"An encoder's output changes by {_size(place)} at a place, by {_size(moved)} at a token: it is "
    text += f"equivariant. Pooled it changes by {_size(pooled)}: that is invariant."
    rule = judge(place < NOISE, pooled < NOISE)
    yield Verdict("Self-attention is permutation-invariant", tested, text, rule, "claims-order")
    quantity = "dog bites man against man bites dog, pooled"
    words, told = a("order", none, quantity), a("order", "encoder, sinusoidal", quantity)
    causal = a("order", "decoder of depth 2, none", quantity)
    text = (
        f"Relative to their size, pooled outputs of an encoder differ by {_size(words)} (with sinusoids by "
    )
    text += f"{_size(told)}), those of a causal decoder of depth 2 by {_size(causal)}."
    claim = "Without positions `dog bites man` = `man bites dog`"
    rule = judge(words < NOISE, causal < NOISE)
    yield Verdict(claim, "Both sentences, pooled", text, rule, "claims-order")
    quantity = "last output, the prefix permuted"
    one, two = (a("order", f"decoder of depth {n}, none", quantity) for n in (1, 2))
    text = f"Last output, prefix permuted: changes by {_size(one)} at depth 1, by {_size(two)} at depth 2."
    claim = "A causal decoder is blind to order, too"
    yield Verdict(claim, tested, text, judge(one < NOISE, two < NOISE), "claims-order")


def _of_vectors(a: Audited) -> Iterator[Verdict]:
    widths = (2, 4, 8, 16, WIDTH)
    quantity = f"closest two of {LONGEST} positions"
    margins = [a("unique", f"d={d}", quantity) for d in widths]
    coarse = a("unique", f"d={widths[0]}, bfloat16", quantity)
    shown = ", ".join(f"{margin:.3g} (d={d})" for d, margin in zip(widths, margins, strict=True))
    text = f"Closest two of {LONGEST:,} positions: {shown}. In bfloat16 at d={widths[0]}: {coarse:.3g}."
    rule = judge(min(margins) > 0, coarse > 0)
    yield Verdict("Every position has its own vector", "All pairs compared", text, rule, "claims-uniqueness")
    low, high, root = (a("bounded", f"d={WIDTH}", q) for q in ("smallest norm", "largest norm", "sqrt(d/2)"))
    text = f"Norms from {low:.4g} to {high:.4g}; sqrt(d/2) = {root:.4g}."
    rule = judge(max(abs(low - root), abs(high - root)) < 1e-4)
    yield Verdict("The values are bounded", f"Norms at d={WIDTH}", text, rule, "claims-bounds")
    spread = a("same-distance", f"d={WIDTH}", "spread of the similarity over positions")
    text = f"The similarity of positions k apart varies over positions by {_size(spread)}."
    claim, figure = "Positions k apart have the same distance everywhere", "claims-offsets"
    yield Verdict(claim, f"All pairs at d={WIDTH}", text, judge(spread < NOISE), figure)
    quantity = "offset up to which the distance rises"
    rises = {d: a("same-distance", f"d={d}", quantity) for d in (8, 16, WIDTH, 128, 512)}
    shown = ", ".join(f"{k:.0f} (d={d})" for d, k in rises.items())
    text = f"It rises only up to k = {shown}, then falls for the first time."
    rule = judge(*(k >= 198 for k in rises.values()))  # of 200 positions looked at
    yield Verdict("The distance grows with k", "Distance by k", text, rule, figure)
    moving, columns = (
        a("heatmap", "50 positions, d=512", q) for q in ("columns that change by more than 0.1", "columns")
    )
    text = f"{moving:.0f} of {columns:.0f} columns change by more than 0.1; the others look constant."
    claim = "A heatmap of 50 positions by 512 dimensions shows it"
    yield Verdict(claim, "Range of each column", text, judge(moving > 0, moving == columns), "")
    left = max(a("exact-offset", f"d={WIDTH}, k={k}", "largest residual of M_k") for k in (1, 7, 100))
    text = f"Residual of the block rotation M_k: {_size(left)} at k = 1, 7 and 100."
    claim = "PE(p+k) is a linear function of PE(p)"
    yield Verdict(claim, f"M_k built, d={WIDTH}", text, judge(left < NOISE), "")


def _of_alternatives(a: Audited) -> Iterator[Verdict]:
    broken = {
        name: ", ".join(c for c in CRITERIA if not a("baselines", name, f"holds: {c}")) or "nothing"
        for name in TEACHING
    }
    tested, figure = "Five criteria of a good encoding, audited", "claims-bounds"
    largest = a("baselines", "raw_index", f"largest value of {AUDITED} positions")
    text = f"Breaks: {broken['raw_index']}; values up to {largest:.0f} in {AUDITED:,} positions."
    verdict = judge(broken["raw_index"] != "nothing")
    yield Verdict("The index itself is no good encoding", tested, text, verdict, figure)
    steps = [a("baselines", "scaled_index", f"first step among {n} tokens") for n in (10, 100)]
    text = f"Breaks: {broken['scaled_index']}; {steps[0]:.3g} among 10 tokens, {steps[1]:.3g} among 100."
    verdict = judge(broken["scaled_index"] != "nothing")
    yield Verdict("The index as a share of the length is no good encoding", tested, text, verdict, figure)
    quantity = "column that changes most, from 1"
    first, last = (a("baselines", name, quantity) for name in ("sinusoidal", "binary_counter"))
    jump = a("baselines", "binary_counter", "largest step over the smallest")
    text = f"The counter breaks: {broken['binary_counter']} (largest step {jump:.3g} times the smallest); "
    text += f"sinusoids: {broken['sinusoidal']}. "
    text += f"Column that changes most: {last:.0f} of {WIDTH} there, {first:.0f} here."
    smooth = broken["binary_counter"] != "nothing" and broken["sinusoidal"] == "nothing"
    claim = "Sinusoids are a binary counter made smooth, with fast and slow columns in the same places"
    yield Verdict(claim, tested, text, judge(smooth, first == last), figure)
