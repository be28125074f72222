"""What is measured of a pretrained model: its `Loss` on a text, or `Retrieval` from a long context.

For retrieval, statements are hidden in a text, and a question follows, which the model continues greedily.
Its answer is correct if it names everything that was asked for before anything of other statements. Sources:
the needle in a haystack of Kamradt 2023; variable tracking of RULER, Hsieh et al. 2024, arXiv:2404.06654.
"""

import math
import random
import re
import string
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pe_experiments.evaluation.metrics import wilson_interval
from pe_experiments.pretrained.model import PretrainedModel
from pe_experiments.tasks import DEPTHS
from pe_experiments.tasks.text import Text
from pe_experiments.terminal.errors import UserError, user_errors

READ_BYTES = 1 << 20  # read from the end of each part; windows longer than 32,768 tokens need more
SLACK_TOKENS = 8  # more tokens of an answer, for an introduction
CHAINS = 2  # of variables; with a single one every variable of the text would belong to the answer
HOPS = 4  # a chain has one variable more, as in RULER


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
        total_bits = sum(float(row["bits"]) for row in rows)
        total_bytes = sum(float(row["bytes"]) for row in rows)
        return {"stretches": len(rows), "bytes": int(total_bytes), "bits_per_byte": total_bits / total_bytes}


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


class Example(NamedTuple):
    """Statements, where they stand in the text (from 0 to 1), a question, and what an answer may contain."""

    statements: list[str]
    depths: list[float]
    question: str  # ends where the answer begins
    longest_answer: str  # a correct one, as a model may write it
    correct: list[str]
    wrong: list[str]

    def is_answer(self, answer: str) -> bool:
        """Return whether the first words of a text that are correct or wrong are exactly the correct ones."""
        possible = {*self.correct, *self.wrong}
        named = dict.fromkeys(word for word in re.findall(r"\w+", answer) if word in possible)
        return set(list(named)[: len(self.correct)]) == set(self.correct)


def needle(index: int) -> Example:
    """Return a name with a six-digit number, at one of `DEPTHS` in turn."""
    generator = random.Random(f"needle {index}")
    name = "".join(generator.choice("bdfgklmnprstvz") + generator.choice("aeiou") for _ in range(4)).title()
    number = f"{generator.randrange(100_000, 1_000_000)}"
    beginning = f"The secret number of {name} is"
    question = f"\nQuestion: What is the secret number of {name}?\nAnswer: {beginning}"
    statement = f"\n{beginning} {number}.\n"
    return Example([statement], [DEPTHS[index % len(DEPTHS)]], question, number, [number], [])


def variables(index: int) -> Example:
    """Return interleaved chains of assignments; all variables of the first chain are asked for."""
    generator = random.Random(f"variables {index}")
    names: list[str] = []
    while len(names) < CHAINS * (HOPS + 1):
        name = "".join(generator.choices(string.ascii_uppercase, k=5))
        if name not in names:
            names.append(name)
    numbers = generator.sample(range(10_000, 100_000), CHAINS)
    chains = [names[chain::CHAINS] for chain in range(CHAINS)]
    assignments = []
    for chain, number in zip(chains, numbers, strict=True):
        values = [f"{number}", *(f"VAR {name}" for name in chain[:-1])]
        assignments.append([f"\nVAR {name} = {value}\n" for name, value in zip(chain, values, strict=True)])
    order = [chain for chain in range(CHAINS) for _ in range(HOPS + 1)]
    generator.shuffle(order)
    statements = [assignments[chain].pop(0) for chain in order]
    depths = sorted(generator.random() for _ in statements)
    question = (
        f"\nQuestion: Which variables have the value {numbers[0]}?\n"
        f"Answer: The {HOPS + 1} variables with the value {numbers[0]} are:"
    )
    others = [name for chain in chains[1:] for name in chain]
    longest_answer = ", ".join(f"VAR {name}" for name in chains[0])
    return Example(statements, depths, question, longest_answer, chains[0], others)


MAKERS = {"needle": needle, "variables": variables}


def spelled(example: Example) -> str:
    """Return an example without its text, with the correct answer in brackets."""
    pieces = [*example.statements, example.question]
    return "...".join(pieces).strip() + f" [{', '.join(example.correct)}]"


class Retrieval:
    """The share of correct answers to ``count`` examples, each in another part of a text.

    Text, statements, question and answer together have at most L tokens at the context length L.
    """

    file = "examples.csv"
    key_columns = ("measured", "block", "length", "tokens", "example")
    columns = ("depth", "expected", "answer", "correct")
    scored = 1  # predictions of a forward pass; the others are made one by one

    def __init__(self, model: PretrainedModel, text: Text, task: str, count: int):
        self.model = model
        self.text = text
        self.task = task
        self.count = count
        self.identity = {"measure": task, "examples": count}
        self.examples = [MAKERS[task](index) for index in range(count)]

    def key(self, length: int, tokens: int, index: int) -> tuple[int, ...]:
        return length, tokens, index

    def shortest(self) -> tuple[int, str]:
        needed = 1 + max(self._tokens_beside_text(example) for example in self.examples)
        return needed, f"at least {needed} for measure={self.task} with this tokenizer"

    def prepare(self, longest: int) -> None:
        stretches = cut_stretches(self.text, self.model, self.count, longest, self.scored, "examples")
        self.texts = [stretch.tokens_N.tolist() for stretch in stretches]

    def prompt(self, length: int, tokens: int, index: int) -> list[int]:
        """Return the last ``tokens`` tokens of an example of ``length`` tokens, less those of its answer.

        A statement stands at its depth, or after the last line that ends at most 5 % of the text before it.
        """
        example = self.examples[index]
        text = self.texts[index][-(length - self._tokens_beside_text(example)) :]
        line_ends = {token for token in set(text) if "\n" in self.model.tokenizer.decode([token])}
        context: list[int] = []
        start = 0
        for depth, statement in zip(example.depths, example.statements, strict=True):
            target = round(depth * len(text))
            earliest = max(start, target - len(text) // 20)
            stop = target
            for place in range(target, earliest - 1, -1):
                if place == start or text[place - 1] in line_ends:
                    stop = place
                    break
            context += text[start:stop] + self._tokenized(statement)
            start = stop
        context += text[start:] + self._tokenized(example.question)
        prefix = self.model.prefix()
        return prefix + context[-(tokens - self._answer_tokens(example) - len(prefix)) :]

    def _tokenized(self, text: str) -> list[int]:
        return self.model.tokenizer(text, add_special_tokens=False).input_ids

    def _answer_tokens(self, example: Example) -> int:
        return len(self._tokenized(" " + example.longest_answer)) + SLACK_TOKENS

    def _tokens_beside_text(self, example: Example) -> int:
        """Return the number of tokens of the prefix, the statements, the question and the answer."""
        pieces = [*example.statements, example.question]
        tokens = sum(len(self._tokenized(piece)) for piece in pieces)
        return len(self.model.prefix()) + tokens + self._answer_tokens(example)

    def measure(self, network: Any, length: int, tokens: int, index: int) -> tuple[tuple[Any, ...], str]:
        from transformers import GenerationConfig

        example = self.examples[index]
        prompt_BT = torch.tensor([self.prompt(length, tokens, index)], device=network.device)
        config = GenerationConfig(
            do_sample=False,  # each token is the most probable one
            max_new_tokens=self._answer_tokens(example),
            eos_token_id=network.generation_config.eos_token_id,
            pad_token_id=0,
        )
        mask_BT = torch.ones_like(prompt_BT)
        output_BT = network.generate(prompt_BT, attention_mask=mask_BT, generation_config=config)
        new_T = output_BT[0, prompt_BT.shape[1] :]
        answer = self.model.tokenizer.decode(new_T, skip_special_tokens=True)
        correct = example.is_answer(answer)
        depth = example.depths[0] if self.task == "needle" else None
        return (depth, " ".join(example.correct), answer, int(correct)), "correct" if correct else "wrong"

    def summary(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        correct = sum(int(row["correct"]) for row in rows)
        low, high = wilson_interval(correct, len(rows))
        return {"examples": len(rows), "correct": correct, "accuracy": correct / len(rows),
                "low": low, "high": high}  # fmt: skip
