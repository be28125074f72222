"""Create the explorer: a self-contained HTML page that tells why there are so many positional encodings."""

import copy
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pe_experiments.analysis.audit import rotated_channels, scores_over_distance
from pe_experiments.checking.random_inputs import trainable, vectors_at
from pe_experiments.drawing import render, style_indices
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.encodings.base import acts_at_embedding
from pe_experiments.encodings.softmax import is_masked
from pe_experiments.models.attention import makes_weights
from pe_experiments.models.attention_scores import Inputs
from pe_experiments.terminal.files import CONFIG_DIR, read_json

_HERE = Path(__file__).parent
# In a wheel the published data is beside this file, in a checkout in the study ``results/encodings``.
PUBLISHED = _HERE / "explorer.json"
if not PUBLISHED.exists():
    PUBLISHED = CONFIG_DIR.parent / "results" / "encodings" / "explorer.json"
MAX_POSITIONS = 128  # maximum number of positions and distances shown

Json = dict[str, Any]


def explorer_page(
    requested: Sequence[Json] = (),
    data: Json | None = None,
    own: Collection[str] = (),
    repository: str = "",
) -> str:
    """Return the HTML page.

    Args:
        requested: views (`encoding_view`) to add; the first two are shown when the page opens.
        data: the data of the page, by default the published data of the shipped encodings.
        own: names of the views that show encodings of the user.
        repository: path from the page to the repository, for links to its files; "" names them only.
    """
    content = data or read_json(PUBLISHED)
    views = {view["name"]: view for view in (*content["encodings"], *requested)}
    shown_first = dict.fromkeys([*(view["name"] for view in requested), "sinusoidal", "rope"])
    style_of = style_indices(views, own)
    encodings = [views[name] | style_of[name] for name in sorted(views)]
    content = {**content, "encodings": encodings, "opened": list(shown_first)[:2]}
    return render(_HERE / "templates" / "explore.html.j2", content, own, repository=repository)


def encoding_view(name: str, about: str, encoding: PositionalEncoding) -> Json:
    """Return the data that the page shows of an encoding before training, which is not changed.

    ``name`` is its name on the page, and ``about`` a description in one line.
    """
    shape = encoding.shape
    tokens = min(2 * shape.train_length, MAX_POSITIONS)
    vectors_PW = _embedding_vectors(encoding, tokens)
    encoding = copy.deepcopy(encoding)
    drawn = vectors_PW is None and _randomised(encoding, tokens)
    channels_CN = rotated_channels(encoding, tokens)
    action, depends_on_content = _action(encoding, tokens)
    view: Json = {
        "name": name,
        "about": about,
        "action": action if channels_CN is None else "rotation",  # in the first layer
        "content": depends_on_content,
        "drawn": drawn,  # whether parameters were drawn at random, because initially they have no effect
        "parameters": sum(parameter.numel() for parameter in trainable(encoding).values()),
        "causal_only": encoding.causal_only,
        "d_model": shape.d_model,
        "heads": shape.num_heads,
        "train_length": shape.train_length,
    }
    if vectors_PW is not None:
        view["vectors"] = rounded_lists(vectors_PW)  # [positions, dimensions]
    if view["action"] != "nothing":
        lines_HN = scores_over_distance(encoding, tokens)
        # [heads, distances], None for masked keys
        view["lines"] = rounded_lists(lines_HN.masked_fill(is_masked(lines_HN), torch.nan))
    if channels_CN is not None:
        view["channels"] = rounded_lists(channels_CN)  # [channels, distances]
    return view


def rounded_lists(values: Tensor, digits: int = 3) -> Any:
    """Return a tensor as nested lists of rounded numbers, with None for NaN."""
    if values.ndim:
        return [rounded_lists(part, digits) for part in values]
    return None if values.isnan() else round(float(values), digits) + 0.0


@torch.no_grad()
def _embedding_vectors(encoding: PositionalEncoding, tokens: int) -> Tensor | None:
    """Return vectors [positions, dimensions] that are added to or concatenated with embeddings, or None."""
    if not acts_at_embedding(encoding):
        return None
    vectors_PD = vectors_at(encoding, torch.arange(tokens))
    vectors_PW = vectors_PD[:, -encoding.position_width :]  # all columns if the width is 0
    return vectors_PW if vectors_PW.any() else None


@torch.no_grad()
def _randomised(encoding: PositionalEncoding, tokens: int) -> bool:
    """Draw random parameters if an encoding has no effect before training; return whether this was done."""
    parameters = trainable(encoding)
    if not parameters or scores_over_distance(encoding, tokens).any():
        return False
    generator = torch.Generator().manual_seed(0)
    for parameter in parameters.values():
        nn.init.normal_(parameter, generator=generator)
    return True


@torch.no_grad()
def _action(encoding: PositionalEncoding, tokens: int) -> tuple[str, bool]:
    """Return the effect of an encoding in the first layer, and whether the effect depends on the content.

    The effect is "weights", "bias", "scale" (``rotate`` changes queries, but is no rotation) or "nothing".
    """
    shape = encoding.shape
    layer_encoding = encoding.for_layer(0)
    if makes_weights(layer_encoding):
        return "weights", True
    generator = torch.Generator().manual_seed(0)
    biases = []
    changes_queries = False
    for _ in range(2):  # two random texts
        q, k = torch.randn(2, 1, shape.num_heads, tokens, shape.head_dim, generator=generator)
        x = torch.randn(1, tokens, shape.d_model, generator=generator)
        at = Inputs(q, k, x, torch.arange(tokens)[None]).context(causal=True)
        rotated_q, rotated_k = layer_encoding.rotate(q, k, at)
        if rotated_q.shape != q.shape or not torch.equal(rotated_q, q):
            changes_queries = True
        biases.append(layer_encoding.bias(rotated_q, rotated_k, at))
    first, second = biases
    depends_on_content = first is not None and second is not None and not torch.allclose(first, second)
    if first is not None:
        return "bias", depends_on_content
    return ("scale" if changes_queries else "nothing"), depends_on_content


def about_choice(name: str) -> str:
    """Return the description of a shipped encoding, the first line of its YAML."""
    return (CONFIG_DIR / "pe" / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
