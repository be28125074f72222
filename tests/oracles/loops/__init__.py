"""Every encoding as a loop over single numbers in float64 that shares no code with the package.

The loops follow the papers' formulas, for one query, one key and one channel at a time. The test vectors are
computed by them. ``case.arguments`` are those of the YAML, ``case.parameters`` those of the encoding by name.
A loop has the name of its choice of ``pe``, unless `OTHER_NAMES` gives another.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from pe_experiments.configuration.choices import shipped
from tests.oracles.loops import absolute, biases, case, of_content, rotations, values
from tests.oracles.loops.case import Array, Case, Logit, logits
from tests.oracles.loops.values import Channel, read

__all__ = ["LOGITS", "OUTPUTS", "VECTORS", "Case", "logits", "read"]

OTHER_NAMES = {
    "alibi_asymmetric": "alibi",
    "cpb_linear": "continuous_bias",
    "cpb_log": "continuous_bias",
    "dape_v2": "dape",
    "learned_sinusoidal": "learned",
    "none": "content",
    "p_rope": "rope",
    "rope_partial": "rope",
    "rope_values": "rope",
}


def loops_in(*modules: ModuleType) -> dict[str, Any]:
    """The loops of these modules by the choice of ``pe``."""
    loops = {}
    for choice in shipped("pe"):
        for module in modules:
            if loop := getattr(module, OTHER_NAMES.get(choice, choice), None):
                loops[choice] = loop
    return loops


VECTORS: dict[str, Callable[[Case], Array]] = loops_in(absolute)
LOGITS: dict[str, Logit] = loops_in(case, biases, of_content, rotations)
OUTPUTS: dict[str, Channel] = {  # of encodings that act on values, beside their logits
    "rope_values": values.rope_values,
    "shaw": values.shaw,
}
