"""Define the subject of the checks of encodings, and how their measurements are judged."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pe_experiments.checking.checks import Measurement
from pe_experiments.checking.random_inputs import (
    LENGTH,
    build,
    perturbed,
    relative_difference,
    small_shape,
)
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding
from pe_experiments.models import Transformer

VOCABULARY = 20
FLOAT32_TOLERANCE = 1e-5  # tolerance relative to the largest output, in float32
LATE = 2_000  # bfloat16 does not represent all whole numbers above 256
CAST = 0.05  # tolerance relative to the largest output; differences by rounding to bfloat16 stay below it
LONG_TABLE = 8_192  # rows of a table that ends; more than any check but that of far positions reads


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
        """Return the `small_shape` with these changes."""
        return small_shape(self.causal, **{"train_positions": self.positions, **changes, **self.sizes})

    def encoding(self, **changes: int) -> PositionalEncoding:
        """Return the encoding of the shape with these changes."""
        return build(self.make, self.shape(**changes))

    def model(self, **changes: int) -> Transformer:
        """Return an untrained model with a `perturbed` encoding, of the shape with these changes."""
        make = partial(Transformer, VOCABULARY, make_encoding=self.make, initialisation="pytorch")
        model = build(make, self.shape(**changes)).eval()
        perturbed(model.encodings)
        return model

    def with_long_table(self) -> "Subject":
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


def random_tokens(rows: int, length: int) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(length))


def compare_difference(difference: float, tolerance: float = FLOAT32_TOLERANCE) -> Measurement:
    """Return whether a relative difference is within the tolerance."""
    if difference == float("inf"):
        return False, "outputs are NaN or infinite"
    return difference <= tolerance, f"outputs differ by {difference:.1e} of the largest"


def compare_outputs(values: Tensor, expected: Tensor, tolerance: float = FLOAT32_TOLERANCE) -> Measurement:
    """Return whether two tensors are equal within the tolerance."""
    return compare_difference(relative_difference(values, expected), tolerance)
