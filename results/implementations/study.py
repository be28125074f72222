"""Other people's implementations under the checks of this project: pass or fail, and why.

The page is made from ``table.csv``; the table, where the libraries are installed, by

    pip install transformers x-transformers rotary-embedding-torch jax equinox "mlx[cpu]"
    pip install --no-deps torchtune fla-core triton litgpt lightning diffusers fair-esm local-attention hyper-connections \\
        labml-nn labml labml-helpers positional-encodings keras keras-hub optree h5py
    KERAS_BACKEND=jax python results/implementations/study.py
    make results

Rows of a library that is not installed are kept as they are, and so are those of others where some are named:
``study.py transformers mlx``.
"""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from pe_experiments.checking import CHECKS, Subject, small_shape
from pe_experiments.checking.compare import Reference, common_forms, compare_layouts, reference_of
from pe_experiments.checking.differences import where_they_differ
from pe_experiments.checking.identify import known_mistakes
from pe_experiments.checking.pair import SAME as ROUNDING
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.published import markdown_table
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import write_atomically

SAME = "same logits"
CASTS = "phases survive a cast to bfloat16"
# Short heading: check.
CHECKED = {
    "same": SAME,
    "far": "far positions stay exact",
    "long": "finite at every length",
    "ids": "gaps, offsets and unsorted positions work",
    "fractions": "fractional positions work or are refused",
    "batch": "rows of a batch keep their own positions",
    "cache": "decoding with cached keys agrees with the whole row",
    "left": "left padding changes nothing",
    "packed": "packed documents change nothing",
    "half": CASTS,
    "reuse": "earlier calls change nothing",
}
ANSWER = """\
**{wrong} of {all} implementations in {libraries} libraries compute other logits than the encoding they \
are named after**, and {some} fail at least one check ({date})."""
SIGNS = {"pass": "yes", "convention": "yes*", "fail": "**no**", "not applicable": "-"}


def checked(row: Any) -> Iterator[tuple[str, str, str]]:
    """Name, result and reason of every check of one row of `adapters.ROWS`."""
    reference = reference_of(row.against, **row.arguments)
    forms = [f for f in common_forms(reference, [True, False]) if f or not row.style.causal_only]
    try:
        yield SAME, *_identity(row, reference, forms)
    except Exception as error:  # of the implementation under test
        yield SAME, "fail", f"{type(error).__name__}: {error}"
    for name in list(CHECKED.values())[1:]:
        if name == CASTS and not row.torch:
            yield name, "not applicable", "its tensors are no tensors of PyTorch"
            continue
        findings = [CHECKS[name](Subject(row.make, causal)) for causal in forms]
        finding = min(findings, key=lambda found: (found.holds is not False, found.holds is None))
        result = {True: "pass", False: "fail", None: "not applicable"}[finding.holds]
        yield name, result, finding.measured


def _identity(row: Any, reference: Any, forms: list[bool]) -> tuple[str, str]:
    comparison = compare_layouts(row.make, Reference(row.against, reference.build, forms))
    if comparison.same:
        far_difference = comparison.far_difference
        far = "not compared" if math.isnan(far_difference) else f"{far_difference:.0e}"
        reason = f"largest difference {comparison.difference:.0e} at positions below 64, {far} up to 4,095"
        return ("convention", f"{comparison.layout}; {reason}") if comparison.layout else ("pass", reason)
    if comparison.difference is None:
        return "fail", "parameters of other shapes"
    if comparison.other_models:
        return "fail", comparison.other_models
    if comparison.difference <= ROUNDING and not comparison.scenario:
        return "fail", f"equal below position 64; up to 4,095 they differ by {comparison.far_difference:.1e}"
    matches = known_mistakes(row.make, [reference], forms)
    named = [f"known mistake: {match.mistake.name}" for match in matches if match.mistake]
    where = where_they_differ(row.make, reference.build, forms[0])
    difference = f"they differ by {comparison.difference:.1e}"
    if not (where or comparison.scenario or row.style.embed is not PositionalEncoding.embed):
        return "convention", f"the same at positions 0, 1, 2, ...; with gaps {difference}"
    scenario = f"; {comparison.scenario}" if comparison.scenario else ""
    return "fail", "; ".join(filter(None, [row.remark, f"{difference}{scenario}", *named, where]))


def write_table(folder: Path, packages: list[str]) -> None:
    """Write ``table.csv``, made anew for these packages, or for all."""
    from adapters import ROWS  # type: ignore[import-not-found]

    path = folder / "table.csv"
    kept = pd.read_csv(path, dtype=str).fillna("")
    today, made = datetime.date.today().isoformat(), []
    for row in ROWS:
        try:
            if packages and row.package not in packages:
                raise UserError("not asked for")
            installed = version(row.package)
            row.make(small_shape())
        except (PackageNotFoundError, ImportError, UserError) as error:
            say(f"{row.package}, {row.name}: left as it was ({type(error).__name__}: {error})")
            earlier = kept[(kept["package"] == row.package) & (kept["implementation"] == row.name)]
            made += earlier.to_dict("records")
            continue
        about = {"package": row.package, "version": installed, "implementation": row.name}
        about["against"] = reference_of(row.against, **row.arguments).label
        found = list(checked(row))
        for check, result, reason in found:
            short = " ".join(reason.split())[:300]
            made.append(about | {"check": check, "result": result, "reason": short, "date": today})
        failed = [check for check, result, _ in found if result == "fail"]
        say(f"{row.package}, {row.name}: {', '.join(failed)}")
    write_atomically(path, pd.DataFrame(made).to_csv(index=False))


def blocks(folder: Path) -> dict[str, str]:
    """How many there are, a row of signs for each, and what every *no* and every other convention is."""
    table = pd.read_csv(folder / "table.csv", dtype=str).fillna("")
    rows = []
    for (package, name), part in table.groupby(["package", "implementation"], sort=False):
        results, first = part.set_index("check")["result"], part.iloc[0]
        signs = [SIGNS[results[check]] for check in CHECKED.values()]
        rows.append([f"{package} {first['version']}", str(name), first["against"], *signs])
    said = table[table["result"].isin(["fail", "convention"])]
    columns = ["package", "implementation", "check", "result", "reason"]
    failed = table[table["result"] == "fail"]
    counts = {"all": len(rows), "libraries": table["package"].nunique(), "date": table["date"].max()}
    counts["wrong"] = failed[failed["check"] == SAME]["implementation"].nunique()
    counts["some"] = len(failed[["package", "implementation"]].drop_duplicates())
    return {
        "answer": ANSWER.format_map(counts),
        "table": markdown_table(["library", "implementation", "compared with", *CHECKED], rows),
        "reasons": markdown_table(
            ["library", "implementation", "check", "result", "measured"], said[columns].to_numpy().tolist()
        ),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_table(Path(__file__).parent, sys.argv[1:])
