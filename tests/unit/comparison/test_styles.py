"""Test that an encoding looks the same in every figure, and encodings look different to the colour-blind."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from pe_experiments.configuration.parts import shipped
from pe_experiments.drawing import (
    COLOURS,
    MARKERS,
    OWN_COLOURS,
    PAIRS,
    STYLES,
    drawing,
    save,
    style_indices,
    styles,
)
from tests.conftest import ROOT

BANK = list(pd.read_csv(ROOT / "results" / "bank" / "v2" / "runs.csv")["label"].unique())
# Linear red, green and blue as the colour-blind see them (Machado, Oliveira and Fernandes 2009, severity 1).
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
CLEARLY = 20.0  # a difference in CIELAB; 2 is just noticeable


def lab(colour: str, vision: str) -> np.ndarray:
    """Return CIELAB coordinates of ``#RRGGBB`` as seen with this vision."""
    srgb = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = XYZ @ np.clip(VISION[vision] @ linear, 0, 1) / XYZ.sum(axis=1)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def colour_difference(first: str, second: str, vision: str) -> float:
    return float(np.linalg.norm(lab(first, vision) - lab(second, vision)))


@pytest.mark.parametrize("vision", VISION)
def test_the_encodings_of_the_bank_look_different(vision: str) -> None:
    """All markers differ, because the colour-blind cannot tell all colours apart."""
    bank_styles = styles(BANK)
    assert len({colour for colour, _ in bank_styles.values()}) == len(BANK) == 12
    assert len({marker for _, marker in bank_styles.values()}) == 12
    if vision == "normal":
        pairs = itertools.combinations(COLOURS, 2)
        assert min(colour_difference(*pair, vision) for pair in pairs) > CLEARLY
    for name in ("rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn"):  # drawn beside RoPE
        assert colour_difference(STYLES[name][0], STYLES["rope"][0], vision) > 10
        assert STYLES[name][1] != STYLES["rope"][1]


def test_no_two_shipped_encodings_look_the_same() -> None:
    labels = {*shipped("pe"), *STYLES}
    alone = {label: styles([label])[label] for label in labels}
    assert len(set(alone.values())) == len(labels)
    assert styles(labels) == alone  # whatever else is compared
    assert styles(sorted(labels, reverse=True)) == alone


def test_an_encoding_looks_the_same_whatever_its_arguments() -> None:
    assert styles(["fox(initial_bias=4)"])["fox(initial_bias=4)"] == STYLES["fox"]
    name = "learned(std=0.02)+random_offset(max_positions=302)"
    assert styles([name])[name] == STYLES["learned+random_offset"]
    assert styles(["rope [1a2b]", "alibi"])["rope [1a2b]"] == STYLES["rope"]
    both = styles(["rope(base=500)", "rope", "alibi"])
    assert both["rope"] == STYLES["rope"]
    assert both["rope(base=500)"][0] not in (STYLES["rope"][0], STYLES["alibi"][0])


def test_a_new_encoding_gets_an_unused_style() -> None:
    with_new = styles([*BANK[:11], "Mine(slope=0.2)"])
    assert with_new["Mine(slope=0.2)"][0] == STYLES[BANK[11]][0]  # the one colour that is left
    assert with_new == styles(["Mine(slope=0.2)", *BANK[10::-1]])
    many = [f"s{n}" for n in range(len(PAIRS) - len(BANK))]
    assert len(set(styles([*BANK, *many]).values())) == len(PAIRS) == len(COLOURS) * len(MARKERS)
    assert len(styles([f"s{n}" for n in range(200)])) == 200


def test_the_outermost_context_decides_the_formats_of_figures(tmp_path: Path) -> None:
    with drawing(["png"]), drawing():
        assert [path.name for path in save(Figure(), tmp_path, "published")] == ["published.png"]
    with drawing():
        names = {path.name for path in save(Figure(), tmp_path, "compared")}
    assert names == {"compared.png", "compared.svg", "compared.pdf"}
    assert {path.name for path in tmp_path.iterdir()} == names | {"published.png"}


def test_an_encoding_of_the_user_has_one_colour_that_no_other_has() -> None:
    alone = styles(["Mine"], ["Mine"])["Mine"]
    assert alone[0] in OWN_COLOURS
    both = styles([*BANK, "Mine(slope=0.2)", "Mine", "rope"], ["Mine", "Mine(slope=0.2)"])
    assert both["Mine"] == alone
    assert both["Mine(slope=0.2)"][0] in {*OWN_COLOURS} - {alone[0]}
    assert both["rope"] == STYLES["rope"]
    indices = style_indices(["Mine", "rope"], ["Mine"])
    assert (*COLOURS, *OWN_COLOURS)[indices["Mine"]["colour"]] == alone[0]
    different = [(new, old) for new in OWN_COLOURS for old in (*COLOURS, *OWN_COLOURS) if new != old]
    assert min(colour_difference(*pair, "normal") for pair in different) > CLEARLY
