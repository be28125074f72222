"""Test that an encoding looks the same in every figure, and that encodings look different."""

from pe_experiments.configuration.component import shipped
from pe_experiments.drawing import COLOURS, OWN_COLOURS, STYLES, style_indices, styles


def test_no_two_shipped_encodings_look_the_same() -> None:
    labels = {*shipped("pe"), *STYLES}
    alone = {label: styles([label])[label] for label in labels}
    assert len(set(alone.values())) == len(labels)
    assert styles(labels) == alone  # whatever else is compared
    assert styles(sorted(labels, reverse=True)) == alone


def test_an_encoding_of_the_user_has_one_colour_that_no_other_has() -> None:
    alone = styles(["Mine"], ["Mine"])["Mine"]
    assert alone[0] in OWN_COLOURS
    both = styles(["Mine(slope=0.2)", "Mine", *STYLES], ["Mine", "Mine(slope=0.2)"])
    assert both["Mine"] == alone
    assert both["Mine(slope=0.2)"][0] in {*OWN_COLOURS} - {alone[0]}
    assert both["rope"] == STYLES["rope"]
    indices = style_indices(["Mine", "rope"], ["Mine"])
    assert (*COLOURS, *OWN_COLOURS)[indices["Mine"]["colour"]] == alone[0]
