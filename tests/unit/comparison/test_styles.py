"""Test that an encoding looks the same in every figure, that encodings look different, and what is drawn."""

from pe_experiments.configuration.choices import shipped
from pe_experiments.drawing import (
    COLOURS,
    STYLES,
    style_indices,
    styles,
)


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
