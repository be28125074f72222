"""The sequences on which encodings are compared with the loops: hyperparameters, positions, parameters."""

from __future__ import annotations

from typing import Any

import torch

from pe_experiments.checking.subject import build, perturbed, reference_of
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.softmax import is_masked
from pe_experiments.models.attention_scores import Inputs, attention_outputs, attention_scores
from tests.oracles.loops import LOGITS, OUTPUTS, VECTORS, Case, logits, read

TOKENS = 7
SPAN = 4096
TABLE = 16  # rows of learned tables, so that they fit on a page

LLAMA3_BLOCK = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 700,
}  # fmt: skip
YARN_BLOCK = {
    "rope_type": "yarn", "factor": 4.0, "truncate": False, "original_max_position_embeddings": 700,
}  # fmt: skip
# Hyperparameters to test beside the defaults of each YAML.
HYPERPARAMETERS: dict[str, list[dict[str, Any]]] = {
    "sinusoidal": [{"base": 123.4}],
    "sinusoidal_scaled": [{"base": 500.0}],
    "rope": [
        {"base": 500.0},
        {"base": 123.4, "rotary_fraction": 0.5},
        {"base": 1e6, "kept_frequencies": 0.3},
    ],
    "rope_partial": [{"rotary_fraction": 0.75}],
    "p_rope": [{"kept_frequencies": 0.5, "base": 1000.0}, {"kept_frequencies": 0.45}],
    "rope_linear": [{"factor": 4.0, "base": 500.0}, {"original_length": 3}],
    "rope_ntk": [{"factor": 8.0}, {"base": 100.0, "rotary_fraction": 0.5}],
    "rope_dynamic_ntk": [{"factor": None}, {"factor": 3.5, "base": 50.0}],
    "rope_yarn": [
        {"factor": 8.0},
        {"base": 20.0, "beta_fast": 0.6, "beta_slow": 0.01},
        {"factor": 8.0, "original_length": 700, "truncate": False},
        {"factor": 8.0, "original_length": 700, "attention_factor": 1.3},
        {"factor": 40.0, "original_length": 700, "mscale": 0.7, "mscale_all_dim": 0.3},
        {"factor": 8.0, "original_length": 7000, "ramp": "radix"},
    ],
    "rope_llama3": [
        {"factor": 8.0, "original_length": 700},
        {"base": 20.0, "low_freq_factor": 0.05, "high_freq_factor": 0.7},
    ],
    "rope_longrope": [
        {"factor": 8.0, "short_factor": [1.0, 1.1, 1.3, 2.0], "original_length": 7},
        {"long_factor": [1.0, 1.5, 6.0, 9.0], "attention_factor": 1.2},
    ],
    "rope_hf": [
        {"rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.5}},
        {"rope_parameters": LLAMA3_BLOCK},
        {"rope_parameters": YARN_BLOCK},
    ],
    "xpos": [{"scale_base": 300.0, "base": 500.0}],
    "pope": [{"base": 100.0}],
    "t5": [{"num_buckets": 8, "max_distance": 128}, {"num_buckets": 16, "max_distance": 3000}],
    "fire": [{"width": 5, "c": 0.7, "threshold": 100.0}],
    "sliding_window": [{"window": 900}, {"window": 3, "first": 2000}],
    "hard_alibi": [{"windowed_heads": 1}],
    "shaw": [{"max_distance": 3}, {"max_distance": 40}, {"max_distance": 3, "values": True}],
    "transformer_xl": [{"base": 100.0}],
    "deberta": [{"max_distance": 1}, {"max_distance": 30, "key_index": "released"}],
    "cope": [{"max_position": 2}],
    "fox": [{"initial_bias": 3.0}],
    "stick_breaking": [{"remainder": "self"}],
    "dape": [{"width": 3}],
    "dape_v2": [{"width": 3, "kernel": 5}],
    "path": [{"rank": 2}],
    "scale_invariant": [{"tau": 300.0}],
    "sandwich": [{"width": 6}],
    "grape_m": [{"base": 100.0}],
    "grape_a": [{"gate": "query"}, {"gate": "both"}],
    "path_fox": [{"rank": 2}],
    "wall": [{"initial_bias": 0.0}],
    "selective_rope": [{"base": 10.0, "rank": 3}],
    "learned_relative": [{"d_rel": 3, "extent": 900}],
    "cpb_linear": [{"width": 5, "depth": 1}],
    "cpb_log": [{"width": 3, "depth": 3}],
    "rope_clipped": [{"clipped": 0}, {"clipped": 2, "base": 500.0}, {"clipped": 3, "rotary_fraction": 0.75}],
    "fope": [{"original_length": 300}, {"original_length": 70, "base": 100.0, "gain": 1.0}],
    "rope_pp": [{"base": 500.0}, {"kept_frequencies": 0.5}],
    "key_offset": [{"base": 500.0, "rotary_fraction": 0.75}],
    "nape": [{"alibi_heads": 1, "slopes": "exponential"}, {"alibi_heads": 2}],
    "asentmax": [
        {"alpha": 1.3, "scale": "learned", "alibi_heads": 0},
        {"alpha": 2.0, "scale": "none", "slopes": "exponential"},
    ],
    "repo": [{"base": 20.0, "width": 3}],
    "bam": [
        {"learn_location": True, "initial_shape": 0.4, "initial_location": -1.0},
        {"learn_shape": False, "learn_scale": False, "initial_location": 0.7},
    ],
    "fox_per_query": [{"width": 3}],
    "rope_values": [{"base": 123.4, "rotary_fraction": 0.5}, {"base": 500.0, "kept_frequencies": 0.3}],
}
CLAMPED = ("kerple_log", "kerple_power", "pope")  # large parameters reach their clamps


def specifications(choice: str) -> list[tuple[dict[str, Any], bool]]:
    """Pairs of hyperparameters and causality: decoders, and encoders unless the encoding is causal only."""
    forms = (True,) if reference_of(choice).cls.causal_only else (True, False)  # type: ignore[attr-defined]
    return [(arguments, causal) for arguments in ({}, *HYPERPARAMETERS.get(choice, [])) for causal in forms]


def encoding_and_case(
    choice: str, arguments: dict[str, Any], causal: bool, seed: int = 0, heads: int = 2, head_dim: int = 8
) -> tuple[PositionalEncoding, Inputs, Case]:
    """An encoding with random parameters, random content at random positions, and the same for the loops.

    Sequences have 7 tokens, more than the 5 of training, so that context extension applies.
    """
    component = reference_of(choice, **arguments)
    shape = ModelShape(head_dim * heads, heads, 2, causal, 5, TABLE)
    encoding = perturbed(build(component.build, shape), 10.0 if seed and choice in CLAMPED else 0.3)
    generator = torch.Generator().manual_seed(seed)
    span = TABLE if choice.startswith("learned") else SPAN
    positions = torch.randperm(span, generator=generator)[:TOKENS].sort().values
    if seed % 2:
        positions[1:4] = positions[0] + torch.tensor([1, 2, 4])  # near each other too
        positions = positions.sort().values
    q, k = (torch.randn(1, heads, TOKENS, head_dim, generator=generator) for _ in range(2))
    x = torch.randn(1, TOKENS, shape.d_model, generator=generator)
    v = torch.randn(1, heads, TOKENS, head_dim, generator=generator)
    case = Case(
        choice,
        {key: value for key, value in component.arguments.items() if key not in ("encodings", "bias")},
        {"d_model": shape.d_model, "num_heads": heads, "train_length": 5, "causal": causal},
        positions.tolist(),
        *(part[0].double().numpy() for part in (q, k, v, x)),
        {name: p.detach().double().numpy() for name, p in encoding.named_parameters()},
        layer=seed,
    )
    return encoding, Inputs(q, k, x, positions[None]), case


def expected(case: Case) -> torch.Tensor:
    """The result of the loops: vectors [T, W], or logits (of stick-breaking: weights) [H, T, S]."""
    if case.choice in VECTORS:
        return torch.tensor(VECTORS[case.choice](case))
    return torch.tensor(logits(LOGITS[case.choice], case))


def expected_outputs(case: Case) -> torch.Tensor:
    """What the loops read from the values, [H, T, K]."""
    return torch.tensor(read(OUTPUTS[case.choice], case, expected(case).numpy()))


@torch.no_grad()
def measured_outputs(encoding: PositionalEncoding, inputs: Inputs, case: Case) -> torch.Tensor:
    """What attention under the encoding reads from the values, in float32."""
    v_BHTK = torch.tensor(case.v, dtype=torch.float32)[None]
    return attention_outputs(encoding, inputs, v_BHTK, case.layer)[0]


@torch.no_grad()
def measured(encoding: PositionalEncoding, inputs: Inputs, choice: str, layer: int = 0) -> torch.Tensor:
    """The result of the encoding, in float32."""
    if choice in VECTORS:
        tokens = torch.zeros(1, inputs.positions_BT.shape[1], encoding.shape.d_model)
        return encoding.embed(tokens, inputs.positions_BT)[0]
    return attention_scores(encoding, inputs, layer)[0]


def difference(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference as a share of the largest logit; infinite unless both mask the same keys."""
    masked = expected.isnan() | (expected == -torch.inf)
    if not torch.equal(masked, result.isnan() | is_masked(result)):
        return torch.inf
    expected = expected[~masked]
    return float((result.double()[~masked] - expected).abs().max() / expected.abs().max())
