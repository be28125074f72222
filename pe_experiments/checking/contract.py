"""The contract of an encoding as checks, of a small transformer with the encoding in it."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor, nn

from pe_experiments.checking.check import Checks, Measurement
from pe_experiments.checking.side_effects import watch_random_draws
from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.base import acts_at_embedding
from pe_experiments.models import Transformer, attention
from pe_experiments.models.attention import makes_weights
from pe_experiments.models.attention_scores import Inputs, attention_scores
from pe_experiments.models.backbone import MakeEncoding
from pe_experiments.terminal.errors import allowed

VOCABULARY = 20
LENGTH = 12  # of training
ROUNDING = 1e-5  # of the largest output, in float32
FAR = 16_384  # ends of cached tables lie before it, or far beyond
FAR_ROUNDING = 1e-4  # a bias of float32 rounds off 1e-5 there; in bfloat16 positions are off by up to 64
FARTHER = (100_000, 131_072)  # round numbers and powers of two, at which tables wrap
FARTHER_ROUNDING = 1e-3
HOOKS = ("embed", "embed_sequence", "rotate", "bias", "weights", "for_layer")
WELL_SHAPED = "hooks return tensors of the right shape"
FINITE = "finite at every length"  # without it, the others have nothing to compare
REPEATABLE = "equal calls give equal results"  # without it, the others, which compare calls, tell nothing
# Said by torch of fractional indices.
INDEX_ERROR = re.compile(r"indices|int32/int64|Long|integer", re.IGNORECASE)
CHECKS = Checks()
check = CHECKS.add
Part = TypeVar("Part", bound=nn.Module)


def small_shape(causal: bool = True, **changes: int) -> ModelShape:
    """A model to try an encoding in: 32 wide, 4 heads, 2 layers, trained on 12 tokens."""
    sizes = {"d_model": 32, "num_heads": 4, "num_layers": 2, "train_length": LENGTH}
    return ModelShape(causal=causal, **{"train_positions": LENGTH, **sizes, **changes})


def build(make: Callable[[ModelShape], Part], shape: ModelShape) -> Part:
    """An instance, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # `torch.manual_seed` also formats a traceback for each device
        return make(shape)


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, by name; a constant may be stored as a frozen one."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def stirred(part: Part, by: float = 0.3) -> Part:
    """The module with noise in every trainable parameter: one that starts at 0 would have no effect."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in trainable(part).values():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return part


class Subject(NamedTuple):
    """An encoding to check, built by ``make`` from a shape, in a decoder (``causal``) or in an encoder."""

    make: MakeEncoding
    causal: bool = True

    def encoding(self, **changes: int) -> PositionalEncoding:
        return build(self.make, small_shape(self.causal, **changes))

    def model(self, **changes: int) -> Transformer:
        """An untrained model with the encoding in it, which is `stirred`."""
        make = partial(Transformer, VOCABULARY, make_encoding=self.make, initialisation="pytorch")
        model = build(make, small_shape(self.causal, **changes)).eval()
        stirred(model.encodings)
        return model

    @property
    def invariant_to(self) -> str | None:
        encoding = self.encoding()
        return "ids" if type(encoding) is PositionalEncoding else encoding.invariant_to


def random_tokens(rows: int, length: int) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(length))


def relative_difference(got: Tensor, expected: Tensor) -> float:
    """The largest difference as a share of the largest value; infinite where either is not finite."""
    if not (got.isfinite().all() and expected.isfinite().all()):
        return float("inf")
    got, expected = got.detach().double(), expected.detach().double()
    difference, largest = float((got - expected).abs().max()), float(expected.abs().max())
    if largest == 0:
        return 0.0 if difference == 0 else float("inf")
    return difference / largest


def within(difference: float, tolerance: float = ROUNDING) -> Measurement:
    if difference == float("inf"):
        return False, "outputs are NaN or infinite"
    return difference <= tolerance, f"outputs differ by {difference:.1e} of the largest"


def equal(got: Tensor, expected: Tensor, tolerance: float = ROUNDING) -> Measurement:
    return within(relative_difference(got, expected), tolerance)


@check(WELL_SHAPED, "a dimension is missing (B, H, T, S), or the sizes of one call are kept for the next")
@torch.no_grad()
def hooks_return_right_shapes(subject: Subject) -> Measurement:
    encoding = subject.encoding()
    shape, rows = encoding.shape, 2
    for tokens in (LENGTH, 5):
        ids_BT = torch.arange(tokens)[None].expand(rows, -1)
        hidden_BTD = torch.randn(rows, tokens, shape.d_model)
        embedded = encoding.embed_sequence(hidden_BTD[..., encoding.position_width :], ids_BT, None)
        if embedded.shape != hidden_BTD.shape:
            return False, f"embed returns {list(embedded.shape)}, expected {list(hidden_BTD.shape)}"
        q, k = torch.randn(2, rows, shape.num_heads, tokens, shape.head_dim)
        visible_BTS = torch.ones(1, tokens, tokens, dtype=torch.bool).tril()
        at = AttentionContext(ids_BT, ids_BT, visible_BTS, None, hidden_BTD)
        part, pairs = encoding.for_layer(0), (rows, shape.num_heads, tokens, tokens)
        if makes_weights(part):
            weights = part.weights(q, k, at)
            if weights.shape != pairs:
                return False, f"weights returns {list(weights.shape)}, expected {list(pairs)}"
            continue
        q, k = part.rotate(q, k, at)
        if q.shape[:3] != (rows, shape.num_heads, tokens) or q.shape != k.shape:
            return (
                False,
                f"rotate returns {list(q.shape)} and {list(k.shape)}, expected {list(pairs[:3])} of each",
            )
        bias = part.bias(q, k, at)
        if bias is not None and not _broadcasts(bias, pairs):
            return False, f"bias returns {list(bias.shape)}, which does not broadcast to {list(pairs)}"
    return True, "they do"


def _broadcasts(tensor: Tensor, sizes: tuple[int, ...]) -> bool:
    try:
        return torch.broadcast_shapes(tensor.shape, sizes) == sizes
    except RuntimeError:
        return False


@check(FINITE, "a square root or logarithm of a negative distance or of 0; a table that ends with training")
def finite_at_every_length(subject: Subject) -> Measurement:
    model, lengths = subject.model(), (1, 2, LENGTH, 8 * LENGTH)
    infinite = [n for n in lengths if not model(random_tokens(3, n)).isfinite().all()]
    if not infinite:
        return True, f"finite at {', '.join(map(str, lengths))} tokens"
    return False, f"NaN or infinite at {', '.join(map(str, infinite))} tokens{_first_infinite(subject)}"


@torch.no_grad()
def _first_infinite(subject: Subject) -> str:
    """The hook and the place at which a first value is not finite, in words."""
    encoding = stirred(subject.encoding())
    ids_T = torch.arange(LENGTH)
    x_BTD = torch.randn(1, LENGTH, encoding.shape.d_model - encoding.position_width)
    if not encoding.embed_sequence(x_BTD, ids_T[None], None).isfinite().all():
        return ", first in embed"
    heads = (1, encoding.shape.num_heads, LENGTH, encoding.shape.head_dim)
    hidden_BTD = torch.randn(1, LENGTH, encoding.shape.d_model)
    inputs = Inputs(torch.randn(heads), torch.randn(heads), hidden_BTD, ids_T[None])
    scores_HTS = attention_scores(encoding, inputs)[0]
    visible_TS = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    if subject.causal:
        visible_TS = visible_TS.tril()
    wrong_HTS = visible_TS & (scores_HTS.isnan() | (scores_HTS == torch.inf))
    if not wrong_HTS.any():
        return ""
    head, query, key = wrong_HTS.nonzero()[0].tolist()
    return f", first in the logit of head {head} for the query at position {query} and the key at {key}"


@check(REPEATABLE, "dropout, or a random draw, that evaluation does not end")
def equal_calls(subject: Subject) -> Measurement:
    model, tokens = subject.model(), random_tokens(2, LENGTH)
    with watch_random_draws() as touched:
        results = [model(tokens) for _ in range(4)]
    if touched:
        return False, f"a call draws from or seeds {allowed(touched)}"
    return within(max(relative_difference(result, results[0]) for result in results), 0.0)


@check("a hook is overridden", "the name of a hook is misspelt, or the class is meant for another library")
def hook_is_overridden(subject: Subject) -> Measurement:
    classes = [cls for cls in type(subject.encoding()).__mro__ if cls not in PositionalEncoding.__mro__]
    members = {name: value for cls in classes for name, value in vars(cls).items()}
    methods = sorted(name for name, value in members.items() if callable(value) and name[:2] != "__")
    overridden = [name for name in methods if name in HOOKS]
    if overridden or not methods:
        return True if overridden else None, f"it overrides {allowed(overridden)}"
    for name in methods:
        for hook in difflib.get_close_matches(name, HOOKS, n=1, cutoff=0.7):
            return False, f"{name} overrides no hook; nearest: {hook}"
    return False, f"{allowed(methods)} overrides no hook; hooks are {allowed(HOOKS)}"


@check("no look-ahead", "something is computed from all keys before the mask is applied")
def no_look_ahead(subject: Subject) -> Measurement:
    if not subject.causal:
        return None, "an encoder looks ahead"
    model, worst = subject.model(), 0.0
    for cut in (7, 300):  # what only long rows show too
        before = random_tokens(2, 2 * cut)
        after = torch.cat([before[:, :cut], (before[:, cut:] + 1) % VOCABULARY], dim=1)
        worst = max(worst, relative_difference(model(after)[:, :cut], model(before)[:, :cut]))
    return within(worst, 1e-6)


@check("padding and batch composition change nothing", "the batch's length is read, not the row's (tokens_B)")
def padding_changes_nothing(subject: Subject) -> Measurement:
    model, worst = subject.model(), 0.0
    for length in (7, 40):
        short, long = random_tokens(2, length), random_tokens(2, length + 5)
        padded = torch.cat([short, torch.zeros(2, 5, dtype=torch.long)], dim=1)
        together = model(torch.cat([padded, long]), None, torch.tensor([length] * 2 + [length + 5] * 2))
        worst = max(
            worst,
            relative_difference(together[:2, :length], model(short)),
            relative_difference(together[2:], model(long)),
        )
    return within(worst)


@check("decoding token by token agrees with teacher forcing", "tokens so far are counted (see at.tokens_B)")
def decoding_agrees(subject: Subject) -> Measurement:
    if not subject.causal:
        return None, "an encoder does not decode"
    model, tokens, declared = subject.model(), random_tokens(2, 2 * LENGTH), torch.full((2,), 3 * LENGTH)
    at_once = model(tokens, None, torch.full((2,), 2 * LENGTH), declared)
    so_far = [model(tokens[:, :read], None, None, declared)[:, -1] for read in (5, 2 * LENGTH - 1)]
    return equal(torch.stack(so_far), torch.stack([at_once[:, 4], at_once[:, -2]]))


@check("gaps, offsets and unsorted positions work", "positions are taken to be 0 .. n-1; use the ids in `at`")
def gaps_and_offsets_work(subject: Subject) -> Measurement:
    model = subject.model(train_positions=64)
    for ids in ([0, 5, 6, 20, 21, 50], [30, 31, 32, 33, 34, 35], [4, 0, 9, 2, 7, 1]):
        if not model(random_tokens(1, 6), torch.tensor([ids])).isfinite().all():
            return False, f"not finite at positions {ids}"
    return True, "finite with gaps, an offset and out of order"


@check(
    "fractional positions work or are refused",
    "ids are cast to whole numbers; raise a ValueError that says 'fractional'",
)
def fractional_positions(subject: Subject) -> Measurement:
    model, tokens = subject.model(), random_tokens(1, 6)
    ids = torch.tensor([[0.0, 0.5, 1.5, 3.0, 3.4, 6.2]], dtype=torch.float64)
    try:
        logits = model(tokens, ids)
    except ValueError as error:
        return "fraction" in str(error), f"refused: {error}"
    except (IndexError, RuntimeError, TypeError) as error:
        if INDEX_ERROR.search(str(error)):
            return True, "refused: they are used as indices"
        raise
    whole = [model(tokens, rounded.long()) for rounded in (ids.floor(), ids.round(), ids.ceil())]
    read = relative_difference(model(tokens, torch.tensor([[0, 9, 11, 30, 31, 60]])), whole[0]) > ROUNDING
    if read and min(relative_difference(logits, other) for other in whole) < ROUNDING:
        return False, "fractional positions are silently rounded"
    return bool(logits.isfinite().all()), "they work" if read else "ids are not read"


@check("rows may share their positions", "a batch dimension of 1 is not broadcast")
def rows_share_positions(subject: Subject) -> Measurement:
    model, tokens, shared = subject.model(), random_tokens(3, LENGTH), torch.arange(LENGTH)[None]
    return equal(model(tokens, shared.expand(3, -1)), model(tokens, shared), 1e-6)


@check("in an encoder only the ids tell order", "indices in memory are read instead of position ids")
def only_ids_tell_order(subject: Subject) -> Measurement:
    if subject.causal:
        return None, "in a decoder the mask follows the order in memory"
    model, tokens = subject.model(), random_tokens(2, LENGTH)
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(1))
    together = model(tokens[:, order], torch.arange(LENGTH)[None, order])
    return equal(together, model(tokens)[:, order])


@check("invariance as stated", "ids are ignored, or an encoding called relative depends on absolute ones")
def invariance_as_stated(subject: Subject) -> Measurement:
    promise, model, tokens = subject.invariant_to, subject.model(), random_tokens(2, LENGTH)
    here = torch.arange(LENGTH)[None]
    others = torch.tensor([[0, 5, 6, 7, 9, 13, 20, 21, 40, 41, 60, 64]])
    # Far past the training range too: FIRE, for one, is shift-invariant up to there.
    moved = {"shift": (here + 3, here + 33), "ids": (others,)}
    expected = model(tokens, here)
    changes = {
        name: max(relative_difference(model(tokens, ids), expected) for ids in moved[name]) for name in moved
    }
    measured = f"a common shift changes {changes['shift']:.1e}, other ids {changes['ids']:.1e}"
    if promise is None:
        return None, f"{measured} (no invariant_to is stated)"
    invariant = {"nothing": set(), "shift": {"shift"}, "ids": {"shift", "ids"}}[promise]
    holds = {name for name, change in changes.items() if change <= ROUNDING} == invariant
    return holds, f"{measured}; stated: invariant to {promise}"


@check(
    "far positions stay exact",
    "angles or distances in float32 or less (take them in float64 and cast), or a table that ends",
)
def far_positions_exact(subject: Subject) -> Measurement:
    model, tokens, here = subject.model(), random_tokens(2, LENGTH), torch.arange(LENGTH)[None]
    if (
        subject.invariant_to == "nothing"
        or relative_difference(model(tokens, here + 3), model(tokens, here)) > ROUNDING
    ):
        return None, "only for encodings that a common shift leaves alone"
    expected = model(tokens, here)
    # Windows across powers of two and round numbers, where a table may wrap.
    worst = relative_difference(model(tokens, here + FAR - 6), expected)
    if worst > FAR_ROUNDING:
        return False, f"at positions from {FAR - 6} on, {within(worst, FAR_ROUNDING)[1]}"
    for boundary in FARTHER:
        try:
            farther = relative_difference(model(tokens, here + boundary - 6), expected)
        except (IndexError, RuntimeError, ValueError):  # a table that ends says so
            break
        if farther > FARTHER_ROUNDING:
            return False, f"at positions from {boundary - 6} on, {within(farther, 0)[1]}"
    return within(worst, FAR_ROUNDING)


@check("autocast loses nothing", "positions or biases are cast to the dtype of q")
def autocast_loses_nothing(subject: Subject) -> Measurement:
    """Under bfloat16, which cannot hold whole numbers above 256, far positions stay apart."""
    model, ids = subject.model(train_positions=3000), torch.arange(2000, 2000 + LENGTH)[None]
    tokens = random_tokens(1, LENGTH)
    exact, exact_logits = model.embed(tokens, ids), model(tokens, ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded, logits = model.embed(tokens, ids), model(tokens, ids)
    lost, off = relative_difference(rounded, exact), relative_difference(logits, exact_logits)
    measured = f"embeddings differ by {lost:.1e}, outputs by {off:.1e} of the largest"
    return lost == 0 and rounded.dtype == torch.float32 and off < 0.05, measured


@check("gradient reaches every parameter", "a parameter is detached or unused (an encoding never applied)")
def gradient_reaches_parameters(subject: Subject) -> Measurement:
    model = subject.model()
    parameters = trainable(model.encodings)
    if not parameters:
        return None, "it has none"
    model(random_tokens(4, LENGTH)).square().sum().backward()
    without = [name for name, p in parameters.items() if p.grad is None or not p.grad.abs().sum() > 0]
    return not without, f"none reaches {', '.join(without)}" if without else f"it reaches {len(parameters)}"


@check(
    "every position has its own vector, and trains it",
    "padding_idx of nn.Embedding (its row stays 0); rows never written",
)
def positions_have_vectors(subject: Subject) -> Measurement:
    encoding = subject.encoding(train_positions=LENGTH)
    if not acts_at_embedding(encoding):
        return None, "only for vectors at the embedding"
    width = encoding.shape.d_model - encoding.position_width
    ids_1T = torch.arange(LENGTH)[None]
    vectors_TD = encoding.embed_sequence(torch.zeros(1, LENGTH, width), ids_1T, None)[0]
    zeros = [p for p in range(LENGTH) if not vectors_TD[p].any()]
    if 0 < len(zeros) < LENGTH and trainable(encoding):
        return False, f"the vector of position {', '.join(map(str, zeros))} starts at 0, others do not"
    distinct = len(vectors_TD.unique(dim=0))
    if 1 < distinct < LENGTH:
        return False, f"{LENGTH} positions have {distinct} different vectors"
    if distinct == 1:
        return None, "it adds no vector of positions"
    if not vectors_TD.requires_grad:
        return True, "every position has a vector of its own"
    untrained = []
    for position in range(LENGTH):
        parameters = list(trainable(encoding).values())
        gradients = torch.autograd.grad(
            vectors_TD[position].sum(), parameters, retain_graph=True, allow_unused=True
        )
        if not any(gradient is not None and gradient.any() for gradient in gradients):
            untrained.append(position)
    if untrained and len(untrained) < LENGTH:
        return False, f"no gradient reaches the vector of position {', '.join(map(str, untrained))}"
    return True, "the vector of every position"


@check(
    "odd widths work or are refused", "cosines of one column too many; take d_model // 2, or raise ValueError"
)
def odd_widths(subject: Subject) -> Measurement:
    if not acts_at_embedding(subject.encoding()):
        return None, "only for vectors at the embedding"
    try:
        encoding = subject.encoding(d_model=15, num_heads=1)
        x_BTD = torch.zeros(1, LENGTH, 15 - encoding.position_width)
        vectors = encoding.embed_sequence(x_BTD, torch.arange(LENGTH)[None], None)
    except Exception as error:
        cause = error.__cause__ or error  # where it is built, errors have our words around them
        if isinstance(cause, ValueError | AssertionError | NotImplementedError):
            return True, f"refused: {cause}"
        if "size of tensor a" in str(cause):  # they are made, of another width than the tokens
            return None, f"vectors have an even width: {cause}"
        return False, f"d_model=15: {type(cause).__name__}: {cause}"
    return bool(vectors.isfinite().all()), "they work"


@check("a checkpoint runs at eight times its length", "a buffer of the length of a sequence")
def checkpoint_runs_longer(subject: Subject) -> Measurement:
    trained, other, tokens = subject.model(), subject.model(), random_tokens(2, 8 * LENGTH)
    sizes = {key: value.shape for key, value in trained.state_dict().items()}
    expected = trained(tokens)  # a cache must not enter the state
    if {key: value.shape for key, value in trained.state_dict().items()} != sizes:
        return False, "the state has grown with use"
    nn.init.normal_(other.embedding.weight)
    other.load_state_dict(trained.state_dict())
    return equal(other(tokens), expected)


@check("instances do not touch each other", "a cache on the class or module")
def instances_are_separate(subject: Subject) -> Measurement:
    first, tokens = subject.model(), random_tokens(2, 2 * LENGTH)
    before = first(tokens)
    subject.model(d_model=64, train_length=30, train_positions=30)(tokens)
    return equal(first(tokens), before, 0)


@check("copies are equal", "a cache that is not copied, or randomness outside the seed")
def copies_are_equal(subject: Subject) -> Measurement:
    model, tokens = subject.model(), random_tokens(2, 30)
    model(random_tokens(1, 5))
    return equal(copy.deepcopy(model)(tokens), model(tokens), 0)


@check("training and evaluation mode agree", "dropout or noise in the encoding")
def modes_agree(subject: Subject) -> Measurement:
    model, tokens = subject.model(), random_tokens(2, LENGTH)
    with torch.no_grad():
        return equal(model.train()(tokens), model.eval()(tokens), 0)


@check("attention implementations agree", "a bias that needs all queries at once (see at.first_query)")
def implementations_agree(subject: Subject) -> Measurement:
    model, worst = subject.model(), 0.0
    for length in (5, 300):
        tokens, lengths, results = random_tokens(2, length), torch.tensor([length, length - 2]), {}
        # Blocks of about a third of the queries each.
        rows = max(1, 2 * model.shape.num_heads * length * (length // 3))
        for implementation in ("eager", "sdpa", "blocked"):
            for layer in model.layers:
                layer.attention.implementation = implementation  # type: ignore[union-attr]
            with torch.no_grad(), patch.object(attention, "BLOCK_LOGITS", rows):
                logits = model(tokens, None, lengths)
            results[implementation] = logits[torch.arange(length) < lengths[:, None]]
        worst = max(
            worst, *(relative_difference(results[name], results["eager"]) for name in ("sdpa", "blocked"))
        )
    return within(worst, 2 * ROUNDING)
