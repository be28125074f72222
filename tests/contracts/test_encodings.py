"""The contract of every encoding under configs/pe; a new YAML is tested automatically."""

from __future__ import annotations

import inspect
import itertools
import re

import pytest

from pe_experiments.checking import CHECKS, Subject
from pe_experiments.comparison.citations import cites
from pe_experiments.configuration.choices import shipped
from pe_experiments.configuration.component import load_component
from pe_experiments.encodings import ModelShape, PositionalEncoding

ENCODINGS = sorted(shipped("pe"))
COMPONENTS = {name: load_component("pe", section) for name, section in shipped("pe").items()}
# Causal or not: the forms an encoding exists in.
FORMS = [(name, True) for name in ENCODINGS]
FORMS += [(name, False) for name in ENCODINGS if not COMPONENTS[name].cls.causal_only]
encodings = pytest.mark.parametrize("name", ENCODINGS)


def subject(name: str, causal: bool = True) -> Subject:
    return Subject(COMPONENTS[name].build, causal)


SLOW_ENCODINGS = ("cope", "dape", "dape_v2", "path", "path_fox")


@pytest.mark.parametrize(
    ("name", "causal"),
    [pytest.param(*form, marks=pytest.mark.slow) if form[0] in SLOW_ENCODINGS else form for form in FORMS],
)
def test_the_contract_holds(name: str, causal: bool) -> None:
    findings = {check.name: check(subject(name, causal)) for check in CHECKS.values()}
    broken = {check: finding for check, finding in findings.items() if finding.holds is False}
    assert broken == {}


@encodings
def test_docstring_states_source_and_parameters(name: str) -> None:
    """``Parameters: ...`` gives their number in the sizes of the model and of the encoding."""
    encoding = subject(name).encoding()
    document = " ".join((type(encoding).__doc__ or "").split())
    cited = itertools.chain.from_iterable(cites(inspect.getdoc(encoding) or "").values())
    assert set(re.findall(r"arXiv:(\d{4}\.\d{4,5})", document)) == set(cited), "arXiv:NUMBER"
    assert name == "none" or "Source:" in document, "Source: Author et al. YEAR, arXiv:NUMBER"
    assert re.search("Beyond (training|the trained rows):", document), "Beyond training: what happens there"
    statement = re.search(r"Parameters: (?:(none|those of)|``(.+?)``)", document)
    assert statement, "Parameters: none, or ``an expression`` in the arguments and the model's sizes"
    if statement[1] != "those of":  # other encodings
        expected = counted(statement[2] or "0", encoding)
        assert sum(parameter.numel() for parameter in encoding.parameters()) == expected


def counted(expression: str, encoding: PositionalEncoding) -> int:
    sizes = {name: getattr(encoding.shape, name) for name in (*ModelShape.__dataclass_fields__, "head_dim")}
    return eval(expression, {}, {**sizes, **vars(encoding)})
