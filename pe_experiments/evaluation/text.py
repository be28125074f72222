"""Evaluate a language model over context length, on the same target bytes at every length.

Lengths count bytes or, with ``task.tokenizer=bpe``, tokens, which take the place of bytes below. Losses are
divided by the number of bytes in both cases.

Every example is a stretch of text as long as the longest context. At each length L it is cut into windows of
L bytes, as in training. All bytes of a window are scored except the first, which is also the last byte of
the window before it.

* ``non_overlapping``: scores all bytes of a stretch except the first. Each is predicted from the 1 to L - 1
  bytes before it in its window.
* ``sliding``: scores the last bytes of each stretch (at most `STRIDE`). Each is predicted from at least
  L - STRIDE bytes, as with a window that slides by that stride. The bytes are also split by whether they
  complete a 4-gram that occurred earlier in the stretch (associative recall; Arora et al. 2023,
  arXiv:2312.04927): ``repeated_near`` within the training length, ``repeated_far`` only farther back, ``new``
  not at all.
* ``copy``: places a random key at a random index of the window and again at its end, and scores the second
  half of the second occurrence.

With ``evaluation.window=W`` the model reads only the last W bytes of a longer context, each time as a text of
its own with new position ids. It slides by s = min(`STRIDE`, W / 4) bytes and ends with the context.
A byte is predicted from all bytes before it if these are fewer than W - s, and else from the last W - s to
W - 1. The last s bytes of a context are therefore predicted as at a context length of W.

Shapes: B stretches, N bytes of a stretch, L bytes of a window, R windows, S scored bytes.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.data.batches import BLOCK_EXAMPLES, Source
from pe_experiments.data.randomness import named_seed
from pe_experiments.encodings.tensors import at_least_float32, to_device
from pe_experiments.evaluation.curve import Row, Tally, point, rows_at_once
from pe_experiments.evaluation.metrics import EXACT_MATCH
from pe_experiments.models import Backbone
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal.console import Display

STRIDE = 64  # bytes by which a window slides, at most a quarter of the shortest length
GRAM = 4  # bytes of a repeated sequence
KEY = 16  # bytes of a key to copy
BINS = 32  # bins of the index in the longest window
COLUMNS = ("length", "windows", "slice", "first_index", "last_index")  # of `Kind`, in ``text.csv``

Kind = tuple[int, str, str, int | None, int | None]  # which bytes were scored, and how: `COLUMNS`


class Scorer:
    """Score bytes with a model; store sums of scores by kind and the largest position id by length.

    Of a longer context the model reads only the last ``window`` tokens.
    """

    def __init__(self, model: Backbone, source: Source, window: int | None = None):
        self.model = model
        self.source = source
        self.window = window
        self.generator = torch.Generator().manual_seed(named_seed(source.seed, "text positions"))
        self.largest_id: dict[int, float] = {}
        self.sums: defaultdict[Kind, Tally] = defaultdict(Tally)

    def scores(self, windows_RL: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss in nats and correctness of the likeliest byte, except for first bytes, [R, L - 1]."""
        length = stop = windows_RL.shape[1]
        window = self.window or length
        stride = max(1, min(STRIDE, window // 4))
        scores = []
        while stop > window:
            scored = self._scores(windows_RL[:, stop - window : stop], length)
            scores.append((scored[0][:, -stride:], scored[1][:, -stride:]))
            stop -= stride
        scores.append(self._scores(windows_RL[:, :stop], length))
        losses, right = zip(*reversed(scores), strict=True)
        return torch.cat(losses, dim=1), torch.cat(right, dim=1)

    @torch.no_grad()
    def _scores(self, windows_RL: Tensor, context_length: int) -> tuple[Tensor, Tensor]:
        """Return the scores of windows that the model reads as a whole, for a context of this length."""
        source = self.source
        device = next(self.model.parameters()).device
        targets_RL = windows_RL.roll(-1, dims=1)
        targets_RL[:, -1] = IGNORE
        rows = source.format.lay_out(windows_RL, targets_RL)
        ids_RP = source.positions.evaluation_ids(rows.declared_B, source.train_length, self.generator)
        length = windows_RL.shape[1]
        largest_id = max(self.largest_id.get(context_length, 0.0), float(ids_RP.max()))
        self.largest_id[context_length] = largest_id
        ids_RP = ids_RP.expand(len(windows_RL), -1)
        losses, right = [], []
        size = rows_at_once(rows.tokens_BT.shape[1], self.model.shape.d_model)
        for part in torch.arange(len(windows_RL)).split(size):
            inputs = (rows.tokens_BT, ids_RP, rows.lengths_B, rows.declared_B)
            hidden_rTD = self.model.hidden(*(to_device(tensor[part], device) for tensor in inputs))
            labels_rS = windows_RL[part, 1:].to(device)
            scored_rSD = hidden_rTD[:, -length:-1]
            logits_rSV = at_least_float32(self.model.head(scored_rSD))
            losses.append(F.cross_entropy(logits_rSV.mT, labels_rS, reduction="none").cpu().double())
            right.append((logits_rSV.argmax(dim=-1) == labels_rS).cpu())
        return torch.cat(losses), torch.cat(right)

    def cut(self, stretches_BN: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Return the scores [B, N - 1] of stretches in windows of ``length`` bytes (or less in the first)."""
        scores = []
        stop = stretches_BN.shape[1]
        while stop > 1:
            start = max(0, stop - length)
            scores.append(self.scores(stretches_BN[:, start:stop]))
            stop = start + 1
        losses, right = zip(*reversed(scores), strict=True)
        return torch.cat(losses, dim=1), torch.cat(right, dim=1)

    def add(self, kind: Kind, losses: Tensor, right: Tensor, symbols: Tensor) -> None:
        """Add the scores of symbols of a kind, which are bytes or tokens; what is scored are their bytes."""
        self.sums[kind] += Tally(
            tokens=losses.numel(),
            scored=int(self.source.task.sizes(symbols).sum()),
            loss_sum=float(losses.sum()),
            right_tokens=int(right.sum()),
        )


def evaluate_text(
    model: Backbone,
    source: Source,
    lengths: Sequence[int],
    examples: int,
    max_length: int,
    display: Display | None = None,
    window: int | None = None,
) -> tuple[list[Row], list[Row]]:
    """Return the rows of ``extrapolation.csv`` for non-overlapping windows, and the rows of ``text.csv``.

    Each of the context ``lengths`` is evaluated on the same ``examples`` stretches of text. ``max_length`` is
    the longest in training. The model reads ``window`` tokens of a longer context, or all (None).
    """
    model.eval()
    task = source.task.for_split("evaluation")
    content_lengths = {length: task.nearest_length(length) or length for length in lengths}
    contents = sorted(set(content_lengths.values()))
    stride = max(1, min(STRIDE, contents[0] // 4))
    generator = torch.Generator().manual_seed(named_seed(source.seed, "text evaluation"))
    scorer = Scorer(model, source, window)
    display = display or Display()
    blocks = range(0, examples, BLOCK_EXAMPLES)
    display.start("evaluating windows of text", len(blocks) * len(contents))
    finished = 0
    for start in blocks:
        count = min(BLOCK_EXAMPLES, examples - start)
        stretches_BN, _ = task.sample(contents[-1], BLOCK_EXAMPLES, generator)
        alphabet = stretches_BN.unique()
        keys_BK = alphabet[torch.randint(len(alphabet), (BLOCK_EXAMPLES, KEY), generator=generator)]
        starts_B = torch.rand(BLOCK_EXAMPLES, generator=generator)
        stretches_BN, keys_BK, starts_B = stretches_BN[:count], keys_BK[:count], starts_B[:count]
        slices = slices_of(stretches_BN, stride, max_length)
        for length in contents:
            losses_BS, right_BS = scorer.cut(stretches_BN, length)
            scores = (losses_BS, right_BS, stretches_BN[:, 1:])
            scorer.add((length, "non_overlapping", "all", None, None), *scores)
            for name, mask_Bs in slices.items():
                kind: Kind = (length, "sliding", name, None, None)
                scorer.add(kind, *(score_BS[:, -stride:][mask_Bs] for score_BS in scores))
            if length == contents[-1]:  # also by index, in bins of equal width
                edges = torch.linspace(1, length, min(BINS, length - 1) + 1).round().int().tolist()
                for first, stop in pairwise(edges):
                    kind = (length, "non_overlapping", "index", first, stop - 1)
                    scorer.add(kind, *(score_BS[:, first - 1 : stop - 1] for score_BS in scores))
            if length >= 4 * KEY:
                windows_BL = with_copy(stretches_BN[:, -length:], keys_BK, starts_B)
                losses_BS, right_BS = scorer.scores(windows_BL)
                scores = (losses_BS, right_BS, windows_BL)
                scorer.add((length, "copy", "all", None, None), *(score[:, -KEY // 2 :] for score in scores))
            finished += 1
            display.step(finished)
    # Exact match is not informative, because a whole window of text is never predicted correctly.
    unmeasured = (*EXACT_MATCH.columns, "exact_match_without_end", "bag_ceiling", "input_blind")
    curve: list[Row] = []
    for length in lengths:
        content_length = content_lengths[length]
        total = scorer.sums[content_length, "non_overlapping", "all", None, None]
        measured = {"examples": examples, "token_accuracy": total.token_accuracy, "loss": total.loss}
        row = point(source, length, content_length, max_length, scorer.largest_id[content_length])
        curve.append(row | measured | dict.fromkeys(unmeasured))
    text_rows: list[Row] = []
    for kind, total in scorer.sums.items():
        text_row: Row = {**dict(zip(COLUMNS, kind, strict=True)), "bytes": total.scored}
        if total.tokens:
            text_row |= {"bits_per_byte": total.loss / math.log(2), "accuracy": total.token_accuracy}
        text_rows.append(text_row)
    return curve, sorted(text_rows, key=lambda row: row["length"])


def slices_of(stretches_BN: Tensor, stride: int, max_length: int) -> dict[str, Tensor]:
    """Return masks [B, stride] over the last ``stride`` bytes of stretches, by the name of the slice.

    A byte is ``repeated_near`` if the 4-gram that it ends occurred so recently that every window of the
    training length contains the earlier occurrence.
    """
    near_BS, ever_BS = torch.zeros(2, len(stretches_BN), stride, dtype=torch.bool)
    size = stretches_BN.shape[1]
    if size >= GRAM + stride:
        grams_BGK = stretches_BN.unfold(1, GRAM, 1)
        index_G = torch.arange(grams_BGK.shape[1])
        for s in range(stride):
            index = grams_BGK.shape[1] - stride + s
            same_BG = (grams_BGK[:, :index] == grams_BGK[:, index, None]).all(dim=-1)
            ever_BS[:, s] = same_BG.any(dim=1)
            near_BS[:, s] = same_BG[:, index_G[:index] >= size - max_length].any(dim=1)
    return {
        "all": torch.ones_like(ever_BS),
        "repeated_near": near_BS,
        "repeated_far": ever_BS & ~near_BS,
        "new": ~ever_BS,
    }


def with_copy(windows_BL: Tensor, keys_BK: Tensor, starts_B: Tensor) -> Tensor:
    """Return windows of at least two keys with the key written at a random index and again at the end.

    ``starts_B`` is the start of the first occurrence, as a share of its possible indices.
    """
    width = keys_BK.shape[1]
    copied_BL = windows_BL.clone()
    first_B = (starts_B * (windows_BL.shape[1] - 2 * width + 1)).long()
    copied_BL.scatter_(1, first_B[:, None] + torch.arange(width), keys_BK)
    copied_BL[:, -width:] = keys_BK
    return copied_BL
