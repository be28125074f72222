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
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from pe_experiments.checking import CHECKS, Subject, small_shape
from pe_experiments.checking.comparison import WITH_GAPS, EncodingComparison, common_forms
from pe_experiments.checking.explanations import channel_layout, describe_difference, equal, known_mistake
from pe_experiments.checking.subject import reference_of
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.studies import Study, markdown_table
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import write_atomically

SAME = "same logits"
# Words of the page for the checks beside the comparison of logits; table.csv has their promises.
CHECKED = {
    "far": "far",
    "finite": "long",
    "gaps": "ids",
    "fractions": "fractions",
    "rows": "batch",
    "cached_keys": "cache",
    "left_padding": "left",
    "packed": "packed",
    "cast": "half",
    "state": "reuse",
}
# What a check finds, in the order in which a form of the encoding decides: one that fails comes first.
RESULTS = {False: "fail", True: "pass", None: "not applicable"}


def check_row(row: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the name, result and reason of every check of one row of `adapters.ROWS`."""
    reference = reference_of(row.against, **row.arguments)
    forms = common_forms(reference, [True] if row.style.causal_only else [True, False])
    try:
        yield SAME, *compare_logits(row, reference, forms)
    except Exception as error:  # of the implementation under test
        yield SAME, "fail", f"{type(error).__name__}: {error}"
    for name in CHECKED:
        if name == "cast" and not row.torch:
            yield CHECKS[name].promise, "not applicable", "its tensors are no tensors of PyTorch"
            continue
        check = CHECKS[name]
        findings = [check(Subject(row.make, causal)) for causal in forms]
        finding = min(findings, key=lambda finding: [*RESULTS].index(finding.holds))
        yield check.promise, RESULTS[finding.holds], finding.measured


def compare_logits(row: Any, reference: Any, forms: list[bool]) -> tuple[str, str]:
    """Return the result of the comparison with the logits of our encoding, and its reason."""
    comparison = EncodingComparison(row.make, reference, forms)
    same = equal(comparison) or channel_layout(comparison)
    if same is not None:
        return "convention" if same.comparison.layout else "pass", same.text
    if not comparison.shares_parameters:
        return "fail", "parameters of other shapes"
    first = comparison.differing_outcomes[0]
    adds_vectors = row.style.embed is not PositionalEncoding.embed
    if first.place.startswith(WITH_GAPS) and not adds_vectors:
        difference = f"with gaps they differ by {first.difference:.1e}"
        return "convention", f"the same at positions 0, 1, 2, ...; {difference}"
    explanation = known_mistake(comparison)
    reasons = [row.remark, explanation.text if explanation else "", describe_difference(comparison)]
    return "fail", "; ".join(filter(None, reasons))


def write_table(folder: Path, packages: list[str]) -> None:
    """Update the rows of the packages in ``table.csv``; of all packages if none is named."""
    from adapters import ROWS  # type: ignore[import-not-found]

    path = folder / "table.csv"
    earlier = pd.read_csv(path, dtype=str).fillna("")
    rows = []
    for row in ROWS:
        implementation = {"package": row.package, "implementation": row.name}
        try:
            if packages and row.package not in packages:
                raise UserError("not asked for")
            implementation["version"] = version(row.package)
            row.make(small_shape())
        except (PackageNotFoundError, ImportError, UserError) as error:
            say(f"{row.package}, {row.name}: left as it was ({type(error).__name__}: {error})")
            is_row = (earlier["package"] == row.package) & (earlier["implementation"] == row.name)
            rows += earlier[is_row].to_dict("records")
            continue
        implementation["against"] = reference_of(row.against, **row.arguments).label
        implementation["date"] = datetime.date.today().isoformat()
        for check, result, reason in check_row(row):
            short_reason = " ".join(reason.split())[:300]
            rows.append(implementation | {"check": check, "result": result, "reason": short_reason})
            if result == "fail":
                say(f"{row.package}, {row.name}: {check}")
    write_atomically(path, pd.DataFrame(rows, columns=earlier.columns).to_csv(index=False))


def values(folder: Path) -> dict[str, Any]:
    """Return the table of implementations and the numbers in the text of the page."""
    checks = pd.read_csv(folder / "table.csv", dtype=str).fillna("")
    words = {SAME: "logits"} | {CHECKS[name].promise: word for name, word in CHECKED.items()}
    failed = checks[checks["result"] == "fail"]
    lines = []
    implementations: Any = checks.groupby(["package", "version", "implementation", "against"], sort=False)
    for (package, version_, implementation, against), rows in implementations:
        fails = [*rows.loc[rows["result"] == "fail", "check"].map(words)]
        result = "right, other channel pairs" if "convention" in set(rows["result"]) else "right"
        if fails:
            result = f"{'**wrong**' if 'logits' in fails else 'fails'}: {', '.join(fails)}"
        lines.append([f"{package} {version_}", implementation, against, result])
    return {
        "table": markdown_table(["library", "implementation", "compared with", "result"], lines),
        "all": len(lines),
        "libraries": checks["package"].nunique(),
        "wrong": (failed["check"] == SAME).sum(),
        "some": len(failed[["package", "implementation"]].drop_duplicates()),
        "date": checks["date"].max(),
    }


STUDY = Study(values=values)


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_table(Path(__file__).parent, sys.argv[1:])
