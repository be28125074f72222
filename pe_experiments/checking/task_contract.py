"""Define the contract of a task (rule, chance, ceilings, shortcuts, repetitions), and the command check_task.

To add a check, write a function of a task under ``@check(name, promise, usual cause of a failure)``.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.checking.checks import Checks, Measurement, run_checks, watch_global_generators
from pe_experiments.configuration.component import load_component
from pe_experiments.configuration.schema import Section
from pe_experiments.data.formats import FORMATS, format_for
from pe_experiments.tasks import IGNORE, Task
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError, allowed

LENGTHS = (*range(1, 14), 20, 33, 100)  # requested lengths; the nearest possible ones are used
BAGS = 40_000  # examples from which ceilings and guesses are estimated
MOST_COUNTED_SYMBOLS = 1024  # the counts take 8 bytes for each example and symbol
DEFAULT_MAX_LENGTH = 160  # input symbols of the longest evaluation by default, eight times those in training
ROWS = 8  # examples of every length
LONG = 20  # input symbols, enough for many inputs; the default longest training input
SEEDS = 600  # batches of a single example
FEWEST = 1_000  # number of different examples required among `BAGS`
SPLITS = 5_000  # examples of training that are compared with as many of evaluation
MOST_TOKENS = 1_000_000  # in one draw
SURE = 0.99  # accuracy from which a symbol is said to determine a target
AGREEING = """sample and solve are held against each other: a mistake that both make cannot be found here.
Check some answers by hand."""
CHECKS = Checks()
check = CHECKS.add


def draw_examples(task: Task, length: int, rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    return task.sample(length, rows, torch.Generator().manual_seed(seed))


def possible_lengths(task: Task, lengths: Iterable[int] = LENGTHS) -> list[int]:
    """Return the nearest lengths at or below these for which the task has inputs, without duplicates."""
    nearest = map(task.nearest_length, lengths)
    return sorted({length for length in nearest if length is not None})


def lengths_to_check(task: Task, lengths: Iterable[int] = LENGTHS) -> list[int]:
    """Return the `possible_lengths`, or if there are none, the shortest lengths of the task's inputs."""
    shortest = task.shortest
    possible = possible_lengths(task, lengths)
    if not possible:
        possible = possible_lengths(task, (shortest, shortest + 1, shortest + task.step))
    if not possible:
        raise UserError(f"task: {type(task).__name__} makes no inputs of up to {max(LENGTHS)} symbols")
    return possible


def differing_builds(build: Callable[[], Task]) -> str:
    """Describe how two tasks built in the same way differ in their examples; return "" if they agree."""
    with watch_global_generators() as sources:
        first, second = build(), build()
    if sources:
        return f"building it draws from or seeds {allowed(sources)}"
    for length in lengths_to_check(first):
        examples = draw_examples(first, length, 50), draw_examples(second, length, 50)
        if not all(map(torch.equal, *examples)):
            return f"two instances draw other examples of length {length} from the same generator"
    return ""


def _solve(task: Task, inputs: Tensor, width: int) -> Tensor:
    """Return the targets of these inputs, cropped or padded to ``width``."""
    answers = task.solve(inputs)
    return F.pad(answers, (0, width - answers.shape[1]), value=IGNORE)


def broken_rule(task: Task, length: int, inputs: Tensor, targets: Tensor) -> str:
    """Return the first mistake in examples (shape, dtype, symbol or target), or an empty string."""
    scored = targets != IGNORE
    width = task.target_length(length)
    unknown_formats = set(task.formats) - set(FORMATS)
    if unknown_formats:
        return f"formats {allowed(sorted(unknown_formats))}, expected {allowed(FORMATS)}"
    if inputs.shape != (len(targets), task.input_length(length)):
        return f"inputs of shape {tuple(inputs.shape)}"
    if targets.shape != (len(inputs), width):
        return f"targets of shape {tuple(targets.shape)}, M={width}"
    if not inputs.dtype == targets.dtype == torch.int64:
        return f"{inputs.dtype} and {targets.dtype}, expected torch.int64"
    if not scored.any():
        return "no target is scored"
    if task.answers is not None and not 1 <= task.answers <= task.vocab_size:
        return f"answers={task.answers}, expected None or 1 to vocab_size={task.vocab_size}"
    symbols = torch.cat([inputs.flatten(), targets[scored]])
    if symbols.min() < 0 or symbols.max() >= task.vocab_size:
        return f"symbols {int(symbols.min())} to {int(symbols.max())} of {task.vocab_size}"
    if "aligned" not in task.formats and (scored.long().diff(dim=1) > 0).any():
        return "targets of -100 before others"
    answers = task.solve(inputs)
    if torch.equal(answers, targets):
        return ""
    row = 0
    if answers.shape == targets.shape:
        row = int((answers != targets).any(dim=1).nonzero()[0])
    return f"{inputs[row].tolist()} -> {targets[row].tolist()}, and solve says {answers[row].tolist()}"


@check("rule", "samples obey the rule", "solve or sample is off by one at an end of the input")
def samples_obey_rule(task: Task) -> Measurement:
    """Solve many examples of usual lengths, then some of every length that runs have by default."""
    usual = lengths_to_check(task)
    others = sorted({*lengths_to_check(task, range(1, DEFAULT_MAX_LENGTH + 1))} - {*usual})
    for rows, lengths in ((50, usual), (ROWS, others)):
        for seed, length in enumerate(lengths):
            inputs, targets = draw_examples(task, length, rows, seed)
            violation = broken_rule(task, length, inputs, targets)
            if violation:
                return False, f"length {length}: {violation}"
    return True, f"at every length from {usual[0]} to {max(*usual, *others)}"


@check("lengths", "lengths are ordered", "nearest_length rounds up or forgets the shortest input")
def lengths_are_ordered(task: Task) -> Measurement:
    first = max(1, task.shortest - 2)
    lengths = {limit: task.nearest_length(limit) for limit in (1, *range(first, first + 120))}
    for limit, length in lengths.items():
        if length is not None and not (1 <= length <= limit and task.nearest_length(length) == length):
            return False, f"nearest_length({limit}) = {length}"
    ordered = [length or 0 for length in lengths.values()]
    return ordered == sorted(ordered) and ordered[-1] > 0, f"{ordered[0] or None} to {ordered[-1] or None}"


@check("generator", "the generator decides", "torch.randint without generator=, or something kept on self")
def generator_decides(task: Task) -> Measurement:
    length = lengths_to_check(task)[-1]
    with watch_global_generators() as sources:
        first = draw_examples(task, length, 50, 3)
        for another_length in lengths_to_check(task):
            draw_examples(task, another_length, 7, another_length)
        again = draw_examples(task, length, 50, 3)
        other_seed = draw_examples(task, length, 50, 4)
    if sources:
        return False, f"it draws from or seeds {allowed(sources)}"
    if not all(map(torch.equal, first, again)):
        return False, "the same generator gave other examples"
    if torch.equal(first[0], other_seed[0]):
        return False, "another seed gave the same inputs"
    return True, "no other is touched"


@check("order", "order matters as said", "order_sensitive is left at True for a control")
def order_matters(task: Task) -> Measurement:
    shares = []
    for length in (n for n in possible_lengths(task, (4, 7, 12)) if n > 1):
        inputs, targets = draw_examples(task, length, 400)
        orders = torch.rand(inputs.shape, generator=torch.Generator().manual_seed(1)).argsort(dim=1)
        changed = _solve(task, inputs.gather(1, orders), targets.shape[1]) != targets
        shares.append(float(changed.any(dim=1).float().mean()))
    if not shares:
        return None, "only inputs of up to 12 symbols are permuted"
    fits = any(shares) if task.order_sensitive else not any(shares)
    return fits, f"answers change in {', '.join(f'{share:.2f}' for share in shares)} of the inputs"


@check(
    "chance",
    "chance is uniform",
    "targets hold fewer symbols than vocab_size, and `answers` does not say how many",
)
def chance_is_uniform(task: Task) -> Measurement:
    if reason := getattr(task, "chance_unchecked", None):
        return None, reason
    counts = {}
    all_symbols_drawn: set[int] = set()
    for length in lengths_to_check(task, (1, 2, 4, 9, 13, 20)):
        _, targets = draw_examples(task, length, 5000)
        symbols, times = targets[targets != IGNORE].unique(return_counts=True)
        counts[length] = len(symbols), int((times == 1).sum())
        all_symbols_drawn |= set(symbols.tolist())
    for length, (symbols_drawn, drawn_once) in counts.items():
        stated = 1 / task.chance(length)
        if abs(stated - symbols_drawn) <= 1e-4 * symbols_drawn:
            continue
        # Missing symbols may be rare: they appear at another length, or some symbol appeared only once.
        appear_elsewhere = abs(stated - len(all_symbols_drawn)) <= 1e-4 * stated
        if not (stated > symbols_drawn and (appear_elsewhere or drawn_once > 0)):
            measured = f"{task.chance(length):.4g}, and targets hold {symbols_drawn} symbols"
            return False, f"length {length}: {measured}"
    return True, "one over the symbols seen"


@check("ceiling_possible", "the ceiling is possible", "bag_ceiling of an answer that order decides")
def ceiling_is_possible(task: Task) -> Measurement:
    for length, _, ceiling in _ceilings(task, possible_lengths(task, (1, 20, 100, 160))):
        if not task.chance(length) - 1e-9 <= ceiling <= 1 + 1e-9:
            return False, f"length {length}: {ceiling:.4g}, chance {task.chance(length):.4g}"
        if ceiling < 1 - 1e-9 and not task.order_sensitive:
            return False, f"length {length}: {ceiling:.4g} of a task that a bag solves"
    return True, "or unknown"


@check("ceiling", "the ceiling is reached", "return None where the ceiling is not known")
def ceiling_is_reached(task: Task) -> Measurement:
    counted_any = None
    for length, prefix, ceiling in _ceilings(task, possible_lengths(task, (4, 7))):
        low, high, error = _count_bag_ceiling(task, length, prefix)
        if high - low >= 0.06:  # too few examples of each bag for an estimate
            continue
        counted_any = True
        if not low - 3 * error <= ceiling <= high + 3 * error:
            predictor = "a decoder" if prefix else "an order-blind predictor"
            return False, f"length {length}: {ceiling:.4g}, and {predictor} reaches {low:.4g} to {high:.4g}"
    return counted_any, f"{BAGS} examples"


def _ceilings(task: Task, lengths: Iterable[int]) -> Iterator[tuple[int, bool, float]]:
    """Yield length, ``prefix`` and bag ceiling for all cases in which the task states a ceiling."""
    for length, prefix in product(lengths, (False, True)):
        ceiling = task.bag_ceiling(length, prefix)
        if ceiling is not None:
            yield length, prefix, ceiling


def _count_bag_ceiling(task: Task, length: int, prefix: bool) -> tuple[float, float, float]:
    """Return a lower and an upper estimate of the bag ceiling by counting, and their standard error.

    The lower estimate predicts each half of the examples by the most frequent answers in the other half. The
    upper estimate predicts all examples by their own most frequent answers.
    """
    inputs, targets = draw_examples(task, length, BAGS, seed=7)
    factors = torch.randint(2**62, (2 * inputs.shape[1] + targets.shape[1],), generator=torch.Generator())
    low = high = scored = 0.0
    for target in range(targets.shape[1]):
        is_scored = targets[:, target] != IGNORE
        bag = inputs[is_scored]
        answers = targets[is_scored, target]
        if "aligned" in task.formats:
            ordered = bag[:, [target]]
            if prefix:
                bag = bag[:, : target + 1]
        else:
            ordered = targets[is_scored, : target if prefix else 0]
        visible = torch.cat([bag.sort(dim=1).values, ordered], dim=1)
        # A hash numbers the groups of equal rows, because `unique(dim=0)` takes seconds.
        groups = (visible * factors[: visible.shape[1]]).sum(dim=1).unique(return_inverse=True)[1]
        counts = torch.zeros(2, len(groups.unique()), task.vocab_size)
        halves = torch.arange(len(groups)) % 2
        counts.index_put_((halves, groups, answers), torch.ones(()), accumulate=True)
        most_frequent = counts.argmax(dim=-1, keepdim=True)
        low += float(counts.gather(-1, most_frequent.flip(0)).sum())
        high += float(counts.sum(dim=0).amax(dim=-1).sum())
        scored += len(groups)
    return low / scored, high / scored, 0.5 / scored**0.5 * task.target_length(length) ** 0.5


@check("blind_guess", "the blind guess is modal", "input_blind of another length")
def blind_guess_is_modal(task: Task) -> Measurement:
    stated_any = None
    for length in possible_lengths(task, (3, 12)):
        stated = task.input_blind(length)
        if stated is None:
            continue
        stated_any = True
        reached = _blind_accuracy(task, length, BAGS)
        if not abs(reached - stated) <= 0.01:
            return False, f"length {length}: {stated:.4g}, and the most frequent answers reach {reached:.4g}"
    length = lengths_to_check(task, (12,))[-1]
    if stated_any is None and task.chance(length) < 0.6:
        reached = _blind_accuracy(task, length, SPLITS)
        if reached > 0.9:
            return False, f"length {length}: not stated, and one guess is right in {reached:.0%} of the cases"
    return stated_any, "the most frequent answers"


def _blind_accuracy(task: Task, length: int, rows: int) -> float:
    """Return the accuracy of guessing each target by its most frequent answer among other examples."""
    _, training_BM = draw_examples(task, length, rows, seed=1)
    _, test_BM = draw_examples(task, length, rows, seed=2)
    correct = total = 0
    for training_B, test_B in zip(training_BM.T, test_BM.T, strict=True):
        training_answers = training_B[training_B != IGNORE]
        test_answers = test_B[test_B != IGNORE]
        if len(training_answers):
            correct += int((test_answers == training_answers.mode().values).sum())
            total += len(test_answers)
    return correct / max(1, total)


@check("layouts", "layouts score the targets", "target_length is not the width of targets")
def layouts_score_targets(task: Task) -> Measurement:
    for causal in (True, False):
        layout = format_for(task, causal)
        length = lengths_to_check(task, (1, 2, 4, 8))[-1]
        inputs, targets = draw_examples(task, length, 10)
        rows = layout.lay_out(inputs, targets)
        content = rows.labels_BT[(rows.labels_BT != IGNORE) & (rows.labels_BT != layout.eos)]
        tokens = layout.tokens(task.input_length(length), task.target_length(length))
        if rows.tokens_BT.shape != (10, tokens) or not torch.equal(content, targets[targets != IGNORE]):
            where = "a decoder" if causal else "an encoder"
            return False, f"rows of shape {tuple(rows.tokens_BT.shape)} in {where}"
    return True, "in both"


@check("position_ids", "ids precede the answer", "position_ids reads the targets' values")
def ids_precede_answer(task: Task) -> Measurement:
    """Check that `position_ids` depend on inputs and the number of targets only, and their range."""
    kinds: set[str] = set()
    for length in lengths_to_check(task, (3, 9, 20)):
        inputs, targets = draw_examples(task, length, 50)
        ids_without_answers = task.position_ids(inputs, torch.full_like(targets, IGNORE))
        most = max(length, task.target_length(length)) + 1
        for kind, ids in task.position_ids(inputs, targets).items():
            kinds.add(kind)
            expected = ids_without_answers[kind]
            if kind not in ("coupling", "abacus") or not ids[0].dtype == ids[1].dtype == torch.int64:
                return False, f"{kind}: {ids[0].dtype} and {ids[1].dtype}"
            if not (torch.equal(ids[0], expected[0]) and torch.equal(ids[1], expected[1])):
                ids_of_task = f"{kind} ids of {type(task).__name__}"
                return False, f"length {length}: {ids_of_task} depend on the values of its answers"
            largest = max(int(ids[0].max()), int(ids[1].max()), ids.separator)
            if min(ids[0].min(), ids[1].min()) < 0 or largest > most:
                return False, f"length {length}: {kind} up to {largest}, and 0 to {most} are allowed"
    return bool(kinds) or None, ", ".join(sorted(kinds)) or "it has none"


@check("depth", "depth is a share", "depth gives an index instead of a share of the input")
def depth_is_share(task: Task) -> Measurement:
    for length in lengths_to_check(task):
        depth = task.depth(draw_examples(task, length, 50)[0])
        if depth is None:
            return None, "it has none"
        if depth.shape != (50,) or not ((depth >= 0) & (depth <= 1)).all():
            return False, f"length {length}: shape {tuple(depth.shape)}, the largest {float(depth.max()):.4g}"
    return True, "one from 0 to 1 per example"


@check(
    "examples",
    "examples are many",
    "a fixed list of examples, a seed taken modulo a number, one example a batch",
)
def examples_are_many(task: Task) -> Measurement:
    length = lengths_to_check(task, (LONG,))[-1]
    rows = min(BAGS, MOST_TOKENS // length)
    inputs, _ = draw_examples(task, length, rows, 5)
    num_distinct = len(inputs.unique(dim=0))
    num_symbols = len(inputs.unique())
    num_possible = min(float(num_symbols) ** min(length, 9), task.num_inputs(length))
    if num_distinct < min(FEWEST, rows / 10, num_possible / 100):
        return False, f"length {length}: {num_distinct} different inputs among {rows:,}"
    distinct_in_batch = len(inputs[:SEEDS].unique(dim=0))
    seeds = torch.randint(2**31, (SEEDS,), generator=torch.Generator().manual_seed(6)).tolist()
    inputs_of_seeds = torch.cat([draw_examples(task, length, 1, seed)[0] for seed in seeds])
    distinct_of_seeds = len(inputs_of_seeds.unique(dim=0))
    if distinct_of_seeds < 0.8 * distinct_in_batch:
        return False, f"length {length}: {SEEDS:,} seeds give {distinct_of_seeds} different inputs"
    if distinct_in_batch < 0.8 * distinct_of_seeds:
        return False, f"length {length}: a batch of {SEEDS:,} holds {distinct_in_batch} different inputs"
    return True, f"length {length}: {num_distinct:,} different inputs among {rows:,}"


@check("splits", "evaluation is not in training", "both are drawn from one list of examples (see for_split)")
def evaluation_is_not_in_training(task: Task) -> Measurement:
    length = lengths_to_check(task.for_split("training"), (LONG, 100))[-1]
    rows = min(SPLITS, MOST_TOKENS // length)
    trained, _ = draw_examples(task.for_split("training"), length, rows, 11)
    evaluated, _ = draw_examples(task.for_split("evaluation"), length, rows, 12)
    if length * math.log(len(trained.unique())) < math.log(1e6):
        return None, f"there are few inputs of length {length}"
    trained_inputs = set(map(tuple, trained.tolist()))
    share = sum(row in trained_inputs for row in map(tuple, evaluated.tolist())) / rows
    return share < 0.5, f"length {length}: {share:.0%} of {rows:,} are among as many of training"


@check("leaks", "no input symbol tells what the rule does not read", "labels are left in the input")
def no_symbol_leaks(task: Task) -> Measurement:
    for length in lengths_to_check(task, (5, 9)):
        inputs, targets = draw_examples(task, length, SPLITS, 21)
        for target, answers in enumerate(targets.T):
            is_most_frequent = answers == answers.mode().values
            if (answers != IGNORE).float().mean() < 0.5 or is_most_frequent.float().mean() > 0.9:
                continue  # rarely scored or nearly constant
            for symbol, feature in enumerate(inputs.T):
                if predictive_accuracy(feature, answers) < SURE:
                    continue
                shuffled = inputs.clone()
                order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1))
                shuffled[:, symbol] = inputs[order, symbol]
                changed = (shuffled[:, symbol] != inputs[:, symbol]).nonzero().flatten()[:200]
                try:
                    solved = _solve(task, shuffled[changed], targets.shape[1])
                except Exception:  # such an input does not exist
                    continue
                if len(changed) and torch.equal(solved[:, target], targets[changed, target]):
                    tells = f"symbol {symbol} of the input tells target {target}"
                    return False, f"length {length}: {tells}, and solve does not read it"
    return True, "none does"


def predictive_accuracy(feature: Tensor, answers: Tensor) -> float:
    """Return the accuracy of predicting the second half's answers from a feature.

    Each value of the feature predicts its most frequent answer in the first half.
    """
    half = len(feature) // 2
    scored = answers != IGNORE
    training, test = scored.clone(), scored.clone()
    training[half:] = False
    test[:half] = False
    if not test.any():
        return 0.0
    counts = torch.zeros(int(feature.max()) + 1, int(answers.max()) + 1)
    counts.index_put_((feature[training], answers[training]), torch.ones(()), accumulate=True)
    predictions = counts.argmax(dim=1)[feature[test]]
    return float((predictions == answers[test]).float().mean())


# The command.


class TaskSettings(Section):
    """The options of ``configs/check_task.yaml``."""

    task: dict[str, Any]


def check_task(settings: TaskSettings) -> bool:
    """Check a task and print the results; return whether the contract holds."""
    component = load_component("task", settings.task)
    task = component.build()
    if task.vocab_size > MOST_COUNTED_SYMBOLS:
        most = f"expected at most {MOST_COUNTED_SYMBOLS} here, where guessing is counted symbol by symbol"
        raise UserError(f"task: vocab_size={task.vocab_size} of {component.cls.__name__}: {most}")
    say(f"{component.target}\n")
    failed = run_checks(CHECKS, {"": task})
    try:
        difference = differing_builds(component.build)
    except Exception:  # raised by the task, and reported by a check
        difference = ""
    if difference:
        say(f"\nFAILS: a run can be repeated\n  measured: {difference}")
    say("")
    say(AGREEING)
    return not failed and not difference
