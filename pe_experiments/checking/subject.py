"""Build the encodings and models that are checked, draw their random inputs, and measure differences.

`SizedComponent` is an encoding of a config section, in models of sizes that the user gives; `Subject` is an
encoding to check, in a decoder or an encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from pe_experiments.checking.checks import Measurement
from pe_experiments.configuration.choices import ALSO_CALLED, shipped
from pe_experiments.configuration.component import Component, load_component
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding
from pe_experiments.models import Transformer
from pe_experiments.models.attention_scores import Inputs
from pe_experiments.terminal.errors import UserError

LENGTH = 12  # training length
VOCABULARY = 20
FLOAT32_TOLERANCE = 1e-5  # tolerance relative to the largest output, in float32
LATE = 2_000  # bfloat16 does not represent all whole numbers above 256
CAST = 0.05  # tolerance relative to the largest output; differences by rounding to bfloat16 stay below it
LONG_TABLE = 8_192  # rows of a table that ends; more than any check but that of far positions reads
Module = TypeVar("Module", bound=nn.Module)


def small_shape(causal: bool = True, **changes: int) -> ModelShape:
    """Return the shape of a small model: 32 wide, 4 heads, 2 layers, trained on 12 tokens."""
    sizes = {"d_model": 32, "num_heads": 4, "num_layers": 2, "train_length": LENGTH}
    return ModelShape(causal=causal, **{"train_positions": LENGTH, **sizes, **changes})


def build(make: Callable[[ModelShape], Module], shape: ModelShape, seed: int = 0) -> Module:
    """Return an instance with the parameters that ``seed`` determines."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` formats a traceback for each device
        return make(shape)


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, by name; others are constants."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def perturbed(module: Module, by: float = 0.3) -> Module:
    """Add noise to every trainable parameter, since zeros would have no effect, and return the module."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in trainable(module).values():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return module


@dataclass(frozen=True)
class SizedComponent(Component):
    """An encoding with its arguments.

    Args:
        sizes: sizes of the model that the user gives, by their name in `ModelShape`; they replace those of
            every model in which the encoding is built.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)

    def build(self, shape: ModelShape) -> PositionalEncoding:
        """Build the encoding for a model of this shape with the sizes that the user gives."""
        return super().build(replace(shape, **self.sizes))  # type: ignore[arg-type]

    def with_arguments(self, **arguments: Any) -> SizedComponent:
        return sized({"_target_": self.target, **self.arguments, **arguments}, self.sizes)

    def with_arguments_of(self, component: Component) -> SizedComponent:
        """Return the encoding with those arguments of another one that it also has, perhaps by another name.

        Arguments that it rejects are left out.
        """
        shared = {}
        for name, value in component.arguments.items():
            own_name = name if name in self.arguments else ALSO_CALLED.get(name)
            if own_name in self.arguments:
                shared[own_name] = value
        try:
            variant = self.with_arguments(**shared)
            variant.build(small_shape())
        except UserError:  # an argument of another type, or a value that it does not take
            return self
        return variant


def reference_of(choice: str, sizes: Mapping[str, int] | None = None, **arguments: Any) -> SizedComponent:
    """Return the encoding of a choice under configs/pe; ``arguments`` override those of its YAML file.

    ``sizes`` are those of the model that the user gives, see `SizedComponent`.
    """
    group, _, name = f"pe/{choice}".rpartition("/")
    return sized({**shipped(group)[name], **arguments}, sizes or {})


def sized(section: Mapping[str, Any], sizes: Mapping[str, int]) -> SizedComponent:
    """Return the encoding of a config section, built for models of these sizes."""
    return SizedComponent(**vars(load_component("pe", dict(section))), sizes=sizes)


class Subject(NamedTuple):
    """An encoding to check in a decoder or an encoder.

    Args:
        make: function that builds the encoding from the shape of a model.
        causal: True in a decoder.
        positions: number of position ids that the models of most checks can show in training.
        sizes: sizes of all models that the user gives, see `SizedComponent`.
    """

    make: MakeEncoding
    causal: bool = True
    positions: int = LENGTH
    sizes: Mapping[str, int] = {}

    def shape(self, **changes: int) -> ModelShape:
        return small_shape(self.causal, **{"train_positions": self.positions, **changes, **self.sizes})

    def encoding(self, **changes: int) -> PositionalEncoding:
        return build(self.make, self.shape(**changes))

    def model(self, **changes: int) -> Transformer:
        """Return an untrained model with a `perturbed` encoding, of the shape with these changes."""
        make = partial(Transformer, VOCABULARY, make_encoding=self.make, initialisation="pytorch")
        model = build(make, self.shape(**changes)).eval()
        perturbed(model.encodings)
        return model

    def with_long_table(self) -> Subject:
        """Return the subject with more position ids, if it rejects those that its table does not have.

        A table of ``train_positions`` rows may end there, as in BERT and GPT-2.
        """
        longer = self._replace(positions=LONG_TABLE)
        return longer if self._table_ends() and not longer._table_ends() else self

    def _table_ends(self) -> bool:
        """Return whether one token more than in training raises an error."""
        try:
            self.model()(random_tokens(1, LENGTH + 1))
        except Exception:  # raised by the encoding
            return True
        return False

    @property
    def invariant_to(self) -> str | None:
        """Return the invariance that the encoding states; NoPE itself ignores ids."""
        encoding = self.encoding()
        return "ids" if type(encoding) is PositionalEncoding else encoding.invariant_to


# Inputs and embeddings.


def random_tokens(rows: int, length: int) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(length))


def draw_content(
    shape: ModelShape, positions_BT: Tensor, seed: int = 5, key_heads: int | None = None
) -> Inputs:
    """Return random queries, keys and hidden states at the given positions.

    With ``key_heads``, the heads are divided into that number of groups that share their keys.
    """
    generator = torch.Generator().manual_seed(seed)
    rows, tokens = positions_BT.shape
    sizes = (rows, shape.num_heads, tokens, shape.head_dim)
    q = torch.randn(sizes, generator=generator)
    k = torch.randn(sizes, generator=generator)
    if key_heads and shape.num_heads % key_heads == 0:
        group_size = shape.num_heads // key_heads
        k = k[:, ::group_size].repeat_interleave(group_size, dim=1)
    return Inputs(q, k, torch.randn(rows, tokens, shape.d_model, generator=generator), positions_BT)


def draw_inputs(shape: ModelShape, tokens: int, span: int, seed: int, key_heads: int | None = None) -> Inputs:
    """Return random content at random distinct positions below ``span``, sorted and starting at 0."""
    positions = torch.randperm(span, generator=torch.Generator().manual_seed(seed))[:tokens].sort().values
    positions[0] = 0
    return draw_content(shape, positions[None], seed, key_heads)


def embed(encoding: PositionalEncoding, inputs: Inputs) -> Tensor:
    """Return the hidden states [B, T, D] from `embed_sequence`, with tokens from columns of ``x``."""
    tokens_BTD = inputs.x_BTD[..., encoding.position_width :]
    return encoding.embed_sequence(tokens_BTD, inputs.positions_BT, None)


def vectors_at(encoding: PositionalEncoding, ids_T: Tensor) -> Tensor:
    """Return the vectors [T, D] of these positions: the embeddings of tokens that are zero."""
    width = encoding.shape.d_model - encoding.position_width
    return encoding.embed_sequence(torch.zeros(1, len(ids_T), width), ids_T[None], None)[0]


# Differences.


def relative_difference(values: Tensor, expected: Tensor, largest: float | None = None) -> float:
    """Return the largest difference divided by ``largest``, by default the largest expected value.

    It is infinite if either tensor has a value that is not finite.
    """
    if not (values.isfinite().all() and expected.isfinite().all()):
        return float("inf")
    values, expected = values.detach().double(), expected.detach().double()
    difference = float((values - expected).abs().max())
    largest = float(expected.abs().max()) if largest is None else largest
    if largest == 0:
        return 0.0 if difference == 0 else float("inf")
    return difference / largest


def masked_difference(scores: Tensor, expected: Tensor, largest: float | None = None) -> float:
    """Return the `relative_difference` of the finite scores; infinite if shapes or masks differ."""
    if scores.shape != expected.shape or not torch.equal(scores.isinf(), expected.isinf()):
        return float("inf")
    return relative_difference(unmasked(scores), unmasked(expected), largest)


def unmasked(scores: Tensor) -> Tensor:
    return scores.masked_fill(scores.isinf(), 0.0)


@torch.no_grad()
def look_ahead(call: Callable[[Tensor], Tensor], tokens_BT: Tensor, cuts_B: Tensor, vocabulary: int) -> float:
    """Return how much results change before a token when it and all later tokens change.

    Args:
        call: function from tokens to results [B, T, ...].
        tokens_BT: tokens.
        cuts_B: index of the first token of each row that changes.
        vocabulary: number of tokens from which others are drawn.

    Returns:
        The largest change, relative to the largest of these results.
    """
    generator = torch.Generator().manual_seed(0)
    others_BT = torch.randint(1, vocabulary, tokens_BT.shape, generator=generator)
    unchanged_BT = torch.arange(tokens_BT.shape[1]) < cuts_B[:, None]
    changed_BT = torch.where(unchanged_BT, tokens_BT, (tokens_BT + others_BT) % vocabulary)
    before, after = call(tokens_BT), call(changed_BT)
    return relative_difference(after[unchanged_BT], before[unchanged_BT])


def compare_difference(difference: float, tolerance: float = FLOAT32_TOLERANCE) -> Measurement:
    if difference == float("inf"):
        return False, "outputs are NaN or infinite"
    return difference <= tolerance, f"outputs differ by {difference:.1e} of the largest"


def compare_outputs(values: Tensor, expected: Tensor, tolerance: float = FLOAT32_TOLERANCE) -> Measurement:
    return compare_difference(relative_difference(values, expected), tolerance)
