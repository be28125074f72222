"""Run the checks of this project on implementations of other libraries.

The page is generated from ``table.csv``. These commands install the libraries and generate both:

    pip install transformers x-transformers rotary-embedding-torch jax equinox "mlx[cpu]"
    pip install --no-deps torchtune fla-core triton litgpt lightning diffusers fair-esm local-attention \\
        hyper-connections labml-nn labml labml-helpers positional-encodings keras keras-hub optree h5py psutil
    KERAS_BACKEND=jax python results/implementations/study.py
    make results

Rows of libraries that are not installed are kept. With arguments, such as ``study.py transformers mlx``, only
the rows of these packages are updated.
"""

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
from pe_experiments.studies import Study, table
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import write_atomically

SAME = "same logits"
CASTS = "cast"
# Column headings of the page, and the names of the checks, which ``table.csv`` lists by their promises.
CHECKED = {
    "same": SAME,
    "far": "far",
    "long": "finite",
    "ids": "gaps",
    "fractions": "fractions",
    "batch": "rows",
    "cache": "cached_keys",
    "left": "left_padding",
    "packed": "packed",
    "half": CASTS,
    "reuse": "state",
}
SIGNS = {"pass": "yes", "convention": "yes*", "fail": "**no**", "not applicable": "-"}
RESULTS = {False: "fail", True: "pass", None: "not applicable"}
PRECEDENCE = [*RESULTS]  # if the forms of an encoding differ, the first of these results counts
COLUMNS = ["package", "implementation", "check", "result", "reason"]


def check_row(row: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the name, result and reason of every check of one row of `adapters.ROWS`."""
    reference = reference_of(row.against, **row.arguments)
    forms = common_forms(reference, [True] if row.style.causal_only else [True, False])
    try:
        yield SAME, *compare_logits(row, reference, forms)
    except Exception as error:  # of the implementation under test
        yield SAME, "fail", f"{type(error).__name__}: {error}"
    for name in CHECKED.values():
        if name == SAME:
            continue
        if name == CASTS and not row.torch:
            yield CHECKS[name].promise, "not applicable", "its tensors are no tensors of PyTorch"
            continue
        check = CHECKS[name]
        findings = [check(Subject(row.make, causal)) for causal in forms]
        finding = min(findings, key=lambda finding: PRECEDENCE.index(finding.holds))
        yield check.promise, RESULTS[finding.holds], finding.measured


def compare_logits(row: Any, reference: Any, forms: list[bool]) -> tuple[str, str]:
    """Return the result of the comparison with the logits of our encoding, and its reason."""
    ours = Reference(row.against, reference.build, forms)
    comparison = compare_layouts(row.make, ours, largest=True)
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
    difference = f"they differ by {comparison.difference:.1e}"
    where = where_they_differ(row.make, reference.build, forms[0])
    if not (where or comparison.scenario or row.style.embed is not PositionalEncoding.embed):
        return "convention", f"the same at positions 0, 1, 2, ...; with gaps {difference}"
    if comparison.scenario:
        difference = f"{difference}; {comparison.scenario}"
    matches = known_mistakes(row.make, [reference], forms)
    mistakes = [f"known mistake: {match.mistake.name}" for match in matches if match.mistake]
    return "fail", "; ".join(filter(None, [row.remark, difference, *mistakes, where]))


def write_table(folder: Path, packages: list[str]) -> None:
    """Update the rows of the packages in ``table.csv``; of all packages if none is named."""
    from adapters import ROWS  # type: ignore[import-not-found]

    path = folder / "table.csv"
    earlier = pd.read_csv(path, dtype=str).fillna("")
    today = datetime.date.today().isoformat()
    rows = []
    for row in ROWS:
        try:
            if packages and row.package not in packages:
                raise UserError("not asked for")
            installed = version(row.package)
            row.make(small_shape())
        except (PackageNotFoundError, ImportError, UserError) as error:
            say(f"{row.package}, {row.name}: left as it was ({type(error).__name__}: {error})")
            is_row = (earlier["package"] == row.package) & (earlier["implementation"] == row.name)
            rows += earlier[is_row].to_dict("records")
            continue
        implementation = {
            "package": row.package,
            "version": installed,
            "implementation": row.name,
            "against": reference_of(row.against, **row.arguments).label,
        }
        for check, result, reason in check_row(row):
            short_reason = " ".join(reason.split())[:300]
            outcome = {"check": check, "result": result, "reason": short_reason, "date": today}
            rows.append(implementation | outcome)
            if result == "fail":
                say(f"{row.package}, {row.name}: {check}")
    write_atomically(path, pd.DataFrame(rows).to_csv(index=False))


def values(folder: Path) -> dict[str, Any]:
    """Return the table of results, the table of reasons, and the numbers in the text of the page."""
    checks = pd.read_csv(folder / "table.csv", dtype=str).fillna("")
    checks["library"] = checks["package"] + " " + checks["version"]
    keys = ["library", "implementation", "against"]
    checks["sign"] = checks["result"].map(SIGNS)
    order = [*checks[keys].drop_duplicates().itertuples(index=False, name=None)]
    signs: Any = checks.set_index([*keys, "check"])["sign"].unstack()
    promises = [name if name == SAME else CHECKS[name].promise for name in CHECKED.values()]
    signs = signs.loc[order, promises]
    signs.columns = pd.Index(CHECKED)
    failed = checks[checks["result"] == "fail"]
    reasons = checks.loc[checks["result"].isin(["fail", "convention"]), COLUMNS]
    return {
        "table": table(signs.reset_index().rename(columns={"against": "compared with"})),
        "reasons": table(reasons.rename(columns={"package": "library", "reason": "measured"})),
        "all": len(signs),
        "libraries": checks["package"].nunique(),
        "wrong": (failed["check"] == SAME).sum(),
        "some": len(failed[["package", "implementation"]].drop_duplicates()),
        "date": checks["date"].max(),
    }


STUDY = Study(values=values)


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_table(Path(__file__).parent, sys.argv[1:])
