"""The claims of tutorials that need no training: a case each, judged by what `audits` measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from pe_experiments.analysis.audit import AUDITED
from pe_experiments.errors import UserError

from .audits import CRITERIA, LONGEST, NOISE, ROWS, TEACHING, WIDTH

HOLDS, FAILS, DEPENDS, UNSUPPORTED = "holds", "does not hold", "depends", "not supported"
OURS = "ours"  # no document states the claim


@dataclass(frozen=True)
class Verdict:
    """One claim: the source's wording (or ``ours``), our wording, the test, its result, and the verdict:
    ``holds``, ``does not hold``, ``depends``, or ``not supported`` where no test decides.
    """

    document: str
    claim: str
    tested: str
    measured: str
    verdict: str
    figure: str = ""


class Value(float):
    """A measured value; written ``below 1e-09`` where only rounding is left."""

    def __str__(self) -> str:
        return f"{float(self):.3g}" if self else f"below {NOISE:g}"

    def __format__(self, style: str) -> str:
        if style == "crash":
            return "crashes" if self else "works"
        return super().__format__(style)


class Values(dict[str, Any]):
    """The audits by quantity; ``NAME breaks`` are the criteria that an alternative does not meet."""

    def __init__(self, audits: pd.DataFrame):
        super().__init__(zip(audits["quantity"], map(Value, audits["value"]), strict=True))
        for name in TEACHING:
            broken = [c for c in CRITERIA if not self[f"{name}, holds, {c}"]]
            self[f"{name} breaks"] = ", ".join(broken) or "nothing"

    def __missing__(self, name: str) -> Value:
        raise UserError(f"audits.csv has no row {name}; publish the study again")


class Case(NamedTuple):
    """A claim: it holds if all conditions do, and depends if some do; ``measured`` formats audits."""

    claim: str
    document: str
    tested: str
    measured: str
    conditions: Callable[[Values], tuple[bool, ...]]
    figure: str = ""


def judged(audits: pd.DataFrame) -> list[Verdict]:
    """The verdicts that need no training, in the order tutorials make the claims.

    Raises:
        UserError: a value is missing in ``audits``.
    """
    values, found = Values(audits), []
    for case in CASES:
        conditions, measured = case.conditions(values), case.measured.format_map(values)
        verdict = HOLDS if all(conditions) else DEPENDS if any(conditions) else FAILS
        found.append(Verdict(case.document, case.claim, case.tested, measured, verdict, case.figure))
    return found


WIDTHS = (2, 4, 8, 16, WIDTH)
CURVES = (8, 16, WIDTH, 128, 512)  # widths at which distances were followed
SHIFTS = (1, 7, 100)
INTUITION = "binary-counter intuition (fast bit / slow bit)"
PERIODS = (
    f"Period {{period of the first pair:,.2f}} in the first pair of d={WIDTH}, "
    "{period of the last pair:,.0f} in the last; {pairs faster than the one before:.0f} pairs are "
    "faster than the one before."
)
FREE, CAUSAL = "order, encoder, none, ", "order, decoder of depth {}, none, "
BITES, PREFIX = "dog bites man against man bites dog, pooled", "last output, the prefix permuted"
PERMUTED = "Untrained models in float64, input permuted"
AUDIT = "Five criteria of a good encoding, audited"
CASES = (
    Case("PE(p,2i) = sin(p/10000^(2i/d)), PE(p,2i+1) = cos(same)",
         "PE(p,2i)=sin(p/10000^(2i/d)), PE(p,2i+1)=cos(same)",
         "The implementation compared with a scalar loop",
         f"Error {{formula, error, d={WIDTH}}} at d={WIDTH} and {{formula, error, d=7}} at d=7, gaps and "
         "fractions included.",
         lambda v: (max(v[f"formula, error, d={d}"] for d in (WIDTH, 7)) < NOISE,)),
    Case("The worked table, 3 positions by d=4", "worked table, 3 positions x d=4", "Recomputed",
         "Largest difference {formula, error of the worked table:.2g}: the rounding to four decimals.",
         lambda v: (v["formula, error of the worked table"] < 1e-4,)),
    Case("Low dimensions oscillate fast", "low dimensions oscillate fast",
         "Periods read off the vector of position 1", PERIODS,
         lambda v: (v["period of the first pair"] < v["period of the last pair"],
                    v["pairs faster than the one before"] == 0)),
    Case("Early dimensions are the low frequencies", "early dimensions are low-frequency",
         "Periods read off the vector of position 1", PERIODS,
         lambda v: (v["period of the first pair"] > v["period of the last pair"],)),
    Case("The model learns the frequencies", "the model learns a different frequency", "Parameters counted",
         "{parameters, fixed:.0f} trainable parameters: the frequencies are fixed.",
         lambda v: (v["parameters, fixed"] > 0,)),
    Case("`pe[:, 1::2] = cos(...)` works for every d", "pe[:, 1::2] = cos(...)", "The usual code sample, run",
         "At d=7 it {sample crashes at d=7:crash}; with the last cosine dropped, as here, the error is "
         "{formula, error, d=7}.",
         lambda v: (not v["sample crashes at d=7"],)),
    Case("The module sample can be used as it is", "module sample, sequence-first",
         "The module sample fed [batch, length, d]",
         "No error, but all positions of a sequence get the same vector: vectors of different "
         "positions differ by {spread over positions, sample, batch first:.3g} (in this project by "
         "{spread over positions, encoding here:.3g}). Fed sequence-first, as documented, it is right.",
         lambda v: (v["spread over positions, sample, sequence first"] > 0,
                    v["spread over positions, sample, batch first"] > 0)),
    Case("Its fixed table serves any length", OURS, "A sequence longer than its table",
         f"At {LONGEST + 1:,} tokens the sample {{sample crashes past its table:crash}}, the encoding here "
         "{encoding here crashes there:crash}.",
         lambda v: (not v["sample crashes past its table"],)),
    Case("Its checkpoint does not depend on max_len", OURS, "State dict saved and loaded",
         "The buffer puts {values in a checkpoint, sample:,.0f} values into the checkpoint (here "
         "{values in a checkpoint, here:.0f}); loading it at another max_len "
         "{sample refuses its checkpoint at another max_len:crash}.",
         lambda v: (not v["sample refuses its checkpoint at another max_len"],)),
    Case("The sample function runs", "position / s", "Run as printed",
         "It {printed sample crashes:crash}: it defines `position` and reads `s`.",
         lambda v: (not v["printed sample crashes"],)),
    Case("In a binary counter 1010 stands for 2", "the counter labels 1010 as 2", "Read as binary",
         "1010 in binary is {1010 read in binary:.0f}; 2 is 0010.",
         lambda v: (v["1010 read in binary"] == 2,)),
    Case("A loop over k up to d/2 fills every column", "k up to d/2", "The loop, run at odd d",
         "At d=7 {columns left empty, d=7:.0f} column stays empty: the last sine.",
         lambda v: (v["columns left empty, d=7"] == 0,)),
    Case("A fixed encoding has no parameters, a learned one a row per position",
         "fixed 0 against learned rows",
         "Parameters counted",
         f"At {ROWS} positions and d={WIDTH}: fixed {{parameters, fixed:,.0f}}, "
         "learned {parameters, learned:,.0f}.",
         lambda v: (v["parameters, fixed"] == 0, v["parameters, learned"] == ROWS * WIDTH)),
    Case("Adding needs fewer parameters than concatenating", "parameters of addition against concatenation",
         "Parameters of a two-layer transformer, 10 symbols",
         f"Added at d={WIDTH}: {{parameters, added:,.0f}}; concatenated with as wide a token (d doubles): "
         "{parameters, beside a token as wide:,.0f}; with a token half as wide (d stays): "
         "{parameters, beside a token half as wide:,.0f}.",
         lambda v: tuple(v["parameters, added"] < v[f"parameters, beside a token {how}"]
                         for how in ("as wide", "half as wide"))),
    Case("Self-attention is permutation-invariant", "self-attention is permutation-invariant", PERMUTED,
         f"An encoder's output changes by {{{FREE}output at the same index}} at a fixed index and by "
         f"{{{FREE}output at the same token}} at a fixed token: it is equivariant. Pooled it changes by "
         f"{{{FREE}pooled output}}: it is invariant.",
         lambda v: (v[FREE + "output at the same index"] < NOISE, v[FREE + "pooled output"] < NOISE),
         "claims-order"),
    Case("Without positions `dog bites man` = `man bites dog`", "“dog bites man” = “man bites dog”",
         "Both sentences, pooled",
         f"Relative to their size, pooled outputs of an encoder differ by {{{FREE}{BITES}}} (with "
         f"sinusoids by {{order, encoder, sinusoidal, {BITES}}}), those of a two-layer causal decoder by "
         f"{{{CAUSAL.format(2)}{BITES}}}.",
         lambda v: (v[FREE + BITES] < NOISE, v[CAUSAL.format(2) + BITES] < NOISE), "claims-order"),
    Case("A causal decoder is blind to order, too", OURS, PERMUTED,
         f"Prefix permuted, the last output changes by {{{CAUSAL.format(1)}{PREFIX}}} with one layer and "
         f"by {{{CAUSAL.format(2)}{PREFIX}}} with two.",
         lambda v: tuple(v[CAUSAL.format(depth) + PREFIX] < NOISE for depth in (1, 2)), "claims-order"),
    Case("Every position has its own vector", "a good encoding is unique per position", "All pairs compared",
         f"Smallest distance between two of {LONGEST:,} positions: "
         + ", ".join(f"{{closest two positions, d={d}:.3g}} (d={d})" for d in WIDTHS)
         + "; in bfloat16 at d=2: {closest two positions, d=2, bfloat16:.3g}.",
         lambda v: (min(v[f"closest two positions, d={d}"] for d in WIDTHS) > 0,
                    v["closest two positions, d=2, bfloat16"] > 0), "claims-uniqueness"),
    Case("The values are bounded", "bounded", f"Norms at d={WIDTH}",
         "Norms from {smallest norm:.4g} to {largest norm:.4g}; sqrt(d/2) = {sqrt(d/2):.4g}.",
         lambda v: (max(abs(v[f"{end} norm"] - v["sqrt(d/2)"]) for end in ("smallest", "largest")) < 1e-4,),
         "claims-bounds"),
    Case("Positions k apart have the same distance everywhere",
         "same distance between any two positions k apart, at any length",
         f"All pairs at d={WIDTH}",
         "The similarity of positions k apart varies over positions by "
         "{spread of the similarity over positions}.",
         lambda v: (v["spread of the similarity over positions"] < NOISE,), "claims-offsets"),
    Case("The distance grows with k", OURS, "Distance by k",
         "It first falls after k = "
         + ", ".join(f"{{distance rises up to, d={d}:.0f}} (d={d})" for d in CURVES)
         + ".",
         lambda v: tuple(v[f"distance rises up to, d={d}"] >= 198 for d in CURVES),  # of 200 looked at
         "claims-offsets"),
    Case("A heatmap of 50 positions by 512 dimensions shows it", "heatmap of 50 positions x 512 dimensions",
         "Range of each column",
         "{columns that change:.0f} of {columns:.0f} columns change by more than 0.1; the others "
         "look constant.",
         lambda v: (v["columns that change"] > 0, v["columns that change"] == v["columns"])),
    Case("PE(p+k) is a linear function of PE(p)", "PE(p+k) is a linear function of PE(p)",
         f"M_k built, d={WIDTH}",
         "Residual of the block rotation M_k: "
         + ", ".join(f"{{residual of M_k, k={k}}} (k={k})" for k in SHIFTS)
         + ".",
         lambda v: (max(v[f"residual of M_k, k={k}"] for k in SHIFTS) < NOISE,)),
    Case("The index itself is no good encoding", INTUITION, AUDIT,
         f"Breaks: {{raw_index breaks}}; values up to {{raw_index, largest value:.0f}} in {AUDITED:,} "
         "positions.",
         lambda v: (v["raw_index breaks"] != "nothing",), "claims-bounds"),
    Case("The index as a share of the length is no good encoding", INTUITION, AUDIT,
         "Breaks: {scaled_index breaks}; a step is {scaled_index, first step of 10:.3g} among 10 tokens and "
         "{scaled_index, first step of 100:.3g} among 100.",
         lambda v: (v["scaled_index breaks"] != "nothing",), "claims-bounds"),
    Case("Sinusoids are a binary counter made smooth, with fast and slow columns at the same ends", INTUITION,
         AUDIT,
         "The counter breaks: {binary_counter breaks} (largest step "
         "{binary_counter, largest step over the smallest:.3g} times the smallest); sinusoids: "
         "{sinusoidal breaks}; "
         f"of {WIDTH} columns, number {{binary_counter, column that changes most:.0f}} changes most in the "
         "counter, number {sinusoidal, column that changes most:.0f} in sinusoids.",
         lambda v: (
             v["binary_counter breaks"] != "nothing" and v["sinusoidal breaks"] == "nothing",
             v["sinusoidal, column that changes most"] == v["binary_counter, column that changes most"],
         ),
         "claims-bounds"),
)  # fmt: skip
