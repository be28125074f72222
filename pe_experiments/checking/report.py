"""The checker in words: what holds, what fails, what a failure usually means, and what the scheme turns out
to be."""

from __future__ import annotations

import math
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from pe_experiments.checking.contract import CHECKS, Finding, Subject, small_shape
from pe_experiments.checking.identify import Likeness, common_forms, identify, likeness_of, reference_of
from pe_experiments.checking.mutants import MUTANTS
from pe_experiments.components import Component, load_component, shipped
from pe_experiments.console import say
from pe_experiments.errors import UserError, nearest, shown

EXACT = 1e-5  # of the largest logit, at positions up to 4,095
VERDICTS = {True: "holds", False: "FAILS", None: "-"}


def check_encoding(config: DictConfig) -> bool:
    """Check what `configs/check_encoding.yaml` asks for and print it.

    Returns:
        Whether the contract holds and, where a reference was named, the scheme equals it.

    Raises:
        UserError: unknown schemes or arguments, a scheme that cannot be built.
    """
    torch.set_num_threads(1)  # small tensors: more threads only wait for each other
    section: Any = OmegaConf.to_container(config.pe)
    component = load_component("pe", section)
    against = _reference(component, config)
    forms = _forms(component)
    say(
        f"{component.target} in {' and '.join('a decoder' if causal else 'an encoder' for causal in forms)}\n"
    )
    sound = _contract(component, forms)
    say("")
    try:
        if against is not None:
            return _against(component, against, forms) and sound
        _is_what(component, forms)
    except UserError:
        raise
    except Exception as error:  # of the scheme under test
        say(f"It cannot be compared: it raises {type(error).__name__}: {' '.join(str(error).split())}")
        return False
    return sound


def _reference(component: Component, config: DictConfig) -> Component | None:
    """The scheme named by ``against``, with the checked scheme's arguments where it has the same."""
    if config.against is None:
        return None
    choices = shipped("pe")
    if config.against not in choices:
        raise UserError(f"against={config.against} is not a choice.{nearest(str(config.against), choices)}")
    known = reference_of(config.against).arguments
    shared = {key: value for key, value in component.arguments.items() if key in known}
    if not OmegaConf.is_dict(config.against_arguments):
        value = shown(config.against_arguments)
        raise UserError(f"against_arguments={value}: expected arguments, as in +against_arguments.base=500")
    given: Any = OmegaConf.to_container(config.against_arguments)
    return reference_of(config.against, **{**shared, **given})


def _forms(component: Component) -> list[bool]:
    """Causal or not: where the scheme can be built.

    Raises:
        UserError: nowhere, or building ends in something else than a refusal (a ValueError).
    """
    refusals = {}
    for causal in (True, False):
        try:
            component.build(small_shape(causal))
        except UserError as error:
            if "cannot be built" in str(error):
                raise UserError(f"{error} (in {'a decoder' if causal else 'an encoder'})") from error
            refusals[causal] = error
    if len(refusals) == 2:
        raise refusals[True]
    return [causal for causal in (True, False) if causal not in refusals]


def _contract(component: Component, forms: list[bool]) -> bool:
    findings: dict[str, list[Finding]] = {}
    say(f"{'':48}{''.join(f'{_form(causal):10}' for causal in forms)}")
    for name, check in CHECKS.items():
        findings[name] = [check(Subject(component.build, causal), name) for causal in forms]
        say(f"{name:48}{''.join(f'{VERDICTS[finding.holds]:10}' for finding in findings[name])}".rstrip())
    rows = [zip(forms, row, strict=True) for row in findings.values()]
    failed = [(causal, finding) for row in rows for causal, finding in row if finding.holds is False]
    for error in dict.fromkeys(finding.measured for _, finding in failed if finding.raised):
        several = dict.fromkeys(f.check for _, f in failed if f.raised and f.measured == error)
        say(f"\nFAILS with {error}\n  in: {'; '.join(several)}")
    for causal, finding in failed:
        if not finding.raised:
            say(f"\nFAILS in the {_form(causal)}: {finding.check}")
            say(f"  measured: {finding.measured}\n  usually: {finding.usually}")
    return not failed


def _against(component: Component, reference: Component, forms: list[bool]) -> bool:
    common = common_forms(reference, forms)
    if not common:
        say(f"It cannot be {reference.label}: that exists in a decoder only, this in an encoder only.")
        return False
    likeness = likeness_of(component.build, reference.build, reference.label, common)
    if likeness.apart is None:
        ours, theirs = (_parameters(part, common[0]) for part in (reference, component))
        say(f"It cannot be {reference.label}: that has {ours}, this has {theirs}.")
        return False
    if likeness.same:
        _say_same(likeness, common)
        return True
    say(f"It is not {reference.label}: logits or embeddings differ by {likeness.apart:.2g} of the largest.")
    mistakes = identify(component.build, [reference.choice], forms, **reference.arguments)
    for mistake in mistakes:
        say(f"It matches a known mistake. {mistake.reference}")
    if not mistakes:
        say("It matches no known mistake either.")
    return False


def _is_what(component: Component, forms: list[bool]) -> None:
    found = identify(component.build, shipped("pe"), forms)
    if not found:
        say("It is none of our schemes (with their default arguments) and none of the known mistakes.")
    for likeness in found:
        if likeness.reference in MUTANTS:
            say(f"It matches a known mistake. {likeness.reference}")
        else:
            _say_same(likeness, common_forms(reference_of(likeness.reference), forms))


def _say_same(likeness: Likeness, forms: list[bool]) -> None:
    where = " and ".join("a decoder" if causal else "an encoder" for causal in forms)
    size = f"{likeness.apart:.1e} of the largest value"
    say(f"It is {likeness.reference}, compared in {where}: the largest difference is {size}.")
    if likeness.layout:
        say(f"Its channels are laid out differently: {likeness.layout}.")
        say("That is no mistake, but weights do not carry over between the two.")
    if math.isnan(likeness.apart_far):
        say("Positions beyond those of training were not compared: they follow from what is trained.")
    if likeness.apart_far > EXACT:
        say(f"At positions up to 4,095 it differs by {likeness.apart_far:.1e}: as a rule, angles in float32.")


def _form(causal: bool) -> str:
    return "decoder" if causal else "encoder"


def _parameters(component: Component, causal: bool) -> str:
    shapes = [list(p.shape) for p in component.build(small_shape(causal)).parameters()]
    return f"parameters of shapes {', '.join(map(str, shapes))}" if shapes else "no parameters"
