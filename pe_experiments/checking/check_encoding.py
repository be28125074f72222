"""Implement the command check_encoding: check the contract of an encoding, and compare or identify it."""

from contextlib import suppress
from typing import Annotated, Any

import torch
from pydantic import Field

from pe_experiments.checking.checks import run_checks
from pe_experiments.checking.comparison import EncodingComparison, common_forms
from pe_experiments.checking.encoding_contract import CHECKS
from pe_experiments.checking.explanations import Verdict, describe_difference, explain, format_forms
from pe_experiments.checking.references import by_similarity
from pe_experiments.checking.subject import SizedComponent, Subject, reference_of, sized, small_shape
from pe_experiments.configuration.choices import choices_in_folders, nearest_choice, shipped, spelled
from pe_experiments.configuration.schema import MOST_LAYERS, Count, Section, Words
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError, error_place, sentence

HEADS, CHANNELS = 4, 16  # of checked models, if one of the two is given
FORMS = {True: "decoder", False: "encoder"}  # by `causal`
NEW = "new"  # in place of a reference
UNKNOWN = """It equals none of our encodings (with the same arguments or the default ones)
and none of the known mistakes."""
BROKEN = "It breaks the contract, as shown above."
IS_NEW = "It keeps the contract and is new, unless it has an unknown mistake."
TO_TELL = """It is new, or it has an unknown mistake. To tell which, name what it should be:
against=rope, with its arguments, or against=new."""
PATTERNS = (3, 4, 5, 6, 8, 12)  # numbers of layers that are tried for a pattern that two layers do not fit


class ModelSizes(Section):
    """Sizes of the checked models; null: several sizes, of two or twelve layers."""

    d_model: Count | None
    num_heads: Count | None
    num_layers: Annotated[int, Field(ge=1, le=MOST_LAYERS)] | None

    def given(self) -> dict[str, int]:
        """Return the sizes that are given, by their name in `ModelShape`; width and heads only together."""
        sizes = {} if self.num_layers is None else {"num_layers": self.num_layers}
        if self.d_model is None and self.num_heads is None:
            return sizes
        num_heads = self.num_heads or HEADS
        return sizes | {"num_heads": num_heads, "d_model": self.d_model or CHANNELS * num_heads}


class CheckSettings(Section):
    """The options of ``configs/check_encoding.yaml``."""

    pe: dict[str, Any]
    against: Words | None
    against_arguments: dict[str, Any]
    model: ModelSizes


def check_encoding(settings: CheckSettings) -> Verdict:
    """Check an encoding and print the results.

    Returns:
        Right if the contract holds and the encoding equals the reference, or without one any encoding, up to
        conventions of released models; or if it is declared new and equals neither an encoding nor a known
        mistake.
    """
    torch.set_num_threads(1)  # more threads do not help with small tensors
    sizes = settings.model.given()
    try:
        small_shape(True, **sizes)
    except ValueError as error:
        raise UserError(f"model: {error}") from error
    component = sized(settings.pe, sizes)
    if "num_layers" not in sizes:  # a pattern may need more layers than two
        of_more_layers = (sized(settings.pe, {**sizes, "num_layers": layers}) for layers in PATTERNS)
        for candidate in (component, *of_more_layers):
            with suppress(UserError):
                _possible_forms(candidate)
                component = candidate
                break
    against = _load_reference(component, settings)
    forms = _possible_forms(component)
    say(f"{component.target} in {format_forms(forms)}\n")
    subjects = {
        FORMS[causal]: Subject(component.build, causal, sizes=component.sizes).with_long_table()
        for causal in forms
    }
    failed = run_checks(CHECKS, subjects)
    if any(CHECKS[name].gate for name in failed):
        return Verdict.WRONG
    say("" if failed else "\nIt keeps the contract: no check fails (-: does not apply).\n")
    try:
        verdict = _compare(component, against, forms, list(settings.against_arguments))
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # raised by the tested encoding
        say(f"It cannot be compared: it raises {sentence(error)}{error_place(error)}")
        return Verdict.WRONG
    if failed:
        say(BROKEN)
        return Verdict.WRONG
    if verdict is Verdict.UNKNOWN:
        say(IS_NEW if settings.against == NEW else TO_TELL)
        return Verdict.RIGHT if settings.against == NEW else verdict
    if verdict is Verdict.RIGHT and settings.against == NEW:
        say("It is not new.")
        return Verdict.WRONG
    return verdict


def _load_reference(component: SizedComponent, settings: CheckSettings) -> SizedComponent | None:
    """Return the encoding named by ``against``; it takes over arguments that the tested encoding also has."""
    if settings.against in (None, NEW):
        if settings.against_arguments:
            raise UserError("against_arguments are of the encoding named by against, and none is named")
        return None
    choice = spelled("pe", str(settings.against))
    choices = [*shipped("pe"), *choices_in_folders("pe")]
    if choice not in choices:
        raise UserError(f"against={choice} is not a choice.{nearest_choice(choice, [*choices, NEW])}")
    reference = reference_of(choice, component.sizes).with_arguments_of(component)
    return reference.with_arguments(**settings.against_arguments)


def _possible_forms(component: SizedComponent) -> list[bool]:
    """Return the forms (True: causal) in which the encoding can be built; raise its error if in none."""
    refusals = {}
    for causal in FORMS:
        try:
            component.build(small_shape(causal))
        except UserError as error:
            if error.__cause__ is not None and not isinstance(error.__cause__, ValueError):
                # The class fails, instead of refusing this form.
                raise UserError(f"{error} (in {format_forms([causal])})") from error
            refusals[causal] = error
    if len(refusals) == 2:
        raise refusals[True]
    return [causal for causal in FORMS if causal not in refusals]


def _compare(
    component: SizedComponent, against: SizedComponent | None, forms: list[bool], user_arguments: list[str]
) -> Verdict:
    """Print what the tested encoding equals, or how it differs.

    Args:
        component: the tested encoding.
        against: the reference that the user names; None: all encodings.
        forms: the forms in which the tested encoding can be built.
        user_arguments: names of the reference's arguments that the user set.
    """
    if against is None:
        say(f"Compared with {len(shipped('pe'))} encodings and the known mistakes (seconds) ...")
        comparisons = by_similarity(component, forms)
    else:
        common = common_forms(against, forms)
        if not common:
            say(f"It cannot be {against.label}, which is for decoders only, since it is for encoders only.")
            return Verdict.WRONG
        comparisons = [
            EncodingComparison(
                component.build,
                against,
                common,
                component=component,
                user_arguments=user_arguments,
                named=True,
            )
        ]
    explanation = explain(comparisons)
    verdict = Verdict.UNKNOWN if explanation is None else explanation.verdict
    if against is None and verdict is Verdict.UNKNOWN:
        say(UNKNOWN)
    if explanation is not None:
        say(explanation.text)
    elif against is not None:
        say(describe_difference(comparisons[0]))
        if comparisons[0].shares_parameters:
            say("The difference is none that the checker knows.")
    elif comparisons and comparisons[0].shares_parameters:
        say(f"Most similar is {comparisons[0].label}.")
    return Verdict.WRONG if against is not None and verdict is Verdict.UNKNOWN else verdict
