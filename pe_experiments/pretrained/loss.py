"""The loss of a language model on the last tokens of equal parts of a text."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pe_experiments.configuration.component import user_errors
from pe_experiments.pretrained.model import PretrainedModel
from pe_experiments.tasks.text import Text
from pe_experiments.terminal.errors import UserError

READ_BYTES = 1 << 20  # read from the end of each part; windows longer than 32,768 tokens need more


class Stretch(NamedTuple):
    """The last tokens of a part of the text."""

    tokens_N: Tensor
    scored: int  # number of tokens that are scored, at the end
    bytes: int  # number of bytes of these


class Loss:
    """The loss in bits per byte of the last ``scored`` tokens of ``stretches`` parts of a text.

    A window of L tokens ends with the scored ones, so that each follows at least L - ``scored`` others.
    """

    file = "stretches.csv"
    key_columns = ("measured", "block", "length", "stretch")
    columns = ("bytes", "bits")

    def __init__(self, model: PretrainedModel, text: Text, stretches: int, scored: int):
        self.model = model
        self.text = text
        self.count = stretches
        self.scored = scored
        self.identity = {"stretches": stretches, "scored": scored}

    def key(self, length: int, tokens: int, index: int) -> tuple[int, ...]:
        """Return what of a window decides its loss; a truncated window is as good as a shorter one."""
        return tokens, index

    def shortest(self) -> tuple[int, str]:
        """Return the smallest number of tokens of a window, and in words what is allowed."""
        return self.scored + 1, f"more than scored={self.scored}"

    def prepare(self, longest: int) -> None:
        """Read and tokenize the parts of the text."""
        self.prefix_P = torch.tensor(self.model.prefix(), dtype=torch.long)
        self.stretches = cut_stretches(self.text, self.model, self.count, longest, self.scored)

    def measure(self, network: Any, length: int, tokens: int, index: int) -> tuple[tuple[Any, ...], str]:
        """Return the values of `columns` of a window of ``tokens`` tokens, and a note on them."""
        stretch = self.stretches[index]
        tokens_T = torch.cat([self.prefix_P, stretch.tokens_N[-(tokens - len(self.prefix_P)) :]])
        loss = bits(network, tokens_T, stretch.scored)
        return (stretch.bytes, loss), f"{loss / stretch.bytes:.3f} bits per byte"

    def summary(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the bits per byte over all stretches."""
        total_bits = sum(float(row["bits"]) for row in rows)
        total_bytes = sum(float(row["bytes"]) for row in rows)
        return {
            "stretches": len(rows),
            "bytes": int(total_bytes),
            "bits_per_byte": total_bits / total_bytes,
        }


def cut_stretches(
    text: Text, model: PretrainedModel, count: int, longest: int, scored: int, parts: str = "stretches"
) -> list[Stretch]:
    """Return the last ``longest`` tokens of each of ``count`` equal parts of a text.

    The last ``scored`` of them are scored, or up to three fewer if these begin within a character. ``parts``
    is the option that sets their number.
    """
    total = text.ends[-1]
    stretches = []
    for index in range(count):
        start = total * index // count
        stop = total * (index + 1) // count
        start = max(start, stop - max(READ_BYTES, 32 * longest))
        part = text.read(start, stop - start).tobytes().decode(errors="ignore")
        with user_errors("model", "cannot tokenize the text"):
            encoded = model.tokenizer(part, add_special_tokens=False, return_offsets_mapping=True)
        tokens, spans = encoded["input_ids"], encoded["offset_mapping"]
        if len(tokens) < longest:
            need = count * longest * (stop - start) / len(tokens)
            raise UserError(
                f"text: {total:,} bytes are too short for {count} {parts} of {longest:,} tokens; about "
                f"{need:,.0f} bytes are needed, or fewer {parts}"
            )
        first = len(tokens) - scored
        while spans[first][0] < spans[first - 1][1]:  # both tokens are bytes of the same character
            first += 1
        scored_bytes = len(part[spans[first][0] :].encode())
        stretches.append(Stretch(torch.tensor(tokens[-longest:]), len(tokens) - first, scored_bytes))
    return stretches


def bits(model: Any, tokens_T: Tensor, scored: int) -> float:
    """Return the summed loss in bits of the last ``scored`` tokens; only their logits are computed."""
    tokens_BT = tokens_T[None].to(model.device)
    logits_BSV = model(tokens_BT, use_cache=False, logits_to_keep=scored + 1).logits
    logits_SV = logits_BSV[0, -scored - 1 : -1].float()
    nats = torch.nn.functional.cross_entropy(logits_SV, tokens_BT[0, -scored:], reduction="sum")
    return nats.item() / math.log(2)
