"""Measure what an encoding loses on inputs in half precision at large position ids."""

from dataclasses import replace
from itertools import product

import torch

from pe_experiments.checking.random_inputs import draw_content
from pe_experiments.checking.scenarios import Scenario, outputs, worst_difference
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.models.attention_scores import Inputs

DTYPES = (torch.bfloat16, torch.float16)
MOST_ROUNDINGS = 4  # allowed difference, in units of the dtype's spacing at 1; shipped encodings stay below 1
# Within tables of 4,096 rows: large ids, and large distances, at which rounded frequencies show.
LARGE_IDS = (
    [*range(4_001, 4_013)],
    [4_000, 4_001, 4_003, 4_010, 4_020, 4_037, 4_050, 4_051, 4_064, 4_080, 4_093, 4_094],
    [0, 1, 9, 70, 300, 511, 900, 1_500, 2_200, 3_000, 3_800, 4_094],
)


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Return the inputs with queries, keys and hidden states of this dtype."""
    tensors = {"q_BHTK": inputs.q_BHTK, "k_BHTK": inputs.k_BHTK, "x_BTD": inputs.x_BTD}
    return replace(inputs, **{name: tensor.to(dtype) for name, tensor in tensors.items()})


def takes_large_ids(encoding: PositionalEncoding) -> bool:
    """Return whether large ids raise no error in float32, as they do if a table ends earlier."""
    ids_BT = torch.tensor([LARGE_IDS[-1]])
    try:
        outputs(encoding, Scenario(ids_BT, torch.zeros_like(ids_BT)), draw_content(encoding.shape, ids_BT))
    except Exception:  # raised by the encoding
        return False
    return True


@torch.no_grad()
def half_precision_loss(encoding: PositionalEncoding, reference: PositionalEncoding) -> tuple[bool, str]:
    """Return whether rounding explains what ``encoding`` loses on inputs in half precision, and the loss.

    The loss in each dtype is the largest difference of embeddings or weights, relative to the largest value,
    from ``reference`` on the same numbers in float32.
    """
    worst = dict.fromkeys(DTYPES, 0.0)
    for dtype, ids in product(DTYPES, LARGE_IDS):
        ids_BT = torch.tensor([ids])
        scenario = Scenario(ids_BT, torch.zeros_like(ids_BT))
        content = draw_content(encoding.shape, ids_BT, key_heads=getattr(encoding, "key_heads", None))
        half = cast(content, dtype)
        exact = outputs(reference, scenario, cast(half, torch.float32))
        with torch.autocast("cpu", dtype=dtype):
            results = [result.float() for result in outputs(encoding, scenario, half)]
        worst[dtype] = max(worst[dtype], worst_difference(results, exact))
    holds = all(loss <= MOST_ROUNDINGS * torch.finfo(dtype).eps for dtype, loss in worst.items())
    measured = " and ".join(
        f"{loss:.1e} in {str(dtype).removeprefix('torch.')}" for dtype, loss in worst.items()
    )
    return holds, f"at ids up to 4,094 they differ by {measured}"
