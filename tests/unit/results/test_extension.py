"""Test the published numbers of the study of extension with independent code and tests of scipy."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests import recomputation
from tests.conftest import ROOT

FOLDER = ROOT / "results" / "extension"
CHANGES = [
    "rope", "rope(base=40000)", "rope(base=160000)", "rope_linear", "rope_ntk", "rope_yarn", "rope_llama3",
    "p_rope", "none", "drope",
]  # fmt: skip


def model_of(command: str) -> tuple[str, int]:
    """Return the name of the model that a run trains, and its steps."""
    arguments = dict(word.split("=") for word in command.split() if "=" in word)
    steps = int(arguments.get("training.steps", 1500))
    is_long = arguments.get("training.max_length") == "1024"
    model = arguments["pe"]
    if "pe.base" in arguments:
        model += f"(base={float(arguments['pe.base']):.0f})"
    if "init_from" in arguments and not is_long:
        model = "drope"
    if "init_from" not in arguments and model == "rope":
        model = "scratch" if is_long else "parent"
    return model, 0 if steps == 1 else steps


def bits_in(folder: Path) -> dict[tuple[str, int, int, int], float]:
    """Return bits per byte by model, steps, context length and seed."""
    runs = {row["name"]: row for row in recomputation.read_csv(folder / "runs.csv")}
    return {
        (*model_of(runs[name]["command"]), length, int(runs[name]["seed"])): value
        for (name, length), value in recomputation.sliding_bits(folder).items()
    }


def test_the_families_are_those_of_the_plan_and_their_numbers_those_of_scipy() -> None:
    by_seed = bits_in(FOLDER)

    def bits(model: tuple[str, int, int]) -> np.ndarray:
        """Return the values of seeds 0 to 4 of a model after so many steps at a context length."""
        return np.array([by_seed[(*model, seed)] for seed in range(5)])

    rows = recomputation.read_csv(FOLDER / "tests.csv")
    changes = CHANGES[1:]
    expected = {
        "what_to_change": [((change, 150, 1024), ("rope", 150, 1024)) for change in changes],
        "without_training": [((change, 0, 1024), ("parent", 1500, 1024)) for change in changes[:-1]],
        "beyond": [((change, 150, 4096), ("scratch", 1950, 4096)) for change in CHANGES],
        "what_to_start_from": [
            (("rope_yarn", 450, n), (other, 1950, n)) for n in (1024, 4096) for other in ("alibi", "fox")
        ],
    }
    control = ("parent", 1950, 256)
    expected["control"] = [(("fox", 1950, 4096), control), (("alibi", 1950, 4096), control)]
    assert [len(pairs) for pairs in expected.values()] == [9, 8, 10, 4, 2]
    significant = []
    for name, pairs in expected.items():
        tests = [stats.ttest_rel(bits(first), bits(second)) for first, second in pairs]
        adjusted = recomputation.holm([float(test.pvalue) for test in tests])
        published = [row for row in rows if row["family"] == name]
        for row, (first, second), p in zip(published, pairs, adjusted, strict=True):
            estimate, low, high = (float(row[column]) for column in ("difference", "low", "high"))
            assert estimate == pytest.approx((bits(first) - bits(second)).mean())
            assert float(row["p"]) == pytest.approx(p)
            assert (low > 0 or high < 0) == (p <= 0.05)
            significant.append(p <= 0.05)
    assert 5 < sum(significant) < len(significant)
    # "less than half of FoX's advantage remains, and not significantly"; ALiBi is above the control.
    assert significant[-2:] == [False, True]
    fox, parents = bits(("fox", 1950, 4096)), bits(("parent", 1500, 256))
    assert (fox - bits(control)).mean() > (fox - parents).mean() / 2
