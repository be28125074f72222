"""Compare an implementation with one of our encodings, in every stage of `stages`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from pe_experiments.checking.known_mistakes import Change
from pe_experiments.checking.pair import (
    MODEL_SIZES,
    SMALL,
    Pair,
    Pairs,
    ParametersDiffer,
    model_shape,
)
from pe_experiments.checking.scenarios import SCENARIOS
from pe_experiments.checking.stages import (
    DIFFER,
    FAR_STAGE,
    READ,
    Outcome,
    outcomes,
)
from pe_experiments.checking.subject import SizedComponent, build, trainable
from pe_experiments.configuration.component import Component
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding, acts_at_embedding
from pe_experiments.terminal.errors import join_names, shown

MOST_STAGES = 4  # in a message
OTHER_ARGUMENTS = "models with other arguments"
EXACT = 1e-5  # larger differences at positions up to 4,095 are reported; relative to the largest logit


@dataclass(frozen=True, eq=False)
class Comparison:
    """An implementation under test beside one of our encodings, perhaps changed by a known mistake.

    Args:
        candidate: builds the implementation under test.
        reference: our encoding.
        forms: the forms in which both exist: True for decoders, False for encoders.
        change: a change of our encoding, such as a known mistake.
        layout: the layout of the candidate's channels, see `pair.LAYOUTS`.
        component: the implementation with its arguments, if they are known.
        user_arguments: names of arguments of our encoding that the user set.
        named: whether the user says that it should be this encoding.
    """

    candidate: MakeEncoding
    reference: SizedComponent
    forms: Sequence[bool]
    change: Change | None = None
    layout: Sequence[str] = ()
    component: SizedComponent | None = None
    user_arguments: Sequence[str] = ()
    named: bool = False

    def make_reference(self, shape: ModelShape) -> PositionalEncoding:
        """Build our encoding for a model of this shape, with the change."""
        encoding = self.reference.build(shape)
        if self.change is not None:
            self.change.apply(encoding)
        return encoding

    @cached_property
    def pairs(self) -> Pairs:
        """Both in models of several sizes."""
        return Pairs(self.candidate, self.make_reference, self.forms, self.layout)

    @property
    def outcomes(self) -> Iterator[Outcome]:
        """The outcomes of all stages in their order; a stage is computed once, when it is first asked for."""
        computed, to_come = self._computed_and_to_come
        yield from computed
        for outcome in to_come:
            computed.append(outcome)
            yield outcome

    @cached_property
    def _computed_and_to_come(self) -> tuple[list[Outcome], Iterator[Outcome]]:
        return [], self._compute_outcomes()

    def _compute_outcomes(self) -> Iterator[Outcome]:
        yield from outcomes(self.pairs)
        if self.component is not None and (place := self._difference_with_other_arguments()):
            yield Outcome(OTHER_ARGUMENTS, self.forms[0], torch.inf, place)

    @property
    def first_difference(self) -> Outcome | None:
        """The first stage that differs; None if both are equal, up to the layout or a longer table."""
        return next((outcome for outcome in self.outcomes if outcome.place), None)

    @property
    def differences(self) -> list[Outcome]:
        """The outcomes of all stages that differ."""
        return [outcome for outcome in self.outcomes if outcome.place]

    @property
    def same(self) -> bool:
        """Whether both are equal in all stages. Near positions come first, since most mistakes show there."""
        return self.same_nearby and self.first_difference is None

    @property
    def same_nearby(self) -> bool:
        """Whether single sequences at positions below 64 are equal in small models."""
        return self._first_pair is not None and not self._first_pair.differs

    @property
    def shares_parameters(self) -> bool:
        return self._first_pair is not None

    @cached_property
    def _first_pair(self) -> Pair | None:
        with suppress(ParametersDiffer), torch.no_grad():
            return self.pairs.pair(SMALL, self.forms[0])
        return None

    def changed(self, change: Change) -> Comparison:
        """Return the comparison with our encoding changed once more."""
        if self.change is not None:
            change = self.change.then(change)
        return replace(self, change=change)

    def against(self, reference: SizedComponent) -> Comparison:
        """Return the comparison with another of our encodings, in the forms in which it exists."""
        return replace(self, reference=reference, forms=common_forms(reference, self.forms))

    def layouts(self, layouts: Sequence[Sequence[str]]) -> Iterator[Comparison]:
        """Yield the comparison in each layout of channels; none if the order of channels has no effect."""
        encoding = build(self.reference.build, model_shape(MODEL_SIZES[0], self.forms[0]))
        rotates = type(encoding).rotate is not PositionalEncoding.rotate
        if rotates or acts_at_embedding(encoding):
            for layout in layouts:
                yield replace(self, layout=layout)

    def _difference_with_other_arguments(self) -> str:
        """Describe a difference that shows with another value of a shared argument; return "" if none."""
        assert self.component is not None
        for name, value in self.component.arguments.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or self.reference.arguments.get(name) != value:
                continue
            other_value = value * 2 if value > 1 else value / 2
            try:
                candidate = self.component.with_arguments(**{name: other_value}).build
                reference = self.reference.with_arguments(**{name: other_value})
                differs = not replace(self, candidate=candidate, reference=reference).same_nearby
                ignores = differs and replace(self, candidate=candidate).same_nearby
            except Exception:  # one of both rejects the value
                continue
            if differs:
                what = "it does not change" if ignores else DIFFER
                return f"with {name}={shown(other_value)} in both, {what}"
        return ""

    # Texts.

    @property
    def label(self) -> str:
        return self.reference.label

    def describe_equality(self) -> str:
        """Return the text that the implementation is our encoding, and up to which convention."""
        results = list(self.outcomes)
        near = max(outcome.difference for outcome in results if outcome.stage != FAR_STAGE)
        far = [outcome for outcome in results if outcome.stage == FAR_STAGE]
        size = f"{near:.1e} of the largest value"
        lines = [
            f"It is {self.label}, compared in {format_forms(self.forms)}: the largest difference is {size}."
        ]
        if self.layout:
            lines.append(f"Its channels are laid out differently: {'; '.join(self.layout)}.")
            lines.append("That is no mistake, but weights do not carry over between the two.")
        pairs = (self.pairs.pair(SMALL, causal) for causal in self.forms)
        tables = [pair.table for pair in pairs if pair.table]
        if tables:
            lines.append(f"That is no mistake: {tables[0]}.")
        remarks = [outcome.remark for outcome in results if outcome.remark]
        if remarks:
            lines.append(f"Far positions were not compared in every model: {remarks[0]}.")
        far_difference = max((outcome.difference for outcome in far), default=0.0)
        if far_difference > EXACT:
            reason = "as a rule, angles or distances in float32"
            lines.append(f"At positions up to 4,095 it differs by {far_difference:.1e}: {reason}.")
        return "\n".join(lines)

    def describe_difference(self) -> str:
        """Return the text that says in which stages and where the two differ."""
        if not self.shares_parameters:
            return self._describe_parameters()
        first = self.first_difference
        assert first is not None
        in_form = "" if first.causal or len(self.forms) == 1 else "in an encoder, "
        if self.same_nearby and READ in first.place and first.stage == next(iter(SCENARIOS)):
            text = f"Its attention weights are those of {self.label}, but the values that it reads differ."
        elif self.same_nearby:
            stages = list(dict.fromkeys(outcome.stage for outcome in self.differences))
            more = [f"{len(stages) - MOST_STAGES} more"] if len(stages) > MOST_STAGES else []
            text = f"It equals {self.label}, except in {join_names(stages[:MOST_STAGES] + more)}."
        else:
            size = f" by {first.difference:.2g} of the largest" if first.difference < torch.inf else ""
            text = f"It is not {self.label}: logits or embeddings differ{size}."
        return f"{text}\n  {in_form}{first.place}"

    def _describe_parameters(self) -> str:
        """Say that the parameters cannot be shared, and which arguments of ours may change theirs."""
        shape = model_shape(SMALL, self.forms[0])
        theirs, ours = (
            ", ".join(str(list(parameter.shape)) for parameter in trainable(build(make, shape)).values())
            for make in (self.candidate, self.make_reference)
        )
        text = (
            f"It cannot be {self.label}: its trainable parameters have the shapes {theirs or 'of none'}, "
            f"ours {ours or 'none'}."
        )
        if self.reference.arguments:
            names = ", ".join(self.reference.arguments)
            text += f"\nOther arguments of ours ({names}): +against_arguments.NAME=VALUE."
        return text


def common_forms(reference: Component, forms: Sequence[bool]) -> list[bool]:
    """Return those ``forms`` (True: causal) in which the reference exists."""
    causal_only = reference.cls.causal_only  # type: ignore[attr-defined]
    return [causal for causal in forms if causal or not causal_only]


def format_forms(forms: Sequence[bool]) -> str:
    return " and ".join("a decoder" if causal else "an encoder" for causal in forms)
