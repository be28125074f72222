"""What every encoding under configs/pe must do; a new YAML is tested by being there."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from hydra.utils import instantiate

from pe_experiments.checking import CHECKS, Subject, small_shape
from pe_experiments.checking.encoding_contract import random_tokens
from pe_experiments.comparison.citations import cites
from pe_experiments.configuration.parts import load_component, shipped
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.terminal.errors import UserError

ENCODINGS = sorted(shipped("pe"))


def subject(name: str, causal: bool) -> Subject:
    return Subject(lambda shape: instantiate(shipped("pe")[name], shape, _convert_="all"), causal)


def forms(name: str) -> list[bool]:
    """Causal or not: the forms an encoding exists in."""
    return [True] if load_component("pe", shipped("pe")[name]).cls.causal_only else [True, False]


CASES = [(name, causal) for name in ENCODINGS for causal in forms(name)]
encodings = pytest.mark.parametrize("name", ENCODINGS)


# A convolution reads the neighbours in memory; scaled_index divides by the largest id of the row.
CONVOLVED = ("path", "path_fox", "selective_rope")
BY_DEFINITION = {
    *(
        (name, "decoding with cached keys agrees with the whole row") for name in CONVOLVED
    ),  # after left padding
    *((name, "left padding changes nothing") for name in CONVOLVED),
    *((name, "packed documents change nothing") for name in CONVOLVED),
    ("scaled_index", "packed documents change nothing"),
}


@pytest.mark.parametrize(("name", "causal"), CASES)
@pytest.mark.parametrize("check", CHECKS)
def test_the_contract_holds(name: str, causal: bool, check: str) -> None:
    finding = CHECKS[check](subject(name, causal))
    assert (finding.holds is False) == ((name, check) in BY_DEFINITION), finding


@encodings
def test_an_encoder_is_served_or_refused(name: str) -> None:
    component = load_component("pe", shipped("pe")[name])
    if component.cls.causal_only:
        with pytest.raises(UserError, match="causal models only; take model=decoder"):
            component.build(small_shape(causal=False))
    else:
        component.build(small_shape(causal=False))


@encodings
def test_docstring_states_source_and_parameters(name: str) -> None:
    """``Parameters: ...`` is an expression in the sizes of the model and of the encoding, and it is true."""
    made = subject(name, True).encoding()
    document = " ".join((type(made).__doc__ or "").split())
    found = set(re.findall(r"arXiv:(\d{4}\.\d{4,5})", document))
    assert found == {number for numbers in cites(inspect.getdoc(made) or "").values() for number in numbers}
    assert "Beyond training" in document or "Beyond the trained rows" in document
    statement = re.search(r"Parameters: (?:(none|those of)|``(.+?)``)", document)
    assert statement, "Parameters: none, or ``an expression`` in the arguments and the model's sizes"
    if statement[1] == "those of":  # a mixture of others
        return
    assert sum(p.numel() for p in made.parameters()) == counted(statement[2] or "0", made)


def counted(expression: str, encoding: PositionalEncoding) -> int:
    sizes = {name: getattr(encoding.shape, name) for name in (*ModelShape.__dataclass_fields__, "head_dim")}
    return eval(expression, {}, {**sizes, **vars(encoding)})


@encodings
def test_a_common_seed_gives_equal_instances(name: str) -> None:
    first, second = (subject(name, True).encoding().state_dict() for _ in range(2))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


@encodings
def test_odd_widths_work(name: str) -> None:
    logits = subject(name, True).model(d_model=15, num_heads=1)(random_tokens(2, 9))
    assert logits.isfinite().all()
