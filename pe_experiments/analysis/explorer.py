"""Write an interactive, self-contained page about positional encodings."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pe_experiments.analysis.audit import causal_context, rotated_channels, scores_over_distance
from pe_experiments.drawing import render, style_indices
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.encodings.base import acts_at_embedding
from pe_experiments.encodings.softmax import is_masked
from pe_experiments.models.attention import makes_weights
from pe_experiments.terminal.files import CONFIG_DIR, read_json

_HERE = Path(__file__).parent
# In a wheel the published data is beside this file, in a checkout in the study.
PUBLISHED = _HERE / "explorer.json"
if not PUBLISHED.exists():
    PUBLISHED = CONFIG_DIR.parent / "results" / "encodings" / "explorer.json"
LONGEST = 128  # most positions and distances shown

Json = dict[str, Any]


def explorer_page(requested: Sequence[Json] = (), data: Json | None = None) -> str:
    """Return the page with these views open, by default with the data of the shipped encodings."""
    content = data or read_json(PUBLISHED)
    views = {view["name"]: view for view in (*content["encodings"], *requested)}
    opened = dict.fromkeys([*(view["name"] for view in requested), "sinusoidal", "rope"])
    style_of = style_indices(views)
    encodings = [views[name] | style_of[name] for name in sorted(views)]
    content = content | {"encodings": encodings, "opened": [*opened][:2]}
    return render(_HERE / "templates" / "explore.html.j2", content)


def encoding_view(name: str, about: str, encoding: PositionalEncoding) -> Json:
    """Return the data of the page on an encoding before training."""
    shape = encoding.shape
    tokens = min(2 * encoding.shape.train_length, LONGEST)
    vectors_PW = _embedded(encoding, tokens)
    encoding = copy.deepcopy(encoding)
    drawn = vectors_PW is None and _redrawn(encoding, tokens)
    channels_CN = rotated_channels(encoding, tokens)
    action, content = _action(encoding, tokens)
    view: Json = {
        "name": name,
        "about": about,
        "action": action if channels_CN is None else "rotation",  # in the first layer
        "content": content,  # whether the effect depends on the words
        "drawn": drawn,  # whether parameters that start at zero were drawn at random to show anything
        "parameters": sum(
            parameter.numel() for parameter in encoding.parameters() if parameter.requires_grad
        ),
        "causal_only": encoding.causal_only,
        "d_model": shape.d_model,
        "heads": shape.num_heads,
        "train_length": shape.train_length,
    }
    if vectors_PW is not None:
        view["vectors"] = rounded(vectors_PW)  # [positions, dimensions]
    if view["action"] != "nothing":
        lines_HN = scores_over_distance(encoding, tokens)
        # [heads, distances], None for masked keys
        view["lines"] = rounded(lines_HN.masked_fill(is_masked(lines_HN), torch.nan))
    if channels_CN is not None:
        view["channels"] = rounded(channels_CN)  # [channels, distances]
    return view


def rounded(values: Tensor, digits: int = 3) -> Any:
    if values.ndim:
        return [rounded(part, digits) for part in values]
    return None if values.isnan() else round(float(values), digits) + 0.0


@torch.no_grad()
def _embedded(encoding: PositionalEncoding, tokens: int) -> Tensor | None:
    """Return vectors [positions, dimensions] that are added to or concatenated with embeddings, or None."""
    if not acts_at_embedding(encoding):
        return None
    tokens_W = encoding.shape.d_model - encoding.position_width  # columns of the token
    made_PD = encoding.embed_sequence(torch.zeros(1, tokens, tokens_W), torch.arange(tokens)[None], None)[0]
    vectors_PW = made_PD[:, tokens_W:] if encoding.position_width else made_PD
    return vectors_PW if vectors_PW.any() else None


@torch.no_grad()
def _redrawn(encoding: PositionalEncoding, tokens: int) -> bool:
    """Draw random parameters if an encoding has no effect before training, and return whether it had none."""
    trained = [parameter for parameter in encoding.parameters() if parameter.requires_grad]
    if not trained or scores_over_distance(encoding, tokens).any():
        return False
    generator = torch.Generator().manual_seed(0)
    for parameter in trained:
        nn.init.normal_(parameter, generator=generator)
    return True


@torch.no_grad()
def _action(encoding: PositionalEncoding, tokens: int) -> tuple[str, bool]:
    """Return the effect of an encoding without rotation in the first layer, and whether it reads content."""
    shape = encoding.shape
    part = encoding.for_layer(0)
    if makes_weights(part):
        return "weights", True
    generator = torch.Generator().manual_seed(0)
    biases = []
    rotates = False
    for _ in range(2):  # two texts
        q, k = torch.randn(2, 1, shape.num_heads, tokens, shape.head_dim, generator=generator)
        at = causal_context(torch.randn(1, tokens, shape.d_model, generator=generator))
        rotated_q, rotated_k = part.rotate(q, k, at)
        rotates = rotates or rotated_q.shape != q.shape or not torch.equal(rotated_q, q)
        biases.append(part.bias(rotated_q, rotated_k, at))
    first, second = biases
    content = first is not None and second is not None and not torch.allclose(first, second)
    return "bias" if first is not None else "scale" if rotates else "nothing", content


def about_choice(name: str) -> str:
    return (CONFIG_DIR / "pe" / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
