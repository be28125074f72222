"""Every encoding as a loop over single numbers in float64 that shares no code with the package.

The loops follow the papers' formulas, for one query, one key and one channel at a time. The test vectors are
computed by them. ``case.arguments`` are those of the YAML, ``case.parameters`` those of the encoding by name.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.oracles.loops import absolute, biases, of_content, rotations, values
from tests.oracles.loops.case import Array, Case, Logit, content, logits
from tests.oracles.loops.values import Channel, read

__all__ = ["LOGITS", "OUTPUTS", "VECTORS", "Case", "logits", "read"]

VECTORS: dict[str, Callable[[Case], Array]] = {
    "sinusoidal": absolute.sinusoidal,
    "sinusoidal_scaled": absolute.sinusoidal_scaled,
    "learned": absolute.learned,
    "learned_sinusoidal": absolute.learned,
    "raw_index": absolute.raw_index,
    "scaled_index": absolute.scaled_index,
    "binary_counter": absolute.binary_counter,
}
LOGITS: dict[str, Logit] = {
    "none": content,
    "rope": rotations.rope,
    "rope_partial": rotations.rope,
    "p_rope": rotations.rope,
    "rope_linear": rotations.rope_linear,
    "rope_ntk": rotations.rope_ntk,
    "rope_dynamic_ntk": rotations.rope_dynamic_ntk,
    "rope_yarn": rotations.rope_yarn,
    "xpos": rotations.xpos,
    "pope": rotations.pope,
    "logn": rotations.logn,
    "ssmax": rotations.ssmax,
    "rope_ssmax": rotations.rope_ssmax,
    "alibi": biases.alibi,
    "alibi_asymmetric": biases.alibi,
    "t5": biases.t5,
    "kerple_log": biases.kerple_log,
    "kerple_power": biases.kerple_power,
    "fire": biases.fire,
    "sliding_window": biases.sliding_window,
    "hard_alibi": biases.hard_alibi,
    "shaw": biases.shaw,
    "transformer_xl": biases.transformer_xl,
    "deberta": biases.deberta,
    "cope": of_content.cope,
    "fox": of_content.fox,
    "stick_breaking": of_content.stick_breaking,
    "dape": of_content.dape,
    "dape_v2": of_content.dape,
    "path": of_content.path,
    "scale_invariant": biases.scale_invariant,
    "sandwich": biases.sandwich,
    "grape_m": rotations.grape_m,
    "grape_a": of_content.grape_a,
    "path_fox": of_content.path_fox,
    "wall": of_content.wall,
    "selective_rope": of_content.selective_rope,
    "rope_nope_temperature": rotations.rope_nope_temperature,
    "learned_relative": biases.learned_relative,
    "cpb_linear": biases.continuous_bias,
    "cpb_log": biases.continuous_bias,
    "rope_clipped": rotations.rope_clipped,
    "fope": rotations.fope,
    "rope_pp": rotations.rope_pp,
    "rope_llama3": rotations.rope_llama3,
    "rope_longrope": rotations.rope_longrope,
    "rope_hf": rotations.rope_hf,
    "key_offset": rotations.key_offset,
    "nape": biases.nape,
    "asentmax": of_content.asentmax,
    "repo": of_content.repo,
    "rope_values": rotations.rope,
    "bam": biases.bam,
    "fox_per_query": of_content.fox_per_query,
}
OUTPUTS: dict[str, Channel] = {  # of encodings that act on values, beside their logits
    "rope_values": values.rope_values,
    "shaw": values.shaw,
}
