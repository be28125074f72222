"""A trial before anything is written: the parts on an untrained model, and what they may not do."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.parts import user_errors
from pe_experiments.data.batches import BLOCK_EXAMPLES, Batch, Source, TrainingStream
from pe_experiments.data.formats import FORMATS
from pe_experiments.data.randomness import named_seed
from pe_experiments.encodings import AttentionContext, PositionalEncoding
from pe_experiments.models import Backbone, Transformer
from pe_experiments.models.initialisation import initialise_backbone
from pe_experiments.tasks import IGNORE, Task
from pe_experiments.terminal.errors import UserError, allowed
from pe_experiments.training.estimates import refuse_large_model, refuse_long_measurements

TRIED_TOKENS = 1024  # of a longer row the first ones and the last four are tried
CUTS = 8  # indices after which the tokens of a row are changed to see what moves before them
MOVED = 1e-4  # of the largest logit; ours move nothing at all, and a looser scheme may round
SOLVED_LENGTH = 20  # up to which answers are held against `solve`, which may be slow
TORCH = "torch's global generator"
IN_CONTEXT = ("x_BSD", "q_positions_BT", "k_positions_BS")
OF_PAIRS = ("relative_positions_BTS", "visible_BTS")  # shared by the layers, and too large to copy


def preflight(experiment: Experiment) -> list[str]:
    """Try what would otherwise fail after minutes or go unnoticed, on an untrained model.

    Examples must be right and follow from their generator. A training batch and the longest evaluation (at
    most `TRIED_TOKENS` of it) must give finite logits, each in its mode; a scheme may not change its inputs
    or draw numbers that the seed does not decide, and in a decoder no token may depend on later ones.
    Returns what the schemes remark on.
    """
    refuse_large_model(experiment)
    refuse_long_measurements(experiment)
    longest = experiment.evaluation_task.nearest_length(max(experiment.evaluation_lengths)) or 0
    last = experiment.config.evaluation.examples - 1  # of the examples at the longest length
    source, evaluated = experiment.source, experiment.evaluation_source
    model, batch = experiment.untrained_model(), _training_batch(experiment.batches)
    for task in dict.fromkeys((source.task, evaluated.task)):
        _refuse_wrong_answers(task, source.train_lengths)
    _refuse_telling_ids(source)
    same = zip(*(made.state_dict().values() for made in (model, experiment.untrained_model())), strict=True)
    if not all(one.nan_to_num().equal(other.nan_to_num()) for one, other in same):
        raise UserError("pe, model: other initial values every time; draw them from torch's generator only")
    for scheme in _schemes(model):
        watch_inputs(scheme)
    with user_errors("evaluation", "makes no examples"):
        row = _rows(evaluated.evaluation_block(longest, last // BLOCK_EXAMPLES), torch.tensor([0]))
    _run_model(experiment.untrained_model, model, source, batch, (longest, row))
    said = (f"{type(scheme).__name__}: {scheme.remark}" for scheme in _schemes(model) if scheme.remark)
    return list(dict.fromkeys(said))


def _training_batch(batches: TrainingStream) -> Batch:
    """The first batch, drawn twice to see that it follows from the streams of the run."""
    source = batches.source
    where = "task, positions or training.batch_size"
    with user_errors(where, "make no batch"), global_randomness() as touched:
        batch, again = (copy.copy(batches).batch(0) for _ in range(2))
    makers = [source.task] * 4 + [source.positions]
    wrong = [maker for maker, *two in zip(makers, batch, again, strict=True) if not torch.equal(*two)]
    if wrong or touched:
        names = allowed(dict.fromkeys(type(maker).__name__ for maker in wrong[:1] or makers))
        what = f"draws from or seeds {allowed(touched)}" if touched else "makes other examples every time"
        raise UserError(f"task, positions: {names} {what}; it may draw from the generator it is given only")
    return batch


def _refuse_wrong_answers(task: Task, lengths: Sequence[int]) -> None:
    short = [length for length in lengths if length <= SOLVED_LENGTH] or lengths[:1]
    made = {task.nearest_length(short[0]), task.nearest_length(short[-1])}
    for length in filter(None, made):
        with user_errors("task", f"fails at length {length}"), suppress(NotImplementedError):
            examples = task.sample(length, CUTS, torch.Generator().manual_seed(length))
            if what := broken_rule(task, length, *examples):
                raise ValueError(f"{type(task).__name__} at length {length}: {what}")


def broken_rule(task: Task, length: int, inputs: Tensor, targets: Tensor) -> str:
    """The first mistake in examples: a shape, a type, a symbol, or a target that `solve` does not say."""
    scored, width = targets != IGNORE, task.target_length(length)
    if unknown := set(task.formats) - set(FORMATS):
        return f"formats {allowed(sorted(unknown))}, expected {allowed(FORMATS)}"
    if inputs.shape != (len(targets), length):
        return f"inputs of shape {tuple(inputs.shape)}"
    if targets.shape != (len(inputs), width):
        return f"targets of shape {tuple(targets.shape)}, M={width}"
    if not inputs.dtype == targets.dtype == torch.int64:
        return f"{inputs.dtype} and {targets.dtype}, expected torch.int64"
    if not scored.any():
        return "no target is scored"
    symbols = torch.cat([inputs.flatten(), targets[scored]])
    if symbols.min() < 0 or symbols.max() >= task.vocab_size:
        return f"symbols {int(symbols.min())} to {int(symbols.max())} of {task.vocab_size}"
    if "aligned" not in task.formats and (scored.long().diff(dim=1) > 0).any():
        return "targets of -100 before others"
    if torch.equal(solved := task.solve(inputs), targets):
        return ""
    row = int((solved != targets).any(dim=1).nonzero()[0]) if solved.shape == targets.shape else 0
    return f"{inputs[row].tolist()} -> {targets[row].tolist()}, and solve says {solved[row].tolist()}"


def _refuse_telling_ids(source: Source) -> None:  # they would reveal the answer
    task = source.task
    if not source.positions.task_ids:
        return
    inputs_BN, targets_BM = task.sample(max(source.train_lengths), CUTS, torch.Generator().manual_seed(0))
    others_BM = torch.where(targets_BM == IGNORE, IGNORE, (targets_BM + 1) % task.vocab_size)
    ids, other = task.position_ids(inputs_BN, targets_BM), task.position_ids(inputs_BN, others_BM)
    for kind in set(ids) & set(source.positions.task_ids):
        pairs = zip(ids[kind], other[kind], strict=True)
        if not all(torch.equal(torch.as_tensor(one), torch.as_tensor(two)) for one, two in pairs):
            which = f"the {kind} ids of {type(task).__name__} change with what its answers say"
            raise UserError(f"task: {which}; they may follow from the inputs and the number of targets only")


def _run_model(
    make_model: Callable[[], Backbone], model: Backbone, source: Source, batch: Batch, last: tuple[int, Batch]
) -> None:
    """A training batch, some of its rows in evaluation, and a row of the longest evaluation length."""
    longest, row = last
    here, far = "on a training batch", f"at evaluation length {longest}"
    with user_errors("pe", f"fails {here}"), torch.no_grad():
        _require_finite(_logits(model, batch), batch, here)
    with user_errors("pe", f"fails {far}"), torch.no_grad():
        model.embed(row.tokens_BT, row.positions_BP, row.declared_B)
    some, row = _rows(batch, torch.arange(CUTS) % len(batch.tokens_BT)), _both_ends(row)
    _open_every_path(model, source.seed)
    for training, tried, where in ((True, some, here), (False, some, "in evaluation"), (False, row, far)):
        with user_errors("pe", f"fails {where}"), torch.set_grad_enabled(training):
            logits = _refuse_misleading(model.train(training), tried, source)
            if not logits.isfinite().all():  # under the run's own weights too?
                _require_finite(_logits(make_model().train(training), tried), tried, where)


def _rows(batch: Batch, rows_b: Tensor) -> Batch:
    own_BP = batch.positions_BP.expand(len(batch.tokens_BT), -1)
    return Batch(*(whole[rows_b] for whole in (*batch[:4], own_BP)))


def _both_ends(batch: Batch) -> Batch:
    """`TRIED_TOKENS` of a row: with the last, far apart ones, and fractional ids where the rest has them."""
    every = torch.arange(int(batch.lengths_B[0]))
    tried = every if len(every) <= TRIED_TOKENS else torch.cat([every[: TRIED_TOKENS - 4], every[-4:]])
    tokens, labels, _, _, positions = batch
    length_B = torch.tensor([len(tried)])
    return Batch(tokens[:, tried], labels[:, tried], length_B, length_B, positions[:, tried])


def _logits(model: Backbone, batch: Batch) -> Tensor:
    logits_BTV = model(batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B)
    if logits_BTV.shape[:2] != batch.tokens_BT.shape:
        shape, expected = tuple(logits_BTV.shape[:2]), tuple(batch.tokens_BT.shape)
        raise ValueError(f"its hidden states are [batch, tokens] = {shape}, expected {expected}")
    return logits_BTV.detach()


def _until(batch: Batch, stop_B: Tensor) -> Tensor:
    """Which tokens stand before an index, another in every row, [B, T]."""
    return torch.arange(batch.tokens_BT.shape[1]) < stop_B[:, None]


def _require_finite(logits_BTV: Tensor, batch: Batch, where: str) -> None:
    if not logits_BTV[_until(batch, batch.lengths_B)].isfinite().all():
        raise ValueError(f"its outputs {where} are NaN or infinite before any training")


def _open_every_path(model: Backbone, seed: int) -> None:
    """Other weights: as initialised, attention adds little to the logits and a gate may be shut."""
    initialise_backbone(model, "pytorch", model.shape.num_layers, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.encodings.parameters():
            noise = 0.1 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(torch.where(parameter == 0, noise.to(parameter.dtype), parameter))


def _refuse_misleading(model: Backbone, batch: Batch, source: Source) -> Tensor:
    """Logits, if in a decoder none depends on later tokens, equal passes agree and the seed decides draws."""
    schemes = _schemes(model)
    parts = [*schemes, *([] if type(model) is Transformer else [model])]
    names = allowed(dict.fromkeys(type(part).__name__ for part in parts))
    logits, drawn = _seeded(model, batch, names)
    if drawn:
        again, other = (_seeded(model, batch, names, trial)[1] for trial in (0, 1))
        if again != drawn or other == drawn:
            raise ValueError(f"{names} sets a seed, or keeps what it draws; every step has a seed of its own")
    decoder = model.shape.causal and not any(scheme.looks_ahead for scheme in schemes)
    changed, kept_BT = _changed(batch, source) if decoder else (batch, _until(batch, batch.lengths_B))

    def moved(other: Batch) -> float:
        difference = logits - _seeded(model, other, names)[0]
        return float(difference[kept_BT[: len(difference)]].abs().max() / logits.abs().max())

    by = moved(changed)
    if by <= MOVED or math.isnan(by):
        return logits
    if not decoder or moved(batch) > MOVED:
        why = "it draws random numbers that the seed does not decide, or keeps something of an earlier call"
        raise ValueError(f"{names} answers the same input differently: {why}")
    how = f"other tokens later on change what is predicted before them (by {by:.1g} of the largest logit)"
    raise ValueError(f"{names} looks ahead: in a decoder, {how}; if it is meant to: looks_ahead = True")


def _changed(batch: Batch, source: Source) -> tuple[Batch, Tensor]:
    """With other tokens from some index on, and which stand before it [B, T]; a single row twice."""
    if len(batch.tokens_BT) == 1:
        batch = _rows(batch, torch.zeros(2, dtype=torch.long))
        cuts_B = ((batch.lengths_B - 1) // torch.tensor([2, 1])).clamp(min=1)
    else:
        cuts_B = 1 + torch.arange(CUTS) * (batch.lengths_B - 2).clamp(min=0) // (CUTS - 1)
    generator = torch.Generator().manual_seed(source.seed)
    tokens_BT, kept_BT, vocabulary = batch.tokens_BT, _until(batch, cuts_B), source.format.vocab_size
    others_BT = (tokens_BT + torch.randint(1, vocabulary, tokens_BT.shape, generator=generator)) % vocabulary
    return batch._replace(tokens_BT=torch.where(kept_BT, tokens_BT, others_BT)), kept_BT


def _seeded(model: Backbone, batch: Batch, names: str, trial: int = 0) -> tuple[Tensor, Any]:
    """Logits under the seed of a trial, and torch's generator after it if anything was drawn from it."""
    with global_randomness(trial) as touched:
        logits = _logits(model, batch)
    if misused := [name for name in touched if name != TORCH or not model.training]:
        where = "" if model.training else " in evaluation"
        only = f"it may draw from {TORCH} only, and in training only"
        raise ValueError(f"{names} draws from or seeds {allowed(misused)}{where}; {only}")
    return logits, touched.get(TORCH)


@contextmanager
def global_randomness(trial: int = 0) -> Iterator[dict[str, Any]]:
    """Seed generators of no stream of a run, and restore them; yields the states of those then touched."""
    kept, touched = (np.random.get_state(), random.getstate()), dict[str, Any]()
    with torch.random.fork_rng(devices=[]):
        for set_seed in (torch.manual_seed, np.random.seed, random.seed):
            set_seed(named_seed(trial, "preflight"))
        before = _states()
        try:
            yield touched
            touched |= {name: state for name, state in _states().items() if state != before[name]}
        finally:
            np.random.set_state(kept[0])
            random.setstate(kept[1])


def _states() -> dict[str, Any]:
    return {
        TORCH: torch.get_rng_state().numpy().tobytes(),
        "numpy.random": pickle.dumps(np.random.get_state()),
        "Python's random": random.getstate(),
    }


def watch_inputs(scheme: PositionalEncoding) -> None:
    """Have the hooks of a scheme raise ValueError where they change in place what others read too."""
    for name in ("embed_sequence", "rotate", "bias", "weights"):
        setattr(scheme, name, _watched(scheme, name))


def _watched(scheme: PositionalEncoding, name: str) -> Callable[..., Any]:
    hook = getattr(scheme, name)
    signature = inspect.signature(hook)

    @wraps(hook)
    def call(*args: Any, **options: Any) -> Any:
        given = _tensors(name, signature.bind(*args, **options).arguments)
        before = {key: _mark(key, tensor) for key, tensor in given.items()}
        result = hook(*args, **options)
        if changed := [key for key, tensor in given.items() if not _mark(key, tensor).equal(before[key])]:
            what = f"{type(scheme).__name__}.{name} changes {allowed(changed)} in place"
            raise ValueError(f"{what}, which others read too; it may return new tensors only")
        return result

    return call


def _tensors(hook: str, arguments: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors a hook is given and others read; not the embeddings of tokens, which it may change."""
    names = list(arguments)[1:] if hook == "embed_sequence" else list(arguments)
    found = {name: arguments[name] for name in names}
    for name, at in [pair for pair in found.items() if isinstance(pair[1], AttentionContext)]:
        found |= {f"{name}.{key}": getattr(at, key) for key in (*IN_CONTEXT, *OF_PAIRS)}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def _mark(name: str, tensor: Tensor) -> Tensor:
    """A mark by which a change shows: a copy, or of a large tensor the number of changes."""
    if name.endswith(OF_PAIRS):
        return torch.tensor(tensor._version)
    return tensor.detach().clone().nan_to_num()


def _schemes(model: Backbone) -> list[PositionalEncoding]:
    return [part for part in model.encodings.modules() if isinstance(part, PositionalEncoding)]
