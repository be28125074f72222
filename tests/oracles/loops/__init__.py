"""Every encoding once more, as loops over single numbers in float64 that share nothing with the package.

Written from the papers' formulas, one query, one key and one channel at a time: slow, obvious, and the
source of the test vectors. ``case.arguments`` are those of the YAML, ``case.parameters`` those of the
encoding by name.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.oracles.loops.absolute import (
    binary_counter,
    learned,
    raw_index,
    scaled_index,
    sinusoidal,
    sinusoidal_scaled,
)
from tests.oracles.loops.biases import (
    alibi,
    continuous_bias,
    deberta,
    fire,
    hard_alibi,
    kerple_log,
    kerple_power,
    learned_relative,
    sandwich,
    scale_invariant,
    shaw,
    sliding_window,
    t5,
    transformer_xl,
)
from tests.oracles.loops.case import Array, Case, Logit, content, logits
from tests.oracles.loops.of_content import (
    cope,
    dape,
    fox,
    grape_a,
    path,
    path_fox,
    selective_rope,
    stick_breaking,
    wall,
)
from tests.oracles.loops.rotations import (
    fope,
    grape_m,
    logn,
    pope,
    rope,
    rope_clipped,
    rope_dynamic_ntk,
    rope_hf,
    rope_linear,
    rope_llama3,
    rope_longrope,
    rope_nope_temperature,
    rope_ntk,
    rope_pp,
    rope_ssmax,
    rope_yarn,
    ssmax,
    xpos,
)

__all__ = ["LOGITS", "VECTORS", "Case", "logits"]

VECTORS: dict[str, Callable[[Case], Array]] = {
    "sinusoidal": sinusoidal,
    "sinusoidal_scaled": sinusoidal_scaled,
    "learned": learned,
    "learned_sinusoidal": learned,
    "raw_index": raw_index,
    "scaled_index": scaled_index,
    "binary_counter": binary_counter,
}
LOGITS: dict[str, Logit] = {
    "none": content,
    "rope": rope,
    "rope_partial": rope,
    "p_rope": rope,
    "rope_linear": rope_linear,
    "rope_ntk": rope_ntk,
    "rope_dynamic_ntk": rope_dynamic_ntk,
    "rope_yarn": rope_yarn,
    "xpos": xpos,
    "pope": pope,
    "logn": logn,
    "ssmax": ssmax,
    "rope_ssmax": rope_ssmax,
    "alibi": alibi,
    "alibi_asymmetric": alibi,
    "t5": t5,
    "kerple_log": kerple_log,
    "kerple_power": kerple_power,
    "fire": fire,
    "sliding_window": sliding_window,
    "hard_alibi": hard_alibi,
    "shaw": shaw,
    "transformer_xl": transformer_xl,
    "deberta": deberta,
    "cope": cope,
    "fox": fox,
    "stick_breaking": stick_breaking,
    "dape": dape,
    "path": path,
    "scale_invariant": scale_invariant,
    "sandwich": sandwich,
    "grape_m": grape_m,
    "grape_a": grape_a,
    "path_fox": path_fox,
    "wall": wall,
    "selective_rope": selective_rope,
    "rope_nope_temperature": rope_nope_temperature,
    "learned_relative": learned_relative,
    "cpb_linear": continuous_bias,
    "cpb_log": continuous_bias,
    "rope_clipped": rope_clipped,
    "fope": fope,
    "rope_pp": rope_pp,
    "rope_llama3": rope_llama3,
    "rope_longrope": rope_longrope,
    "rope_hf": rope_hf,
}
