"""Define the contract of an encoding: checks of a small transformer, and those of `attention_contract`.

To add a check, write a function of a `Subject` under ``@check(name, promise, usual cause of a failure)``.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import torch
from torch import Tensor, nn

from pe_experiments.checking.attention_contract import CHECKS as ATTENTION_CHECKS
from pe_experiments.checking.checks import Checks, Measurement, watch_global_generators
from pe_experiments.checking.subject import (
    CAST,
    FLOAT32_TOLERANCE,
    LATE,
    LENGTH,
    VOCABULARY,
    Subject,
    compare_difference,
    compare_outputs,
    draw_content,
    embed,
    look_ahead,
    random_tokens,
    relative_difference,
    trainable,
    vectors_at,
)
from pe_experiments.encodings.base import overridden_hooks
from pe_experiments.encodings.softmax import is_masked
from pe_experiments.models import Transformer, attention
from pe_experiments.models.attention import makes_weights
from pe_experiments.models.attention_scores import attention_scores
from pe_experiments.terminal.errors import allowed

DISTANT_POSITION = 16_384  # most cached tables end before it, others far beyond
FAR_ROUNDING = 1e-4  # a bias in float32 is off by 1e-5 there; positions in bfloat16 are off by up to 64
CHUNK_BORDER = 65_536  # a multiple of the chunks of released models (Llama 4: 8,192)
FARTHER_ROUNDING = 1e-3
# A round number and powers of two, where tables may wrap, with the tolerance there.
FAR_BOUNDARIES = {DISTANT_POSITION: FAR_ROUNDING, 100_000: FARTHER_ROUNDING, 131_072: FARTHER_ROUNDING}
NEAR_OFFSETS = 64  # shifts of ids that are tried, to recognise chunks and grids
# Messages of torch for fractional indices.
INDEX_ERROR = re.compile(r"indices|int32/int64|Long|integer", re.IGNORECASE)
STEPS = 12  # steps of the last position
MODEL_CHECKS = Checks()
check = MODEL_CHECKS.add


@check(
    "shapes",
    "hooks return tensors of the right shape",
    "a dimension is missing (B, H, T, S), or the sizes of one call are kept for the next",
    gate=True,
)
@torch.no_grad()
def hooks_return_right_shapes(subject: Subject) -> Measurement:
    encoding = subject.encoding()
    rows = 2
    layer_encoding = encoding.for_layer(0)
    heads = encoding.shape.num_heads
    for tokens in (LENGTH, 5):
        inputs = draw_content(encoding.shape, torch.arange(tokens)[None].expand(rows, -1))
        embedded = embed(encoding, inputs)
        if embedded.shape != inputs.x_BTD.shape:
            return False, f"embed returns {list(embedded.shape)}, expected {list(inputs.x_BTD.shape)}"
        q = inputs.q_BHTK
        k = inputs.k_BHTK
        sizes_BHTS = (rows, heads, tokens, tokens)
        at = inputs.context(causal=True)
        if makes_weights(layer_encoding):
            weights = layer_encoding.weights(q, k, at)
            if weights.shape != sizes_BHTS:
                return False, f"weights returns {list(weights.shape)}, expected {list(sizes_BHTS)}"
            continue
        q, k = layer_encoding.rotate(q, k, at)
        if q.shape[:3] != (rows, heads, tokens) or q.shape != k.shape:
            returned = f"{list(q.shape)} and {list(k.shape)}"
            return False, f"rotate returns {returned}, expected {list(sizes_BHTS[:3])} of each"
        bias = layer_encoding.bias(q, k, at)
        if bias is None:
            continue
        try:
            bias.expand(sizes_BHTS)
        except RuntimeError:
            return False, f"bias returns {list(bias.shape)}, which does not broadcast to {list(sizes_BHTS)}"
    return True, "they do"


@check(
    "finite",
    "finite at every length",
    "a square root or logarithm of a negative distance or of 0; a table that ends with training",
    gate=True,
)
def finite_at_every_length(subject: Subject) -> Measurement:
    model = subject.model()
    lengths = (1, 2, LENGTH, 8 * LENGTH)
    infinite = [n for n in lengths if not model(random_tokens(3, n)).isfinite().all()]
    if infinite:
        return False, f"NaN or infinite at {', '.join(map(str, infinite))} tokens"
    return True, f"finite at {', '.join(map(str, lengths))} tokens"


@check(
    "repeatable",
    "equal calls give equal results",
    "dropout that evaluation does not end, or another random draw",
    gate=True,
)
def equal_calls(subject: Subject) -> Measurement:
    tokens = random_tokens(2, LENGTH)
    with watch_global_generators() as sources:
        model = subject.model()  # draws from torch's generator, which is restored
        built_again = subject.model()
    if sources:
        return False, f"building it draws from or seeds {allowed(sources)}"
    with watch_global_generators() as sources:
        results = [model(tokens) for _ in range(4)]
    if sources:
        return False, f"a call draws from or seeds {allowed(sources)}"
    worst = max(relative_difference(result, results[0]) for result in results)
    if worst == 0 and relative_difference(built_again(tokens), results[0]) > 0:
        return False, "two instances built from the same seed give different results"
    return compare_difference(worst, 0.0)


@check(
    "hooks",
    "a hook is overridden",
    "the name of a hook is misspelt, or the class is meant for another library",
)
def hook_is_overridden(subject: Subject) -> Measurement:
    overridden, mistake = overridden_hooks(subject.encoding())
    if mistake:
        return False, mistake
    return True if overridden else None, f"it overrides {allowed(overridden)}"


@check("look_ahead", "no look-ahead", "something is computed from all keys before the mask is applied")
def no_look_ahead(subject: Subject) -> Measurement:
    if not subject.causal:
        return None, "an encoder looks ahead"
    model = subject.model()
    worst = 0.0
    for rows, cut in ((2, 7), (1, 300)):  # also on a long row
        cuts_B = torch.full((rows,), cut)
        worst = max(worst, look_ahead(model, random_tokens(rows, 2 * cut), cuts_B, VOCABULARY))
    return compare_difference(worst, 1e-6)


@check(
    "padding",
    "padding and batch composition change nothing",
    "the batch's length is read, not the row's (tokens_B)",
)
def padding_changes_nothing(subject: Subject) -> Measurement:
    """Compare rows on both sides of the training length, in one batch, with each row alone."""
    model = subject.model()
    lengths = (7, 40, LENGTH, LENGTH + 1, 45)
    tokens = random_tokens(len(lengths), max(lengths))
    batch = model(tokens, None, torch.tensor(lengths))
    worst = 0.0
    for row, length in enumerate(lengths):
        alone = model(tokens[row : row + 1, :length])
        worst = max(worst, relative_difference(batch[row : row + 1, :length], alone))
    return compare_difference(worst)


@check(
    "decoding",
    "decoding token by token agrees with teacher forcing",
    "tokens so far are counted (see at.tokens_B)",
)
def decoding_agrees(subject: Subject) -> Measurement:
    if not subject.causal:
        return None, "an encoder does not decode"
    model = subject.model()
    tokens = random_tokens(2, 2 * LENGTH)
    declared = torch.full((2,), 3 * LENGTH)
    forced = model(tokens, None, torch.full((2,), 2 * LENGTH), declared)
    decoded = [model(tokens[:, :read], None, None, declared)[:, -1] for read in (5, 2 * LENGTH - 1)]
    return compare_outputs(torch.stack(decoded), torch.stack([forced[:, 4], forced[:, -2]]))


@check(
    "gaps",
    "gaps, offsets and unsorted positions work",
    "positions are taken to be 0 .. n-1; use the ids in `at`",
)
def gaps_and_offsets_work(subject: Subject) -> Measurement:
    model = subject.model(train_positions=max(64, subject.positions))
    for ids in ([0, 5, 6, 20, 21, 50], [30, 31, 32, 33, 34, 35], [4, 0, 9, 2, 7, 1]):
        if not model(random_tokens(1, 6), torch.tensor([ids])).isfinite().all():
            return False, f"not finite at positions {ids}"
    return True, "finite with gaps, an offset and out of order"


@check(
    "fractions",
    "fractional positions work or are refused",
    "ids are cast to whole numbers; raise a ValueError that says 'fractional'",
)
def fractional_positions(subject: Subject) -> Measurement:
    model = subject.model(train_positions=max(64, subject.positions))
    generator = torch.Generator().manual_seed(0)
    # So many ids that some pair crosses the edge of any window, or of any other range of distances.
    ids = (60 * torch.rand(1, 24, generator=generator, dtype=torch.float64)).sort().values
    tokens = random_tokens(1, ids.shape[1])
    try:
        logits = model(tokens, ids)
    except ValueError as error:
        return "fraction" in str(error), f"refused: {error}"
    except (IndexError, RuntimeError, TypeError) as error:
        if INDEX_ERROR.search(str(error)):
            return True, "refused: they are used as indices"
        raise
    if not logits.isfinite().all():
        return False, "outputs are NaN or infinite"
    for rounded in (ids.floor(), ids.round(), ids.ceil()):
        if relative_difference(logits, model(tokens, rounded.long())) > FLOAT32_TOLERANCE:
            continue
        if _changes_at_most_steps(model, tokens, rounded.long()):
            return False, "fractional positions are silently rounded"
        return True, "only steps of many positions change the result"
    return True, "they work"


def _changes_at_most_steps(model: Transformer, tokens: Tensor, ids: Tensor) -> bool:
    """Return whether moving the last token on by 1, 2, ... positions changes the logits at most of the steps.

    Steps of many positions with the same factor, as in Llama 4, may be defined by rounding.
    """
    moved = ids.repeat(STEPS, 1)
    moved[:, -1] += torch.arange(STEPS)
    logits = model(tokens.expand(STEPS, -1), moved)
    changes = [relative_difference(after, before) > FLOAT32_TOLERANCE for before, after in pairwise(logits)]
    return sum(changes) > len(changes) / 2


@check("order", "in an encoder only the ids tell order", "indices in memory are read instead of position ids")
def only_ids_tell_order(subject: Subject) -> Measurement:
    if subject.causal:
        return None, "in a decoder the mask follows the order in memory"
    model = subject.model()
    tokens = random_tokens(2, LENGTH)
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(1))
    permuted = model(tokens[:, order], torch.arange(LENGTH)[None, order])
    holds, measured = compare_outputs(permuted, model(tokens)[:, order])
    if holds is False and any(encoding.reads_row for encoding in model.encodings):
        return None, f"{measured}; the class says so (reads_row)"
    return holds, measured


@check(
    "invariance",
    "invariance as stated",
    "ids are ignored, or an encoding called relative depends on absolute ones",
)
def invariance_as_stated(subject: Subject) -> Measurement:
    promise = subject.invariant_to
    model = subject.model()
    tokens = random_tokens(2, LENGTH)
    ids_1T = torch.arange(LENGTH)[None]
    expected = model(tokens, ids_1T)

    def change(ids: Tensor) -> float:
        return relative_difference(model(tokens, ids), expected)

    # Also far past the training range, since FIRE, for example, is shift-invariant within it.
    by_shift = max(change(ids_1T + 3), change(ids_1T + 33))
    by_other_ids = change(torch.tensor([[0, 5, 6, 7, 9, 13, 20, 21, 40, 41, 60, 64]]))
    if promise == "nothing":  # a large chunk has its border far away
        try:
            by_shift = max(by_shift, change(ids_1T + CHUNK_BORDER - LENGTH // 2))
        except (IndexError, RuntimeError, ValueError):  # a table ends before it
            by_shift = float("inf")
    measured = f"a common shift changes {by_shift:.1e}, other ids {by_other_ids:.1e}"
    ignores_shift = by_shift <= FLOAT32_TOLERANCE
    ignores_ids = by_other_ids <= FLOAT32_TOLERANCE
    if promise is None:
        strongest = "ids" if ignores_ids else "shift" if ignores_shift else "nothing"
        return None, f"{measured}; invariant_to is not set, {strongest!r} would hold"
    holds = {
        "nothing": not ignores_shift,  # other ids may stay in a chunk
        "shift": ignores_shift and not ignores_ids,
        "ids": ignores_shift and ignores_ids,
    }
    return holds[promise], f"{measured}; stated: invariant to {promise}"


@check(
    "far",
    "far positions stay exact",
    "angles or distances in float32 or less (take them in float64 and cast), or a table that ends",
)
def far_positions_exact(subject: Subject) -> Measurement:
    model = subject.model()
    tokens = random_tokens(2, LENGTH)
    ids_1T = torch.arange(LENGTH)[None]
    not_invariant = None, "only for encodings that a common shift leaves alone"
    if subject.invariant_to == "nothing":
        return not_invariant
    expected = model(tokens, ids_1T)
    shifts_N1 = torch.arange(1, NEAR_OFFSETS)[:, None]  # as many as the columns of most grids
    shifted = model(tokens[:1].expand(len(shifts_N1), -1), ids_1T + shifts_N1)
    if relative_difference(shifted, expected[:1].expand_as(shifted)) > FAR_ROUNDING:
        return not_invariant
    # These positions cross powers of two and round numbers, where tables may wrap.
    first_difference = None
    for boundary, tolerance in FAR_BOUNDARIES.items():
        offset = boundary - LENGTH // 2
        try:
            difference = relative_difference(model(tokens, ids_1T + offset), expected)
            if difference > tolerance:  # a chunk may end there
                beyond_chunk = _offset_with_equal_masks(subject, ids_1T, offset)
                if beyond_chunk is None:
                    continue
                offset = beyond_chunk
                difference = relative_difference(model(tokens, ids_1T + offset), expected)
        except (IndexError, RuntimeError, ValueError):  # raised at the end of a table
            if boundary == DISTANT_POSITION:
                raise
            break
        if difference > tolerance:
            return False, f"at positions from {offset} on, {compare_difference(difference, tolerance)[1]}"
        first_difference = difference if first_difference is None else first_difference
    if first_difference is None:
        return None, "queries see other keys at far positions"
    return compare_difference(first_difference, FARTHER_ROUNDING)


@torch.no_grad()
def _offset_with_equal_masks(subject: Subject, ids_1T: Tensor, start: int) -> int | None:
    """Return the first offset from ``start`` on at which queries see the same keys, if it is near."""
    encoding = subject.encoding()
    content = draw_content(encoding.shape, ids_1T)

    def masks(ids: Tensor) -> Iterator[Tensor]:
        inputs = replace(content, positions_BT=ids)
        for layer in range(encoding.shape.num_layers):
            scores = attention_scores(encoding, inputs, layer)
            yield scores == 0 if makes_weights(encoding.for_layer(layer)) else is_masked(scores)

    for offset in range(start, start + NEAR_OFFSETS):
        if all(map(torch.equal, masks(ids_1T + offset), masks(ids_1T))):
            return offset
    return None


@check("autocast", "autocast loses nothing", "positions or biases are cast to the dtype of q")
def autocast_loses_nothing(subject: Subject) -> Measurement:
    """Check that autocast to bfloat16 does not round positions, embeddings or biases."""
    model = subject.model(train_positions=max(3000, subject.positions))
    ids = torch.arange(LATE, LATE + LENGTH)[None]
    tokens = random_tokens(1, LENGTH)
    exact_embeddings = model.embed(tokens, ids)
    exact_logits = model(tokens, ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embeddings = model.embed(tokens, ids)
        logits = model(tokens, ids)
    lost = relative_difference(embeddings, exact_embeddings)
    off = relative_difference(logits, exact_logits)
    measured = f"embeddings differ by {lost:.1e}, outputs by {off:.1e} of the largest"
    return lost == 0 and embeddings.dtype == torch.float32 and off < CAST, measured


@check(
    "gradient",
    "gradient reaches every parameter",
    "a parameter is detached or unused (an encoding never applied)",
)
def gradient_reaches_parameters(subject: Subject) -> Measurement:
    model = subject.model()
    parameters = trainable(model.encodings)
    if not parameters:
        return None, "it has none"
    model(random_tokens(4, LENGTH)).square().sum().backward()
    without = [name for name, p in parameters.items() if p.grad is None or not p.grad.abs().sum() > 0]
    return not without, f"none reaches {', '.join(without)}" if without else f"it reaches {len(parameters)}"


@check(
    "vectors",
    "every position has its own vector, and trains it",
    "padding_idx of nn.Embedding (its row stays 0); rows never written",
)
def positions_have_vectors(subject: Subject) -> Measurement:
    encoding = subject.encoding(train_positions=LENGTH)
    if not encoding.acts_at_embedding:
        return None, "only for vectors at the embedding"
    vectors_TD = vectors_at(encoding, torch.arange(LENGTH))
    zero_positions = [position for position in range(LENGTH) if not vectors_TD[position].any()]
    if 0 < len(zero_positions) < LENGTH and trainable(encoding):
        listed = ", ".join(map(str, zero_positions))
        return False, f"the vector of position {listed} starts at 0, others do not"
    num_distinct = len(vectors_TD.unique(dim=0))
    if num_distinct == 1:
        return None, "it adds no vector of positions"
    if num_distinct < LENGTH:
        return False, f"{LENGTH} positions have {num_distinct} different vectors"
    if not vectors_TD.requires_grad:
        return True, "every position has a vector of its own"
    parameters = list(trainable(encoding).values())
    untrained = []
    for position, vector_D in enumerate(vectors_TD):
        gradients = torch.autograd.grad(vector_D.sum(), parameters, retain_graph=True, allow_unused=True)
        if not any(gradient is not None and gradient.any() for gradient in gradients):
            untrained.append(str(position))
    if 0 < len(untrained) < LENGTH:
        return False, f"no gradient reaches the vector of position {', '.join(untrained)}"
    return True, "the vector of every position"


@check(
    "odd_widths",
    "odd widths work or are refused",
    "cosines of one column too many; take d_model // 2, or raise ValueError",
)
def odd_widths(subject: Subject) -> Measurement:
    if not subject.encoding().acts_at_embedding:
        return None, "only for vectors at the embedding"
    if "d_model" in subject.sizes:
        return None, "the width is given"
    try:
        vectors_TD = vectors_at(subject.encoding(d_model=15, num_heads=1), torch.arange(LENGTH))
    except Exception as error:
        cause = error.__cause__ or error  # `Component.build` wraps errors of the class
        if isinstance(cause, ValueError | AssertionError | NotImplementedError):
            return True, f"refused: {cause}"
        if "size of tensor a" in str(cause):  # the vectors are not as wide as the tokens
            return None, f"vectors have an even width: {cause}"
        return False, f"d_model=15: {type(cause).__name__}: {cause}"
    return bool(vectors_TD.isfinite().all()), "they work"


@check("checkpoint", "a checkpoint runs at eight times its length", "a buffer of the length of a sequence")
def checkpoint_runs_longer(subject: Subject) -> Measurement:
    trained = subject.model()
    loaded = subject.model()
    tokens = random_tokens(2, 8 * LENGTH)
    sizes = {key: value.shape for key, value in trained.state_dict().items()}
    expected = trained(tokens)  # must not add a cache to the state
    if {key: value.shape for key, value in trained.state_dict().items()} != sizes:
        return False, "the state has grown with use"
    nn.init.normal_(loaded.embedding.weight)
    loaded.load_state_dict(trained.state_dict())
    return compare_outputs(loaded(tokens), expected)


@check("instances", "instances do not touch each other", "a cache on the class or module")
def instances_are_separate(subject: Subject) -> Measurement:
    model = subject.model()
    tokens = random_tokens(2, 2 * LENGTH)
    before = model(tokens)
    positions = max(30, subject.positions)
    others = [
        subject.model(d_model=64, train_length=30, train_positions=positions),
        subject.model(num_heads=2),
    ]
    # An encoding that reads the number of tokens so far, which another check reports, differs in every model.
    reads_length_so_far = _difference_if_longer(model, tokens, len(others) + 1) > FLOAT32_TOLERANCE
    for more, other in enumerate(others, start=1):
        # A cache of earlier models has no entry for another length, whose first tokens get the same result.
        difference = _difference_if_longer(other, tokens, more)
        if subject.causal and difference > FLOAT32_TOLERANCE and not reads_length_so_far:
            return compare_difference(difference)
    return compare_outputs(model(tokens), before, 0)


def _difference_if_longer(model: Transformer, tokens: Tensor, more: int) -> float:
    """Return the difference at the tokens when more follow, with the same declared length."""
    declared = torch.full((len(tokens),), 3 * LENGTH)
    longer = model(torch.cat([tokens, tokens[:, :more]], dim=1), None, None, declared)[:, :-more]
    return relative_difference(model(tokens, None, None, declared), longer)


@check("modes", "training and evaluation mode agree", "dropout or noise in the encoding")
def modes_agree(subject: Subject) -> Measurement:
    model = subject.model()
    tokens = random_tokens(2, LENGTH)
    with torch.no_grad():
        return compare_outputs(model.train()(tokens), model.eval()(tokens), 0)


@check(
    "attention",
    "attention implementations agree",
    "a bias that needs all queries at once (see at.first_query)",
)
def implementations_agree(subject: Subject) -> Measurement:
    model = subject.model()
    worst = 0.0
    for length in (5, 300):
        tokens = random_tokens(2, length)
        lengths = torch.tensor([length, length - 2])
        results = {}
        block_logits = max(1, 2 * model.shape.num_heads * length * (length // 3))  # a third of the queries
        for implementation in ("eager", "sdpa", "blocked"):
            for layer in model.layers:
                layer.attention.implementation = implementation  # type: ignore[union-attr]
            with torch.no_grad(), patch.object(attention, "BLOCK_LOGITS", block_logits):
                logits = model(tokens, None, lengths)
            results[implementation] = logits[torch.arange(length) < lengths[:, None]]
        for implementation in ("sdpa", "blocked"):
            worst = max(worst, relative_difference(results[implementation], results["eager"]))
    return compare_difference(worst, 2 * FLOAT32_TOLERANCE)


CHECKS = MODEL_CHECKS | ATTENTION_CHECKS
