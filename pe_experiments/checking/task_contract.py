"""Define the contract of a task as checks: rule, chance and ceilings, shortcuts, repetitions.

To add a check, write a function of a task under ``@check(promise, usual cause of a failure)``.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import product

import torch
from torch import Tensor

from pe_experiments.checking.checks import Checks, Measurement, watch_random_draws
from pe_experiments.data.formats import format_for
from pe_experiments.tasks import IGNORE, Task
from pe_experiments.terminal.errors import UserError, allowed
from pe_experiments.training.preflight import broken_rule

LENGTHS = (*range(1, 14), 20, 33, 100)  # requested lengths; the nearest possible ones are used
BAGS = 40_000  # counted examples
MOST_SYMBOLS = 1024  # the counts take 8 bytes for each example and symbol
LONG = 20  # input symbols, enough for many inputs; the default longest training input
SEEDS = 600  # batches of one example each
FEWEST = 1_000  # different examples among `BAGS`
SPLITS = 5_000  # compared examples of training and of evaluation
MOST_TOKENS = 1_000_000  # drawn at a time
SURE = 0.99  # token accuracy at which a predictor knows the answer
CHECKS = Checks()
check = CHECKS.add


def draw(task: Task, length: int, rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    return task.sample(length, rows, torch.Generator().manual_seed(seed))


def makeable(task: Task, lengths: Iterable[int] = LENGTHS) -> list[int]:
    """Return the nearest possible lengths at or below these, without duplicates."""
    nearest = map(task.nearest_length, lengths)
    return sorted({length for length in nearest if length is not None})


def some_lengths(task: Task, lengths: Iterable[int] = LENGTHS) -> list[int]:
    """Return `makeable`, or the shortest lengths of a task that makes none of these."""
    shortest = task.shortest
    possible = makeable(task, lengths) or makeable(task, (shortest, shortest + 1, shortest + task.step))
    if not possible:
        raise UserError(f"task: {type(task).__name__} makes no inputs of up to {max(LENGTHS)} symbols")
    return possible


def answers_that_move(task: Task, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return where targets change if the symbols of each input are permuted, of the shape of targets."""
    orders = torch.rand(inputs.shape, generator=torch.Generator().manual_seed(1)).argsort(dim=1)
    return task.solve(inputs.gather(1, orders)) != targets


@check("samples obey the rule", "solve or sample is off by one at an end of the input")
def samples_obey_rule(task: Task) -> Measurement:
    for seed, length in enumerate(some_lengths(task)):
        inputs, targets = draw(task, length, 50, seed)
        if what := broken_rule(task, length, inputs, targets):
            return False, f"length {length}: {what}"
    return True, f"lengths {', '.join(map(str, some_lengths(task)))}"


@check("lengths are ordered", "nearest_length rounds up or forgets the shortest input")
def lengths_are_ordered(task: Task) -> Measurement:
    first = max(1, task.shortest - 2)
    lengths = {limit: task.nearest_length(limit) for limit in (1, *range(first, first + 120))}
    for limit, length in lengths.items():
        if length is not None and not (1 <= length <= limit and task.nearest_length(length) == length):
            return False, f"nearest_length({limit}) = {length}"
    ordered = [length or 0 for length in lengths.values()]
    return ordered == sorted(ordered) and ordered[-1] > 0, f"{ordered[0] or None} to {ordered[-1] or None}"


@check("the generator decides", "torch.randint without generator=, or something kept on self")
def generator_decides(task: Task) -> Measurement:
    length = some_lengths(task)[-1]
    with watch_random_draws() as touched:
        first = draw(task, length, 50, 3)
        for another_length in some_lengths(task):
            draw(task, another_length, 7, another_length)
        again, other_seed = draw(task, length, 50, 3), draw(task, length, 50, 4)
    if not all(map(torch.equal, first, again)):
        return False, "the same generator gave other examples"
    if torch.equal(first[0], other_seed[0]):
        return False, "another seed gave the same inputs"
    return not touched, f"it draws from or seeds {allowed(touched)}" if touched else "no other is touched"


@check("order matters as said", "order_sensitive is left at True for a control")
def order_matters(task: Task) -> Measurement:
    shares = []
    for length in (n for n in makeable(task, (4, 7, 12)) if n > 1):
        moved = answers_that_move(task, *draw(task, length, 400))
        shares.append(float(moved.any(dim=1).float().mean()))
    if not shares:
        return None, "only inputs of up to 12 symbols are permuted"
    fits = any(shares) if task.order_sensitive else not any(shares)
    return fits, f"answers change in {', '.join(f'{share:.2f}' for share in shares)} of the inputs"


@check("chance is uniform", "targets hold fewer symbols than vocab_size, and `answers` does not say how many")
def chance_is_uniform(task: Task) -> Measurement:
    if why := getattr(task, "chance_unchecked", None):
        return None, why
    counts = {}
    drawn_at_any_length: set[int] = set()
    for length in some_lengths(task, (1, 2, 4, 9, 13, 20)):
        _, targets = draw(task, length, 5000)
        symbols, times = targets[targets != IGNORE].unique(return_counts=True)
        counts[length] = len(symbols), int((times == 1).sum())
        drawn_at_any_length |= set(symbols.tolist())
    for length, (symbols_drawn, drawn_once) in counts.items():
        stated = 1 / task.chance(length)
        if abs(stated - symbols_drawn) <= 1e-4 * symbols_drawn:
            continue
        # A symbol that is rare at one length may be frequent at another, or seen once in a while.
        rare = stated > symbols_drawn and (
            abs(stated - len(drawn_at_any_length)) <= 1e-4 * stated or drawn_once > 0
        )
        if not rare:
            return (
                False,
                f"length {length}: {task.chance(length):.4g}, and targets hold {symbols_drawn} symbols",
            )
    return True, "one over the symbols seen"


@check("the ceiling is possible", "bag_ceiling of an answer that order decides")
def ceiling_is_possible(task: Task) -> Measurement:
    for length, _, ceiling in _ceilings(task, makeable(task, (1, 20, 100, 160))):
        if not task.chance(length) - 1e-9 <= ceiling <= 1 + 1e-9:
            return False, f"length {length}: {ceiling:.4g}, chance {task.chance(length):.4g}"
        if ceiling < 1 - 1e-9 and not task.order_sensitive:
            return False, f"length {length}: {ceiling:.4g} of a task that a bag solves"
    return True, "or unknown"


@check("the ceiling is reached", "return None where the ceiling is not known")
def ceiling_is_reached(task: Task) -> Measurement:
    counted_any = None
    for length, prefix, ceiling in _ceilings(task, makeable(task, (4, 7))):
        low, high, error = _counted(task, length, prefix)
        if high - low >= 0.06:  # too few examples of each bag
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
    """Return a lower and an upper estimate of the bag ceiling by counting, and their standard error."""
    inputs, targets = draw(task, length, BAGS, seed=7)
    factors = torch.randint(2**62, (2 * inputs.shape[1] + targets.shape[1],), generator=torch.Generator())
    low = high = scored = 0.0
    for target in range(targets.shape[1]):
        rows = targets[:, target] != IGNORE
        inputs_of_target = inputs[rows]
        answers = targets[rows, target]
        if "aligned" in task.formats:
            beside = inputs_of_target[:, [target]]
            bag = inputs_of_target[:, : target + 1] if prefix else inputs_of_target
        else:
            beside = targets[rows, : target if prefix else 0]
            bag = inputs_of_target
        visible = torch.cat([bag.sort(dim=1).values, beside], dim=1)
        # A hash numbers the groups, because `unique(dim=0)` takes seconds.
        group = (visible * factors[: visible.shape[1]]).sum(dim=1).unique(return_inverse=True)[1]
        votes = torch.zeros(2, len(group.unique()), task.vocab_size)
        votes.index_put_((torch.arange(len(group)) % 2, group, answers), torch.ones(()), accumulate=True)
        mode = votes.argmax(dim=-1, keepdim=True)
        low += float(votes.gather(-1, mode.flip(0)).sum())
        high += float(votes.sum(dim=0).amax(dim=-1).sum())
        scored += len(group)
    return low / scored, high / scored, 0.5 / scored**0.5 * task.target_length(length) ** 0.5


@check("the blind guess is modal", "input_blind of another length")
def blind_guess_is_modal(task: Task) -> Measurement:
    known = None
    for length in makeable(task, (3, 12)):
        blind = task.input_blind(length)
        if blind is None:
            continue
        reached = _modal_share(*(draw(task, length, BAGS, seed)[1] for seed in (1, 2)))
        known = abs(reached - blind) <= 0.01
        if not known:
            return False, f"length {length}: {blind:.4g}, and the most frequent answers reach {reached:.4g}"
    length = some_lengths(task, (12,))[-1]
    if known is None and task.chance(length) < 0.6:
        reached = _modal_share(*(draw(task, length, SPLITS, seed)[1] for seed in (1, 2)))
        if reached > 0.9:
            return False, f"length {length}: not stated, and one guess is right in {reached:.0%} of the cases"
    return known, "the most frequent answers"


def _modal_share(seen_BM: Tensor, asked_BM: Tensor) -> float:
    """Return the token accuracy of guessing at each place what was seen there most often."""
    right, total = 0, 0
    for seen_B, asked_B in zip(seen_BM.T, asked_BM.T, strict=True):
        seen_b, asked_b = seen_B[seen_B != IGNORE], asked_B[asked_B != IGNORE]
        if len(seen_b):
            right += int((asked_b == seen_b.mode().values).sum())
            total += len(asked_b)
    return right / max(1, total)


@check("layouts score the targets", "target_length is not the width of targets")
def layouts_score_targets(task: Task) -> Measurement:
    for causal in (True, False):
        layout = format_for(task, causal)
        length = some_lengths(task, (1, 2, 4, 8))[-1]
        inputs, targets = draw(task, length, 10)
        rows = layout.lay_out(inputs, targets)
        content = rows.labels_BT[(rows.labels_BT != IGNORE) & (rows.labels_BT != layout.eos)]
        tokens = layout.tokens(length, task.target_length(length))
        if rows.tokens_BT.shape != (10, tokens) or not torch.equal(content, targets[targets != IGNORE]):
            where = "a decoder" if causal else "an encoder"
            return False, f"rows of shape {tuple(rows.tokens_BT.shape)} in {where}"
    return True, "in both"


@check("ids precede the answer", "position_ids reads the targets' values")
def ids_precede_answer(task: Task) -> Measurement:
    """Check that `position_ids` depend only on inputs and number of targets, up to max(N, M) + 1."""
    kinds: set[str] = set()
    for length in some_lengths(task, (3, 9, 20)):
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


@check("depth is a share", "depth gives an index instead of a share of the input")
def depth_is_share(task: Task) -> Measurement:
    for length in some_lengths(task):
        depth = task.depth(draw(task, length, 50)[0])
        if depth is None:
            return None, "it has none"
        if depth.shape != (50,) or not ((depth >= 0) & (depth <= 1)).all():
            return False, f"length {length}: shape {tuple(depth.shape)}, the largest {float(depth.max()):.4g}"
    return True, "one from 0 to 1 per example"


@check("examples are many", "a fixed list of examples, a seed taken modulo a number, one example a batch")
def examples_are_many(task: Task) -> Measurement:
    length = some_lengths(task, (LONG,))[-1]
    rows = min(BAGS, MOST_TOKENS // length)
    inputs, _ = draw(task, length, rows, 5)
    distinct = len(inputs.unique(dim=0))
    symbols = len(inputs.unique())
    possible = float(symbols) ** min(length, 9)
    if distinct < min(FEWEST, rows / 10, possible / 100):
        return False, f"length {length}: {distinct} different inputs among {rows:,}"
    in_a_batch = len(inputs[:SEEDS].unique(dim=0))
    seeds = torch.randint(2**31, (SEEDS,), generator=torch.Generator().manual_seed(6)).tolist()
    of_seeds = len(torch.cat([draw(task, length, 1, seed)[0] for seed in seeds]).unique(dim=0))
    if of_seeds < 0.8 * in_a_batch:
        return False, f"length {length}: {SEEDS:,} seeds give {of_seeds} different inputs"
    if in_a_batch < 0.8 * of_seeds:
        return False, f"length {length}: a batch of {SEEDS:,} holds {in_a_batch} different inputs"
    return True, f"length {length}: {distinct:,} different inputs among {rows:,}"


@check("evaluation is not in training", "both are drawn from one list of examples (see for_split)")
def evaluation_is_not_in_training(task: Task) -> Measurement:
    length = some_lengths(task, (LONG, 100))[-1]
    rows = min(SPLITS, MOST_TOKENS // length)
    trained, _ = draw(task.for_split("training"), length, rows, 11)
    evaluated, _ = draw(task.for_split("evaluation"), length, rows, 12)
    if length * math.log(len(trained.unique())) < math.log(1e6):
        return None, f"there are few inputs of length {length}"
    trained_inputs = set(map(tuple, trained.tolist()))
    share = sum(row in trained_inputs for row in map(tuple, evaluated.tolist())) / rows
    return share < 0.5, f"length {length}: {share:.0%} of {rows:,} are among as many of training"


@check("no input symbol tells what the rule does not read", "labels are left in the input")
def no_symbol_leaks(task: Task) -> Measurement:
    for length in some_lengths(task, (5, 9)):
        inputs, targets = draw(task, length, SPLITS, 21)
        for symbol, target in deciding_symbols(inputs, targets):
            shuffled = inputs.clone()
            order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1))
            shuffled[:, symbol] = inputs[order, symbol]
            changed = (shuffled[:, symbol] != inputs[:, symbol]).nonzero().flatten()[:200]
            try:
                solved = task.solve(shuffled[changed])
            except Exception:  # such an input does not exist
                continue
            if len(changed) and torch.equal(solved[:, target], targets[changed, target]):
                tells = f"symbol {symbol} of the input tells target {target}"
                return False, f"length {length}: {tells}, and solve does not read it"
    return True, "none does"


def deciding_symbols(inputs: Tensor, targets: Tensor) -> list[tuple[int, int]]:
    """Return indices of input symbols and of targets that they determine better than a guess."""
    decided = []
    for target, answers in enumerate(targets.T):
        if (answers != IGNORE).float().mean() < 0.5 or share_of_mode(answers) > 0.9:
            continue
        symbols = range(inputs.shape[1])
        decided += [(s, target) for s in symbols if accuracy_from(inputs[:, s], answers) >= SURE]
    return decided


def share_of_mode(answers: Tensor) -> float:
    return float((answers == answers.mode().values).float().mean())


def accuracy_from(feature: Tensor, answers: Tensor) -> float:
    """Return how often the most frequent answer per feature in the first half is right in the second."""
    half = len(feature) // 2
    scored = answers != IGNORE
    if not scored[half:].any():
        return 0.0
    counts = torch.zeros(int(feature.max()) + 1, int(answers.max()) + 1)
    counted = feature[:half][scored[:half]], answers[:half][scored[:half]]
    counts.index_put_(counted, torch.ones(()), accumulate=True)
    guesses = counts.argmax(dim=1)[feature[half:][scored[half:]]]
    return float((guesses == answers[half:][scored[half:]]).float().mean())


def remarks_on(task: Task) -> list[str]:
    """Return remarks on shortcuts that may be intended, and on how much there is to learn."""
    length = some_lengths(task, (9, 12))[-1]
    if length > max(LENGTHS):
        shortest = some_lengths(task)[0]
        return [f"The shortest input has {shortest:,} symbols; checks of short inputs do not apply."]
    remarks = []
    inputs, targets = draw(task, length, SPLITS, 31)
    every_target = list(range(targets.shape[1]))
    decided = {target: symbol for symbol, target in reversed(deciding_symbols(inputs, targets))}
    if sorted(decided) == every_target:
        remarks.append(f"Each target follows from one input symbol (target 0 from symbol {decided[0]}).")
    # Number of repetitions of the last symbol at the end of each input.
    padding = (inputs.flip(1) == inputs[:, -1].mode().values).long().cumprod(1).sum(1)
    if padding.unique().numel() > 2:
        follows_from_padding = [t for t in every_target if accuracy_from(padding, targets[:, t]) >= SURE]
        if follows_from_padding == every_target and all(
            share_of_mode(answers) < 0.9 for answers in targets.T
        ):
            remarks.append("How often the last symbol is repeated (padding?) tells target 0.")
    answered = (targets != IGNORE).sum(1)
    if answered.unique().numel() > 1 and accuracy_from(padding, answered) >= SURE:
        remarks.append("How often the last symbol is repeated (padding?) tells the length of the answer.")
    moved = answers_that_move(task, inputs[:400], targets[:400])[(targets != IGNORE)[:400]].float().mean()
    if task.order_sensitive and float(moved) < 0.1:
        remarks.append(f"The order of the input decides {float(moved):.1%} of the targets only.")
    return remarks
