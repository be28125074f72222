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
from pe_experiments.checking.agreement import SAME as EQUAL
from pe_experiments.checking.identify import (
    common_forms,
    identify,
    likeness_of,
    reference_of,
    where_they_differ,
)
from pe_experiments.checking.mutants import MUTANTS
from pe_experiments.console import say
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.errors import UserError
from pe_experiments.files import write_atomically
from pe_experiments.publishing import markdown_table

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
    likeness = likeness_of(row.make, reference.build, row.against, forms)
    if not likeness.same:
        if likeness.apart is None:
            return "fail", "parameters of other shapes"
        if likeness.apart <= EQUAL and not likeness.scene:
            return "fail", f"equal below position 64; up to 4,095 they differ by {likeness.apart_far:.1e}"
        known = identify(row.make, [row.against], forms, **row.arguments)
        named = [f"known mistake: {found.reference}" for found in known if found.reference in MUTANTS]
        where = where_they_differ(row.make, reference.build, forms[0])
        if not (where or likeness.scene or row.style.embed is not PositionalEncoding.embed):
            return (
                "convention",
                f"the same at positions 0, 1, 2, ...; with gaps they differ by {likeness.apart:.1e}",
            )
        scene = f"; {likeness.scene}" if likeness.scene else ""
        said = [row.remark, f"they differ by {likeness.apart:.1e}{scene}", *named, where]
        return "fail", "; ".join(filter(None, said))
    far = f"{likeness.apart_far:.0e}" if not math.isnan(likeness.apart_far) else "not compared"
    reason = f"largest difference {likeness.apart:.0e} at positions below 64, {far} up to 4,095"
    return ("convention", f"{likeness.layout}; {reason}") if likeness.layout else ("pass", reason)


def write_table(folder: Path, packages: list[str]) -> None:
    """Write ``table.csv``, made anew for these packages, or for all."""
    from adapters import ROWS  # type: ignore[import-not-found]

    path = folder / "table.csv"
    kept = pd.read_csv(path, dtype=str).fillna("") if path.exists() else pd.DataFrame()
    today, made = datetime.date.today().isoformat(), []
    for row in ROWS:
        try:
            if packages and row.package not in packages:
                raise UserError("not asked for")
            installed = version(row.package)
            row.make(small_shape())
        except (PackageNotFoundError, ImportError, UserError) as error:
            say(f"{row.package}, {row.name}: left as it was ({type(error).__name__}: {error})")
            if len(kept):
                earlier = kept[(kept["package"] == row.package) & (kept["implementation"] == row.name)]
                made += earlier.to_dict("records")
            continue
        for check, result, reason in checked(row):
            made.append(
                {
                    "package": row.package,
                    "version": installed,
                    "implementation": row.name,
                    "against": reference_of(row.against, **row.arguments).label,
                    "check": check,
                    "result": result,
                    "reason": " ".join(reason.split())[:300],
                    "date": today,
                }
            )
        say(
            f"{row.package}, {row.name}: {', '.join(m['check'] for m in made[-len(CHECKED) :] if m['result'] == 'fail')}"
        )
    write_atomically(path, pd.DataFrame(made).to_csv(index=False))


def pages_without_runs(folder: Path) -> None:
    """``README.md`` from ``table.csv``."""
    table = pd.read_csv(folder / "table.csv", dtype=str).fillna("")
    rows, reasons = [], []
    for (package, name), part in table.groupby(["package", "implementation"], sort=False):
        of = part.set_index("check")
        first = part.iloc[0]
        signs = [SIGNS[str(of.loc[check, "result"])] for check in CHECKED.values()]
        rows.append([f"{package} {first['version']}", str(name), first["against"], *signs])
        said = part[part["result"].isin(["fail", "convention"])]
        reasons += [
            [str(package), str(name), one["check"], one["result"], one["reason"]]
            for one in said.to_dict("records")
        ]
    libraries, dates = table["package"].nunique(), sorted(set(table["date"]))
    legend = "\n".join(f"- *{short}*: {check}" for short, check in CHECKED.items())
    (folder / "README.md").write_text(
        f"""# Other people's implementations

{len(rows)} implementations of {libraries} libraries under the checks of this project ({" to ".join(dict.fromkeys([dates[0], dates[-1]]))}).
*yes\\**: right, in another convention, named below; *-*: does not apply.

{markdown_table(["library", "implementation", "compared with", *CHECKED], rows)}

{legend}

A *no* need not matter to the users of a library. *far* requires the outputs of a small model at positions
from 16,378 on to equal those from position 0, to 1e-5 of the largest output. *half* casts every constant of the module, as
`model.bfloat16()` does; loaders of some libraries keep frequencies in float32. Modules that take whole sequences or an
offset are read through [adapters](adapters.py): *batch*, *cache*, *left* and *packed* then test the
module and its adapter together.

## Why

{markdown_table(["library", "implementation", "check", "result", "measured"], reasons)}

All results: [table.csv](table.csv). How the table is made: [study.py](study.py). What the checks mean and how to run them
on a module of your own: [checking.md](../../docs/checking.md).
""",
        "utf-8",
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_table(Path(__file__).parent, sys.argv[1:])
