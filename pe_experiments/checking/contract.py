"""The contract of a scheme as checks, of a small transformer with the scheme in it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor, nn

from pe_experiments.checking.check import Check, Measurement, listed
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.models import Transformer, attention
from pe_experiments.models.backbone import MakeEncoding
from pe_experiments.terminal.errors import allowed
from pe_experiments.training.preflight import global_randomness

VOCABULARY = 20
LENGTH = 12  # of training
ROUNDING = 1e-5  # of the largest output, in float32
FAR = 16_384  # the longest that is evaluated; positions in bfloat16 are off by up to 64 there
REPEATABLE = "equal calls give equal results"  # without it the others, which compare calls, tell nothing
CHECKS: dict[str, Check] = {}
check = listed(CHECKS)
Part = TypeVar("Part", bound=nn.Module)


def small_shape(causal: bool = True, **changes: int) -> ModelShape:
    """A model to try a scheme in: 32 wide, 4 heads, 2 layers, trained on 12 tokens."""
    sizes = {"d_model": 32, "num_heads": 4, "num_layers": 2, "train_length": LENGTH}
    return ModelShape(causal=causal, **{"train_positions": LENGTH, **sizes, **changes})


def build(make: Callable[[ModelShape], Part], shape: ModelShape) -> Part:
    """An instance, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
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
    """A scheme to check, built by ``make`` from a shape, in a decoder (``causal``) or in an encoder."""

    make: MakeEncoding
    causal: bool = True

    def scheme(self, **changes: int) -> PositionalEncoding:
        return build(self.make, small_shape(self.causal, **changes))

    def model(self, **changes: int) -> Transformer:
        """An untrained model with the scheme in it, which is `stirred`."""
        make = partial(Transformer, VOCABULARY, make_encoding=self.make, initialisation="pytorch")
        model = build(make, small_shape(self.causal, **changes)).eval()
        stirred(model.encodings)
        return model

    @property
    def invariant_to(self) -> str | None:
        scheme = self.scheme()
        return "ids" if type(scheme) is PositionalEncoding else scheme.invariant_to


def random_tokens(rows: int, length: int) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(length))


def apart(got: Tensor, expected: Tensor) -> float:
    """The largest difference as a share of the largest value; nan and infinity are infinitely apart."""
    if not (got.isfinite().all() and expected.isfinite().all()):
        return float("inf")
    got, expected = got.detach().double(), expected.detach().double()
    difference, largest = float((got - expected).abs().max()), float(expected.abs().max())
    return difference / largest if largest else 0.0 if difference == 0 else float("inf")


def within(difference: float, tolerance: float = ROUNDING) -> Measurement:
    return difference <= tolerance, f"outputs differ by {difference:.1e} of the largest"


def equal(got: Tensor, expected: Tensor, tolerance: float = ROUNDING) -> Measurement:
    return within(apart(got, expected), tolerance)


@check(REPEATABLE, "dropout, or a random draw, that evaluation does not end")
def _(subject: Subject) -> Measurement:
    model, tokens = subject.model(), random_tokens(2, LENGTH)
    with global_randomness() as touched:
        once, again = model(tokens), model(tokens)
    if touched:
        return False, f"a call draws from or seeds {allowed(touched)}"
    return equal(once, again, 0.0)


@check("finite at every length", "a table or a cache that ends with training")
def _(subject: Subject) -> Measurement:
    model, lengths = subject.model(), (1, 2, LENGTH, 8 * LENGTH)
    bad = [n for n in lengths if not model(random_tokens(3, n)).isfinite().all()]
    return not bad, f"{'not ' * bool(bad)}finite at {', '.join(map(str, bad or lengths))} tokens"


@check("no look-ahead", "something is computed from all keys before the mask is applied")
def _(subject: Subject) -> Measurement:
    if not subject.causal:
        return None, "an encoder looks ahead"
    model, worst = subject.model(), 0.0
    for cut in (7, 300):  # what only long rows show too
        before = random_tokens(2, 2 * cut)
        after = torch.cat([before[:, :cut], (before[:, cut:] + 1) % VOCABULARY], dim=1)
        worst = max(worst, apart(model(after)[:, :cut], model(before)[:, :cut]))
    return within(worst, 1e-6)


@check("padding and batch composition change nothing", "the batch's length is read, not the row's (tokens_B)")
def _(subject: Subject) -> Measurement:
    model, worst = subject.model(), 0.0
    for length in (7, 40):
        short, long = random_tokens(2, length), random_tokens(2, length + 5)
        padded = torch.cat([short, torch.zeros(2, 5, dtype=torch.long)], dim=1)
        together = model(torch.cat([padded, long]), None, torch.tensor([length] * 2 + [length + 5] * 2))
        worst = max(worst, apart(together[:2, :length], model(short)), apart(together[2:], model(long)))
    return within(worst)


@check("decoding token by token agrees with teacher forcing", "tokens so far are counted (see at.tokens_B)")
def _(subject: Subject) -> Measurement:
    if not subject.causal:
        return None, "an encoder does not decode"
    model, tokens, declared = subject.model(), random_tokens(2, 2 * LENGTH), torch.full((2,), 3 * LENGTH)
    at_once = model(tokens, None, torch.full((2,), 2 * LENGTH), declared)
    so_far = [model(tokens[:, :read], None, None, declared)[:, -1] for read in (5, 2 * LENGTH - 1)]
    return equal(torch.stack(so_far), torch.stack([at_once[:, 4], at_once[:, -2]]))


@check("gaps, offsets and unsorted positions work", "positions are taken to be 0 .. n-1; use the ids in `at`")
def _(subject: Subject) -> Measurement:
    model = subject.model(train_positions=64)
    for ids in ([0, 5, 6, 20, 21, 50], [30, 31, 32, 33, 34, 35], [4, 0, 9, 2, 7, 1]):
        if not model(random_tokens(1, 6), torch.tensor([ids])).isfinite().all():
            return False, f"not finite at positions {ids}"
    return True, "finite with gaps, an offset and out of order"


@check(
    "fractional positions work or are refused",
    "ids are cast to whole numbers; raise a ValueError that says 'fractional'",
)
def _(subject: Subject) -> Measurement:
    model, tokens = subject.model(), random_tokens(1, 6)
    ids = torch.tensor([[0.0, 0.5, 1.5, 3.0, 3.4, 6.2]], dtype=torch.float64)
    try:
        logits = model(tokens, ids)
    except ValueError as error:
        return "fraction" in str(error), f"refused: {error}"
    except (IndexError, RuntimeError) as error:  # of an index or an embedding, which take whole numbers only
        if "indices" in str(error) and ("long" in str(error) or "Long" in str(error)):
            return True, "refused: they are used as indices"
        raise
    whole = [model(tokens, rounded.long()) for rounded in (ids.floor(), ids.round(), ids.ceil())]
    read = apart(model(tokens, torch.tensor([[0, 9, 11, 30, 31, 60]])), whole[0]) > ROUNDING
    if read and min(apart(logits, other) for other in whole) < ROUNDING:
        return False, "fractional positions are silently rounded"
    return bool(logits.isfinite().all()), "they work" if read else "ids are not read"


@check("rows may share their positions", "a batch dimension of 1 is not broadcast")
def _(subject: Subject) -> Measurement:
    model, tokens, shared = subject.model(), random_tokens(3, LENGTH), torch.arange(LENGTH)[None]
    return equal(model(tokens, shared.expand(3, -1)), model(tokens, shared), 1e-6)


@check("in an encoder only the ids tell order", "indices in memory are read instead of position ids")
def _(subject: Subject) -> Measurement:
    if subject.causal:
        return None, "in a decoder the mask follows the order in memory"
    model, tokens = subject.model(), random_tokens(2, LENGTH)
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(1))
    together = model(tokens[:, order], torch.arange(LENGTH)[None, order])
    return equal(together, model(tokens)[:, order])


@check("invariance as stated", "ids are ignored, or a scheme called relative depends on absolute ones")
def _(subject: Subject) -> Measurement:
    promise, model, tokens = subject.invariant_to, subject.model(), random_tokens(2, LENGTH)
    here = torch.arange(LENGTH)[None]
    others = torch.tensor([[0, 5, 6, 7, 9, 13, 20, 21, 40, 41, 60, 64]])
    # Far past the training range too: FIRE, for one, is shift-invariant up to there.
    moved = {"shift": (here + 3, here + 33), "ids": (others,)}
    expected = model(tokens, here)
    changes = {name: max(apart(model(tokens, ids), expected) for ids in moved[name]) for name in moved}
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
def _(subject: Subject) -> Measurement:
    model, tokens, here = subject.model(), random_tokens(2, LENGTH), torch.arange(LENGTH)[None]
    if subject.invariant_to == "nothing" or apart(model(tokens, here + 3), model(tokens, here)) > ROUNDING:
        return None, "only for schemes that a common shift leaves alone"
    across = here + FAR - 6  # a power of two, where a table may wrap
    return equal(model(tokens, across), model(tokens, here))


@check("autocast loses nothing", "positions or biases are cast to the dtype of q")
def _(subject: Subject) -> Measurement:
    """Under bfloat16, which cannot hold whole numbers above 256, far positions stay apart."""
    model, ids = subject.model(train_positions=3000), torch.arange(2000, 2000 + LENGTH)[None]
    tokens = random_tokens(1, LENGTH)
    exact, exact_logits = model.embed(tokens, ids), model(tokens, ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded, logits = model.embed(tokens, ids), model(tokens, ids)
    lost, off = apart(rounded, exact), apart(logits, exact_logits)
    measured = f"embeddings differ by {lost:.1e}, outputs by {off:.1e} of the largest"
    return lost == 0 and rounded.dtype == torch.float32 and off < 0.05, measured


@check("gradient reaches every parameter", "a parameter is detached or unused (an encoding never applied)")
def _(subject: Subject) -> Measurement:
    model = subject.model()
    parameters = trainable(model.encodings)
    if not parameters:
        return None, "it has none"
    model(random_tokens(4, LENGTH)).square().sum().backward()
    without = [name for name, p in parameters.items() if p.grad is None or not p.grad.abs().sum() > 0]
    return not without, f"none reaches {', '.join(without)}" if without else f"it reaches {len(parameters)}"


@check("a checkpoint runs at eight times its length", "a buffer of the length of a sequence")
def _(subject: Subject) -> Measurement:
    trained, other, tokens = subject.model(), subject.model(), random_tokens(2, 8 * LENGTH)
    sizes = {key: value.shape for key, value in trained.state_dict().items()}
    expected = trained(tokens)  # a cache must not enter the state
    if {key: value.shape for key, value in trained.state_dict().items()} != sizes:
        return False, "the state has grown with use"
    nn.init.normal_(other.embedding.weight)
    other.load_state_dict(trained.state_dict())
    return equal(other(tokens), expected)


@check("instances do not touch each other", "a cache on the class or module")
def _(subject: Subject) -> Measurement:
    first, tokens = subject.model(), random_tokens(2, 2 * LENGTH)
    before = first(tokens)
    subject.model(d_model=64, train_length=30, train_positions=30)(tokens)
    return equal(first(tokens), before, 0)


@check("copies are equal", "a cache that is not copied, or randomness outside the seed")
def _(subject: Subject) -> Measurement:
    model, tokens = subject.model(), random_tokens(2, 30)
    model(random_tokens(1, 5))
    return equal(copy.deepcopy(model)(tokens), model(tokens), 0)


@check("training and evaluation mode agree", "dropout or noise in the scheme")
def _(subject: Subject) -> Measurement:
    model, tokens = subject.model(), random_tokens(2, LENGTH)
    with torch.no_grad():
        return equal(model.train()(tokens), model.eval()(tokens), 0)


@check("attention implementations agree", "a bias that needs all queries at once (see at.first_query)")
def _(subject: Subject) -> Measurement:
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
        worst = max(worst, *(apart(results[name], results["eager"]) for name in ("sdpa", "blocked")))
    return within(worst, 2 * ROUNDING)
