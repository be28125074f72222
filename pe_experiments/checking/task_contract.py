"""The contract of a task as checks: whether each holds, the measurement, and the usual cause of a failure.

`tests/contracts` runs them over every YAML under configs/task, `scripts/check_task.py` on any task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from pe_experiments.checking.contract import Check, Outcome
from pe_experiments.components import load_component
from pe_experiments.console import say
from pe_experiments.formats import format_for
from pe_experiments.tasks import IGNORE, Task

LENGTHS = (*range(1, 14), 20, 33, 100)  # asked for; the nearest the task can make are tried
COUNTED = 9  # the longest input whose bags repeat often enough to count what a bag predictor reaches
BAGS = 40_000  # examples to count in


def draw(task: Task, length: int, rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The examples of a seed."""
    return task.sample(length, rows, torch.Generator().manual_seed(seed))


def makeable(task: Task, lengths: Iterable[int] = LENGTHS) -> list[int]:
    """What the task makes for these lengths: the nearest below, and no length twice."""
    return sorted({made for asked in lengths if (made := task.nearest_length(asked)) is not None})


def samples_obey_the_rule(task: Task) -> Outcome:
    """Shapes, types and symbols are as promised, and every target is what `solve` says."""
    for seed, length in enumerate(makeable(task)):
        inputs, targets = draw(task, length, 50, seed)
        scored = targets != IGNORE
        symbols = torch.cat([inputs.flatten(), targets[scored]])
        wrong = {
            f"inputs of shape {tuple(inputs.shape)}": inputs.shape != (50, length),
            f"targets of shape {tuple(targets.shape)}, M={task.target_length(length)}": targets.shape
            != (50, task.target_length(length)),
            f"{inputs.dtype} and {targets.dtype}": not inputs.dtype == targets.dtype == torch.int64,
            "no target is scored": not scored.any(),
            f"symbols {int(symbols.min())} to {int(symbols.max())} of {task.vocab_size}": symbols.min() < 0
            or symbols.max() >= task.vocab_size,
            "targets of -100 before others": "aligned" not in task.formats
            and (scored.long().diff(dim=1) > 0).any(),
        }
        for what, fails in wrong.items():
            if fails:
                return False, f"length {length}: {what}"
        if not torch.equal(solved := task.solve(inputs), targets):
            row = int((solved != targets).any(dim=1).nonzero()[0]) if solved.shape == targets.shape else 0
            said, rule = targets[row].tolist(), solved[row].tolist()
            return False, f"{inputs[row].tolist()} -> {said}, and solve says {rule}"
    return True, f"lengths {', '.join(map(str, makeable(task)))}"


def lengths_are_ordered(task: Task) -> Outcome:
    """The nearest length is at most what is asked for, can be made, and grows with it."""
    made = [(asked, task.nearest_length(asked)) for asked in range(1, 120)]
    for asked, length in made:
        if length is not None and not (1 <= length <= asked and task.nearest_length(length) == length):
            return False, f"nearest_length({asked}) = {length}"
    known = [length or 0 for _, length in made]
    return known == sorted(known) and known[-1] > 0, f"{known[0] or None} to {known[-1] or None}"


def seeds_decide(task: Task) -> Outcome:
    """Equal generators give equal examples, whatever was drawn before; no other randomness is touched."""
    length = makeable(task)[-1]
    state = torch.random.get_rng_state()
    first = draw(task, length, 50, 3)
    for other in makeable(task):
        draw(task, other, 7, other)
    again, else_where = draw(task, length, 50, 3), draw(task, length, 50, 4)
    if not all(torch.equal(one, two) for one, two in zip(first, again, strict=True)):
        return False, "the same generator gave other examples"
    if torch.equal(first[0], else_where[0]):
        return False, "another seed gave the same inputs"
    return torch.equal(state, torch.random.get_rng_state()), "torch's global generator"


def order_matters_as_said(task: Task) -> Outcome:
    """Shuffled inputs have other answers if ``order_sensitive``, and the same ones if not."""
    shares = []
    for length in (n for n in makeable(task, (4, 7, 12)) if n > 1):
        inputs, targets = draw(task, length, 400)
        orders = torch.rand(400, length, generator=torch.Generator().manual_seed(1)).argsort(dim=1)
        moved = task.solve(inputs.gather(1, orders)) != targets
        shares.append(float(moved.any(dim=1).float().mean()))
    fits = all(share > 0.1 if task.order_sensitive else share == 0 for share in shares)
    return fits if shares else None, f"answers change in {', '.join(f'{share:.2f}' for share in shares)}"


def chance_is_uniform(task: Task) -> Outcome:
    """`chance` is one over the symbols a target can hold."""
    if why := getattr(task, "chance_unchecked", None):
        return None, why
    for length in makeable(task, (1, 2, 4, 9, 13, 20)):
        _, targets = draw(task, length, 5000)
        symbols = len(targets[targets != IGNORE].unique())
        if abs(task.chance(length) - 1 / symbols) > 1e-6:
            return False, f"length {length}: {task.chance(length):.4g}, and targets hold {symbols} symbols"
    return True, "one over the symbols seen"


def ceilings_lie_between(task: Task) -> Outcome:
    """`bag_ceiling` lies between chance and 1, and is 1 where order does not matter."""
    for length in makeable(task, (1, 20, 100, 160)):
        for prefix in (False, True):
            ceiling, error = task.bag_ceiling(length, prefix), task.bag_ceiling_error(length, prefix)
            if ceiling is None:
                continue
            low = task.chance(length) - 3 * error - 1e-9
            if not (0 <= error < 0.07 and low <= ceiling <= 1 + 1e-9):
                return False, f"length {length}: {ceiling:.4g}, chance {task.chance(length):.4g}"
            if ceiling < 1 - 1e-9 and not task.order_sensitive:
                return False, f"length {length}: {ceiling:.4g} of a task that a bag solves"
    return True, "or unknown"


def ceiling_is_reached(task: Task) -> Outcome:
    """`bag_ceiling` is what the best guess from the bag of inputs reaches, counted on short inputs."""
    counted_any = None
    for length in (n for n in makeable(task, (4, 7)) if n <= COUNTED):
        for prefix in (False, True):
            if (ceiling := task.bag_ceiling(length, prefix)) is None:
                continue
            low, high, error = _counted(task, length, prefix)
            if high - low >= 0.06:  # too few examples of each bag to say anything
                continue
            counted_any = True
            allowed = 3 * (error**2 + task.bag_ceiling_error(length, prefix) ** 2) ** 0.5
            if not low - allowed <= ceiling <= high + allowed:
                who = "a decoder" if prefix else "an order-blind predictor"
                return False, f"length {length}: {ceiling:.4g}, and {who} reaches {low:.4g} to {high:.4g}"
    return counted_any, f"{BAGS} examples"


def _counted(task: Task, length: int, prefix: bool) -> tuple[float, float, float]:
    """Bag ceiling by counting: (too low, too high, standard error).

    Examples are grouped by what the predictor sees: the bag, the target asked for, the symbol it stands at
    (``aligned``) and, with ``prefix``, the answer or the inputs so far. The most frequent answer of a group
    is scored on other examples (too low) and on those that made it most frequent (too high).
    """
    inputs, targets = draw(task, length, BAGS, seed=7)
    low = high = scored = 0.0
    for group, answers in _groups(task, inputs, targets, prefix):
        votes = torch.zeros(2, int(group.max()) + 1, task.vocab_size)
        half = torch.arange(len(group)) % 2
        votes.index_put_((half, group, answers), torch.ones(len(group)), accumulate=True)
        mode = votes.argmax(dim=-1, keepdim=True)
        low += float(votes.gather(-1, mode.flip(0)).sum())
        high += float(votes.sum(dim=0).max(dim=-1).values.sum())
        scored += len(group)
    return low / scored, high / scored, 0.5 / scored**0.5 * task.target_length(length) ** 0.5


def _groups(task: Task, inputs: Tensor, targets: Tensor, prefix: bool) -> Iterator[tuple[Tensor, Tensor]]:
    aligned = "aligned" in task.formats
    for asked in range(targets.shape[1]):
        rows = targets[:, asked] != IGNORE
        if not rows.any():
            continue
        seen = [inputs[rows].sort(dim=1).values]
        if aligned:
            bag = inputs[rows, : asked + 1] if prefix else inputs[rows]
            seen = [bag.sort(dim=1).values, inputs[rows, asked, None]]
        elif prefix:
            seen.append(targets[rows, :asked])
        yield _numbered(torch.cat(seen, dim=1)), targets[rows, asked]


def _numbered(rows: Tensor) -> Tensor:
    """A number per row, the same for equal rows: of hashes, because `unique(dim=0)` takes seconds."""
    factors = torch.randint(2**62, rows.shape[1:], generator=torch.Generator().manual_seed(0))
    return (rows * factors).sum(dim=1).unique(return_inverse=True)[1]


def blind_guess_is_the_modal_answer(task: Task) -> Outcome:
    """`input_blind` is what the most frequent answer at each index reaches."""
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


def layouts_score_the_targets(task: Task) -> Outcome:
    """Rows for a decoder and for an encoder score exactly the targets."""
    for causal in (True, False):
        layout, length = format_for(task, causal), makeable(task, (1, 2, 4, 8))[-1]
        inputs, targets = draw(task, length, 10)
        rows = layout.lay_out(inputs, targets)
        content = rows.labels_BT[(rows.labels_BT != IGNORE) & (rows.labels_BT != layout.eos)]
        tokens = layout.tokens(length, task.target_length(length))
        if rows.tokens_BT.shape != (10, tokens) or not torch.equal(content, targets[targets != IGNORE]):
            return (
                False,
                f"rows of shape {tuple(rows.tokens_BT.shape)} in {'a decoder' if causal else 'an encoder'}",
            )
    return True, "in both"


def ids_are_read_before_the_answer(task: Task) -> Outcome:
    """`position_ids` follow from the inputs and the number of targets alone, up to max(N, M) + 1."""
    kinds: set[str] = set()
    for length in makeable(task, (3, 9, 20)):
        inputs, targets = draw(task, length, 50)
        unanswered = task.position_ids(inputs, torch.full_like(targets, IGNORE))
        largest = max(length, task.target_length(length)) + 1
        for kind, ids in task.position_ids(inputs, targets).items():
            kinds.add(kind)
            parts = (
                (ids.inputs_BN, unanswered[kind].inputs_BN),
                (ids.targets_BM, unanswered[kind].targets_BM),
            )
            for part, again in parts:
                if kind not in ("coupling", "abacus") or part.dtype != torch.int64:
                    return False, f"{kind}: {part.dtype}"
                if part.min() < 0 or max(int(part.max()), ids.separator) > largest:
                    return (
                        False,
                        f"length {length}: {kind} up to {int(part.max())}, and {largest} are allowed",
                    )
                if not torch.equal(part, again):
                    return False, f"length {length}: {kind} ids change with the answers"
    return bool(kinds) or None, ", ".join(sorted(kinds)) or "it has none"


_PROMISES = [
    ("samples obey the rule", samples_obey_the_rule, "solve or sample is off by one at an end of the input"),
    ("lengths are ordered", lengths_are_ordered, "nearest_length rounds up or forgets the shortest input"),
    ("the generator decides", seeds_decide, "torch.randint without generator=, or something kept on self"),
    ("order matters as said", order_matters_as_said, "order_sensitive is left at True for a control"),
    ("chance is uniform", chance_is_uniform, "chance counts vocab_size where targets hold fewer symbols"),
    ("the ceiling is possible", ceilings_lie_between, "bag_ceiling of an answer that order decides"),
    ("the ceiling is reached", ceiling_is_reached, "return None where the ceiling is not known"),
    ("the blind guess is modal", blind_guess_is_the_modal_answer, "input_blind of another length"),
    ("layouts score the targets", layouts_score_the_targets, "target_length is not the width of targets"),
    ("ids precede the answer", ids_are_read_before_the_answer, "position_ids reads the targets' values"),
]
CHECKS = {promise[0]: Check(*promise) for promise in _PROMISES}


def check_task(config: DictConfig) -> bool:
    """Check what `configs/check_task.yaml` asks for and print it.

    Returns:
        Whether the contract holds.

    Raises:
        UserError: an unknown task or arguments, a task that cannot be built.
    """
    component = load_component("task", OmegaConf.to_container(config.task))  # type: ignore[arg-type]
    say(f"{component.target}\n")
    task = component.build()
    findings = [check(task) for check in CHECKS.values()]
    for finding in findings:
        say(f"{finding.check:32}{ {True: 'holds', False: 'FAILS', None: '-'}[finding.holds] }")
    failed = [finding for finding in findings if finding.holds is False]
    for finding in failed:
        say(f"\nFAILS: {finding.check}\n  measured: {finding.measured}\n  usually: {finding.usually}")
    return not failed
