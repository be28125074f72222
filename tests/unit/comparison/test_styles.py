"""Test that an encoding looks the same in every figure, that encodings look different, and what is drawn."""

import pandas as pd
import pytest

from pe_experiments.configuration.choices import shipped
from pe_experiments.drawing import (
    COLOURS,
    STYLES,
    bounded_metric,
    drawn_metrics,
    style_indices,
    styles,
)
from pe_experiments.evaluation.metrics import EXACT_MATCH, LOSS, TOKEN_ACCURACY, Metric


def test_no_two_shipped_encodings_look_the_same() -> None:
    labels = {*shipped("pe"), *STYLES}
    alone = {label: styles([label])[label] for label in labels}
    assert len(set(alone.values())) == len(labels)
    assert styles(labels) == alone  # whatever else is compared
    assert styles(sorted(labels, reverse=True)) == alone


def test_variants_and_encodings_of_the_user_look_different_from_the_shipped_ones_beside_them() -> None:
    labels = ["Mine(slope=0.2)", "Mine", "rope(base=500)", *STYLES]
    together = styles(labels)
    assert len(set(together.values())) == len(labels)
    assert together["rope"] == STYLES["rope"]
    indices = style_indices(["Mine", "rope"])
    assert COLOURS[indices["rope"]["colour"]] == STYLES["rope"][0]


@pytest.mark.parametrize(
    ("exact_match", "answer_tokens", "compared", "drawn", "bounded"),
    [
        (0.5, [1, 1], EXACT_MATCH, (EXACT_MATCH,), EXACT_MATCH),
        (0.5, [1, 1], LOSS, (LOSS, EXACT_MATCH), EXACT_MATCH),
        (0.5, [2, 4], EXACT_MATCH, (EXACT_MATCH, TOKEN_ACCURACY), TOKEN_ACCURACY),
        (0.5, [1, 4], TOKEN_ACCURACY, (EXACT_MATCH, TOKEN_ACCURACY), TOKEN_ACCURACY),
        (0.5, [2, 4], Metric("first_error"), (EXACT_MATCH, TOKEN_ACCURACY), TOKEN_ACCURACY),  # not measured
        (None, [20, 40], LOSS, (LOSS, TOKEN_ACCURACY), TOKEN_ACCURACY),
    ],
)
def test_two_equal_curves_are_not_drawn_side_by_side(
    exact_match: float | None,
    answer_tokens: list[int],
    compared: Metric,
    drawn: tuple[Metric, ...],
    bounded: Metric,
) -> None:
    curves = pd.DataFrame({"exact_match": exact_match, "loss": 1.0, "answer_tokens": answer_tokens})
    assert drawn_metrics(curves, compared) == drawn
    assert bounded_metric(curves) == bounded
    assert drawn_metrics(curves.drop(columns="answer_tokens"))[1] == TOKEN_ACCURACY  # of earlier versions
