"""Define checks of attention alone: batches, caches, padding, packed rows, dtypes, and state between calls.

To add a check, write a function of a `Subject` under ``@check(name, promise, usual cause of a failure)``.
"""

import copy
from dataclasses import replace

import torch

from pe_experiments.checking.checks import Checks, Measurement
from pe_experiments.checking.scenarios import (
    LARGE_IDS,
    OWN_IDS,
    ROWS,
    SCENARIOS,
    TOKENS,
    Scenario,
    cast,
    difference_from_alone,
    half_precision_loss,
    outputs,
    separate_rows,
    worst_difference,
)
from pe_experiments.checking.subject import (
    CAST,
    FLOAT32_TOLERANCE,
    LATE,
    LENGTH,
    Subject,
    compare_difference,
    draw_content,
    embed,
)
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.models.attention_scores import Inputs
from pe_experiments.terminal.errors import allowed

CHECKS = Checks()
check = CHECKS.add


def _first_layer_encoding(subject: Subject) -> PositionalEncoding:
    return subject.model(train_positions=max(64, subject.positions)).encodings[0]  # type: ignore[return-value]


@torch.no_grad()
def _measure_scenarios(subject: Subject, *names: str) -> Measurement:
    """Return whether results in these scenarios equal those of documents processed alone."""
    encoding = _first_layer_encoding(subject)
    worst = 0.0
    for name in names:
        difference = difference_from_alone(encoding, SCENARIOS[name])
        shares_rows = bool((SCENARIOS[name].documents_BT != 0).any())  # with padding or another document
        if difference > FLOAT32_TOLERANCE and encoding.reads_row and shares_rows:
            return None, f"{compare_difference(difference)[1]}; the class says so (reads_row)"
        worst = max(worst, difference)
    return compare_difference(worst)


@check("rows", "rows of a batch keep their own positions", "the ids or the offset of one row serve all rows")
def rows_keep_positions(subject: Subject) -> Measurement:
    names = (
        "rows at the same offset",
        "rows at ids of their own",
        "rows on both sides of the training length",
    )
    return _measure_scenarios(subject, *names)


@check(
    "cached_keys",
    "decoding with cached keys agrees with the whole row",
    "a query's index in the call is its position",
)
def cached_keys_agree(subject: Subject) -> Measurement:
    if not subject.causal:
        return None, "an encoder does not decode"
    return _measure_scenarios(subject, "decoding with cached keys", "decoding after left padding")


@check(
    "left_padding",
    "left padding changes nothing",
    "indices are read instead of ids, or padding stays uninitialised",
)
def left_padding(subject: Subject) -> Measurement:
    return _measure_scenarios(subject, "left padding")


@check("packed", "packed documents change nothing", "positions or neighbours are counted across documents")
def packed_documents(subject: Subject) -> Measurement:
    return _measure_scenarios(subject, "packed documents")


def _late_scenario(tokens: int = TOKENS) -> Scenario:
    return separate_rows(torch.arange(LATE, LATE + tokens).repeat(ROWS, 1))


@check(
    "cast",
    "phases survive a cast to bfloat16",
    "frequencies or tables in a buffer, which model.bfloat16() rounds; compute them in the call",
)
@torch.no_grad()
def phases_survive_cast(subject: Subject) -> Measurement:
    encoding = _first_layer_encoding(subject)
    scenario = _late_scenario()
    inputs = draw_content(encoding.shape, scenario.positions_BT)
    cast_encoding = copy.deepcopy(encoding)
    frozen_parameters = [parameter for parameter in cast_encoding.parameters() if not parameter.requires_grad]
    for constant in (*cast_encoding.buffers(), *frozen_parameters):
        if constant.is_floating_point():
            constant.data = constant.data.bfloat16()
    exact = outputs(encoding, scenario, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return compare_difference(worst_difference(outputs(cast_encoding, scenario, inputs), exact), CAST)


@check(
    "half",
    "half precision loses only its own rounding",
    "positions, frequencies or angles in the dtype of q; compute them in float64 and cast cos and sin",
)
def half_precision(subject: Subject) -> Measurement:
    """Compare attention of queries and keys in half precision with that of the same numbers in float32."""
    encoding = _first_layer_encoding(subject)
    largest_ids_BT = torch.tensor([LARGE_IDS[-1]])
    try:
        outputs(encoding, separate_rows(largest_ids_BT), draw_content(encoding.shape, largest_ids_BT))
    except Exception:  # a table ends earlier
        return None, "it takes no ids from 4,000 on"
    return half_precision_loss(encoding, encoding)


@check(
    "inputs",
    "inputs keep their values and their gradient",
    "queries, keys or embeddings are changed in place (+=, copy_), detached, or used under no_grad",
)
def inputs_keep_values(subject: Subject) -> Measurement:
    encoding = _first_layer_encoding(subject)
    inputs = draw_content(encoding.shape, OWN_IDS.positions_BT)
    if change := _find_change_in_place(encoding, inputs):
        return False, f"{change} in place, which others read too; it may return new tensors only"
    tensors = {"q": inputs.q_BHTK, "k": inputs.k_BHTK, "x": inputs.x_BTD}
    for tensor in tensors.values():
        tensor.requires_grad_()
    sum(output.square().sum() for output in outputs(encoding, OWN_IDS, inputs)).backward()  # type: ignore[union-attr]
    without = [name for name, tensor in tensors.items() if tensor.grad is None or not tensor.grad.any()]
    return not without, f"no gradient reaches {', '.join(without)}" if without else "they do"


@torch.no_grad()
def _find_change_in_place(encoding: PositionalEncoding, inputs: Inputs) -> str:
    """Name the first hook that changes tensors in place, and these tensors; return "" if none does."""
    layer_encoding = encoding.for_layer(0)
    at = inputs.context(encoding.shape.causal)
    q = inputs.q_BHTK
    k = inputs.k_BHTK
    shared = {
        "q": q,
        "k": k,
        "x": inputs.x_BTD,
        "position ids": inputs.positions_BT,
        "relative positions": at.relative_positions_BTS,
        "the mask": at.visible_BTS,
    }
    before = {name: tensor.clone() for name, tensor in shared.items()}
    for hook in ("embed", "rotate", "bias", "weights", "values", "outputs"):
        if hook == "embed":
            embed(encoding, replace(inputs, x_BTD=inputs.x_BTD.clone()))  # may change token embeddings
        elif hook in ("values", "outputs"):
            getattr(layer_encoding, hook)(q, at)
        else:
            getattr(layer_encoding, hook)(q, k, at)
        changed = [name for name, tensor in shared.items() if not torch.equal(tensor, before[name])]
        if changed:
            return f"{type(layer_encoding).__name__}.{hook} changes {allowed(changed)}"
    return ""


@check(
    "state", "earlier calls change nothing", "a cache keeps the dtype, length or offset of an earlier call"
)
@torch.no_grad()
def earlier_calls(subject: Subject) -> Measurement:
    """Compare an encoding after several other calls with an unused copy, for calls of several lengths."""
    encoding = _first_layer_encoding(subject)
    used = copy.deepcopy(encoding)
    late = _late_scenario()
    single = separate_rows(late.positions_BT[:1, :1])
    decoding = SCENARIOS["decoding with cached keys"]
    calls = []  # which differ in ids, dtype of inputs or the declared length of rows
    for dtype in (torch.bfloat16, torch.float32):
        calls += [(single, dtype, 3 * TOKENS), (late, dtype, LATE + TOKENS), (OWN_IDS, dtype, 3 * TOKENS)]
    calls += [(_late_scenario(40), torch.float32, 20 * LENGTH), (OWN_IDS, torch.float32, TOKENS)]
    calls += [(decoding, torch.float32, 5 * LENGTH)]
    worst = 0.0
    for scenario, dtype, declared in 2 * calls:
        inputs = cast(draw_content(encoding.shape, scenario.positions_BT), dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            declared_B = torch.tensor([declared])
            result = outputs(used, scenario, inputs, declared_B)
            expected = outputs(copy.deepcopy(encoding), scenario, inputs, declared_B)
        worst = max(worst, worst_difference(result, expected))
    return compare_difference(worst)
