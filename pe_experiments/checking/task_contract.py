"""The contract of a task as checks: whether each holds, the measurement, and the usual cause of a failure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from pe_experiments.checking.check import Check, Measurement, listed, run_checks
from pe_experiments.configuration.parts import load_component
from pe_experiments.configuration.schema import Section
from pe_experiments.data.formats import format_for
from pe_experiments.tasks import IGNORE, Task
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError, allowed
from pe_experiments.training.preflight import broken_rule, global_randomness

LENGTHS = (*range(1, 14), 20, 33, 100)  # asked for; the nearest the task can make are tried
BAGS = 40_000  # examples to count in
MOST_SYMBOLS = 1024  # the counts take 8 bytes for each example and symbol
CHECKS: dict[str, Check] = {}
check = listed(CHECKS)


def draw(task: Task, length: int, rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    return task.sample(length, rows, torch.Generator().manual_seed(seed))


def makeable(task: Task, lengths: Iterable[int] = LENGTHS) -> list[int]:
    """The lengths the task makes for these: the nearest below, and no length twice."""
    return sorted({made for asked in lengths if (made := task.nearest_length(asked)) is not None})


@check("samples obey the rule", "solve or sample is off by one at an end of the input")
def _(task: Task) -> Measurement:
    for seed, length in enumerate(makeable(task)):
        inputs, targets = draw(task, length, 50, seed)
        if what := broken_rule(task, length, inputs, targets):
            return False, f"length {length}: {what}"
    return True, f"lengths {', '.join(map(str, makeable(task)))}"


@check("lengths are ordered", "nearest_length rounds up or forgets the shortest input")
def _(task: Task) -> Measurement:
    made = [(asked, task.nearest_length(asked)) for asked in range(1, 120)]
    for asked, length in made:
        if length is not None and not (1 <= length <= asked and task.nearest_length(length) == length):
            return False, f"nearest_length({asked}) = {length}"
    known = [length or 0 for _, length in made]
    return known == sorted(known) and known[-1] > 0, f"{known[0] or None} to {known[-1] or None}"


@check("the generator decides", "torch.randint without generator=, or something kept on self")
def _(task: Task) -> Measurement:
    length = makeable(task)[-1]
    with global_randomness() as touched:
        first = draw(task, length, 50, 3)
        for other in makeable(task):
            draw(task, other, 7, other)
        again, elsewhere = draw(task, length, 50, 3), draw(task, length, 50, 4)
    if not all(torch.equal(one, two) for one, two in zip(first, again, strict=True)):
        return False, "the same generator gave other examples"
    if torch.equal(first[0], elsewhere[0]):
        return False, "another seed gave the same inputs"
    return not touched, f"it draws from or seeds {allowed(touched)}" if touched else "no other is touched"


@check("order matters as said", "order_sensitive is left at True for a control")
def _(task: Task) -> Measurement:
    shares = []
    for length in (n for n in makeable(task, (4, 7, 12)) if n > 1):
        inputs, targets = draw(task, length, 400)
        orders = torch.rand(400, length, generator=torch.Generator().manual_seed(1)).argsort(dim=1)
        moved = task.solve(inputs.gather(1, orders)) != targets
        shares.append(float(moved.any(dim=1).float().mean()))
    fits = all(share > 0.1 if task.order_sensitive else share == 0 for share in shares)
    return fits if shares else None, f"answers change in {', '.join(f'{share:.2f}' for share in shares)}"


@check("chance is uniform", "chance counts vocab_size where targets hold fewer symbols")
def _(task: Task) -> Measurement:
    if why := getattr(task, "chance_unchecked", None):
        return None, why
    for length in makeable(task, (1, 2, 4, 9, 13, 20)):
        _, targets = draw(task, length, 5000)
        symbols = len(targets[targets != IGNORE].unique())
        if abs(task.chance(length) - 1 / symbols) > 1e-6:
            return False, f"length {length}: {task.chance(length):.4g}, and targets hold {symbols} symbols"
    return True, "one over the symbols seen"


@check("the ceiling is possible", "bag_ceiling of an answer that order decides")
def _(task: Task) -> Measurement:
    for length, _, ceiling in _ceilings(task, makeable(task, (1, 20, 100, 160))):
        if not task.chance(length) - 1e-9 <= ceiling <= 1 + 1e-9:
            return False, f"length {length}: {ceiling:.4g}, chance {task.chance(length):.4g}"
        if ceiling < 1 - 1e-9 and not task.order_sensitive:
            return False, f"length {length}: {ceiling:.4g} of a task that a bag solves"
    return True, "or unknown"


@check("the ceiling is reached", "return None where the ceiling is not known")
def _(task: Task) -> Measurement:
    counted_any = None
    for length, prefix, ceiling in _ceilings(task, makeable(task, (4, 7))):
        low, high, error = _counted(task, length, prefix)
        if high - low >= 0.06:  # too few examples of each bag to say anything
            continue
        counted_any = True
        if not low - 3 * error <= ceiling <= high + 3 * error:
            who = "a decoder" if prefix else "an order-blind predictor"
            return False, f"length {length}: {ceiling:.4g}, and {who} reaches {low:.4g} to {high:.4g}"
    return counted_any, f"{BAGS} examples"


def _ceilings(task: Task, lengths: Iterable[int]) -> Iterator[tuple[int, bool, float]]:
    for length, prefix in product(lengths, (False, True)):
        if (ceiling := task.bag_ceiling(length, prefix)) is not None:
            yield length, prefix, ceiling


def _counted(task: Task, length: int, prefix: bool) -> tuple[float, float, float]:
    """Bag ceiling by counting: too low (scored on other examples), too high (on the same), standard error."""
    inputs, targets = draw(task, length, BAGS, seed=7)
    factors = torch.randint(2**62, (2 * inputs.shape[1] + targets.shape[1],), generator=torch.Generator())
    low = high = scored = 0.0
    for asked in range(targets.shape[1]):
        rows = targets[:, asked] != IGNORE
        given, answers = inputs[rows], targets[rows, asked]
        if "aligned" in task.formats:
            beside, bag = given[:, [asked]], given[:, : asked + 1] if prefix else given
        else:
            beside, bag = targets[rows, : asked if prefix else 0], given
        seen = torch.cat([bag.sort(dim=1).values, beside], dim=1)
        # A hash numbers the groups, because `unique(dim=0)` takes seconds.
        group = (seen * factors[: seen.shape[1]]).sum(dim=1).unique(return_inverse=True)[1]
        votes = torch.zeros(2, len(group.unique()), task.vocab_size)
        votes.index_put_((torch.arange(len(group)) % 2, group, answers), torch.ones(()), accumulate=True)
        mode = votes.argmax(dim=-1, keepdim=True)
        low += float(votes.gather(-1, mode.flip(0)).sum())
        high += float(votes.sum(dim=0).amax(dim=-1).sum())
        scored += len(group)
    return low / scored, high / scored, 0.5 / scored**0.5 * task.target_length(length) ** 0.5


@check("the blind guess is modal", "input_blind of another length")
def _(task: Task) -> Measurement:
    known = None
    for length in makeable(task, (3, 12)):
        if (blind := task.input_blind(length)) is None:
            continue
        guess, targets = draw(task, length, BAGS, 1)[1].mode(dim=0).values, draw(task, length, BAGS, 2)[1]
        reached = float((guess == targets).float().mean())
        known = abs(reached - blind) <= 0.01
        if not known:
            return False, f"length {length}: {blind:.4g}, and the most frequent answers reach {reached:.4g}"
    return known, "the most frequent answers"


@check("layouts score the targets", "target_length is not the width of targets")
def _(task: Task) -> Measurement:
    for causal in (True, False):
        layout, length = format_for(task, causal), makeable(task, (1, 2, 4, 8))[-1]
        inputs, targets = draw(task, length, 10)
        rows = layout.lay_out(inputs, targets)
        content = rows.labels_BT[(rows.labels_BT != IGNORE) & (rows.labels_BT != layout.eos)]
        tokens = layout.tokens(length, task.target_length(length))
        if rows.tokens_BT.shape != (10, tokens) or not torch.equal(content, targets[targets != IGNORE]):
            where = "a decoder" if causal else "an encoder"
            return False, f"rows of shape {tuple(rows.tokens_BT.shape)} in {where}"
    return True, "in both"


@check("ids precede the answer", "position_ids reads the targets' values")
def _(task: Task) -> Measurement:
    """`position_ids` follow from the inputs and the number of targets alone, up to max(N, M) + 1."""
    kinds: set[str] = set()
    for length in makeable(task, (3, 9, 20)):
        inputs, targets = draw(task, length, 50)
        unanswered = task.position_ids(inputs, torch.full_like(targets, IGNORE))
        most = max(length, task.target_length(length)) + 1
        for kind, ids in task.position_ids(inputs, targets).items():
            kinds.add(kind)
            blind = unanswered[kind]
            if kind not in ("coupling", "abacus") or not ids[0].dtype == ids[1].dtype == torch.int64:
                return False, f"{kind}: {ids[0].dtype} and {ids[1].dtype}"
            largest = max(int(ids[0].max()), int(ids[1].max()), ids.separator)
            if min(ids[0].min(), ids[1].min()) < 0 or largest > most:
                return False, f"length {length}: {kind} up to {largest}, and 0 to {most} are allowed"
            if not (torch.equal(ids[0], blind[0]) and torch.equal(ids[1], blind[1])):
                return False, f"length {length}: {kind} ids change with the answers"
    return bool(kinds) or None, ", ".join(sorted(kinds)) or "it has none"


class TaskSettings(Section):
    """What ``configs/check_task.yaml`` may say."""

    task: dict[str, Any]


def check_task(asked: TaskSettings) -> bool:
    """Check a task and print what was found; returns whether the contract holds."""
    component = load_component("task", asked.task)
    task = component.build()
    if task.vocab_size > MOST_SYMBOLS:
        most = f"expected at most {MOST_SYMBOLS} here, where guessing is counted symbol by symbol"
        raise UserError(f"task: vocab_size={task.vocab_size} of {component.cls.__name__}: {most}")
    say(f"{component.target}\n")
    return not run_checks(CHECKS, {"": task})
