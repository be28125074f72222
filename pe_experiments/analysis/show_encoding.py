"""Show encodings: print the audit and order-blindness as tables, and write the explorer page.

The explorer is a self-contained HTML page that tells why there are so many positional encodings.
"""

import copy
import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from rich.table import Table
from torch import Tensor, nn

from pe_experiments.analysis import audit
from pe_experiments.checking.subject import trainable, vectors_at
from pe_experiments.configuration.choices import description, shipped
from pe_experiments.configuration.component import Component, load_component
from pe_experiments.configuration.compose import compose_config
from pe_experiments.configuration.schema import Count, Folder, Section, Seed, resolved
from pe_experiments.data.randomness import named_seed
from pe_experiments.drawing import render, style_indices
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.absolute import AbsoluteEncoding
from pe_experiments.encodings.softmax import is_masked
from pe_experiments.models.attention import makes_weights
from pe_experiments.models.attention_scores import Inputs
from pe_experiments.store.directory import output_folder, refuse_among_runs
from pe_experiments.store.names import safe_name, short_hash
from pe_experiments.terminal.console import print_table, say
from pe_experiments.terminal.errors import user_errors
from pe_experiments.terminal.files import CONFIG_DIR, read_json, write_atomically

_HERE = Path(__file__).parent
# In a wheel the published data is beside this file, in a checkout in the study ``results/encodings``.
PUBLISHED_DATA = _HERE / "explorer.json"
if not PUBLISHED_DATA.exists():
    PUBLISHED_DATA = CONFIG_DIR.parent / "results" / "encodings" / "explorer.json"
MAX_POSITIONS = 128  # maximum number of positions and distances shown
LONGEST_NAME = 100  # maximum number of characters of the labels in a file name

Json = dict[str, Any]


class ShowSettings(Section):
    """The options of ``configs/show_encoding.yaml``; limits keep the page and the required memory small."""

    pe: dict[str, Any]
    encodings: Annotated[list[str], Field(min_length=1)] | None
    d_model: Annotated[int, Field(ge=1, le=4096)]
    num_heads: Count
    train_length: Annotated[int, Field(ge=1, le=2048)]
    seed: Seed
    out: Folder | None
    results_dir: Folder


def show_encodings(settings: ShowSettings) -> None:
    """Print the tables of encodings and write the explorer page."""
    folder = Path(settings.out or Path(settings.results_dir) / "encodings")
    refuse_among_runs(folder, settings.results_dir)
    sections = [settings.pe]
    if settings.encodings is not None:  # each name means the same as in ``pe=NAME``
        sections = [resolved(compose_config([f"pe={name}"]))["pe"] for name in settings.encodings]
    components = [load_component("pe", section) for section in sections]
    with user_errors("d_model, num_heads"):
        # ``train_positions`` gives learned tables as many rows as the audit reads.
        shape = partial(
            ModelShape, settings.d_model, settings.num_heads, 2, train_length=settings.train_length
        )
        decoder, encoder = (shape(causal=causal, train_positions=audit.AUDITED) for causal in (True, False))
    views = []
    for component in components:
        encoding = _build(component, settings.seed, decoder)
        if type(encoding) is not PositionalEncoding:
            print_table(_audit_table(component.label, encoding))
            say("")
        about = (inspect.getdoc(component.cls) or component.choice).partition("\n")[0]
        if component.choice in shipped("pe"):
            about = description("pe", component.choice)
        views.append(encoding_view(component.label, about, encoding))
    print_table(_blindness_table(components, settings.seed, encoder))
    names = "-".join(safe_name(component.label) for component in components)
    if len(names) > LONGEST_NAME:
        names = f"{names[:LONGEST_NAME]}-{short_hash(names)}"
    # The published page is called explore.html.
    page = output_folder(folder, settings.results_dir) / f"explore-{names}.html"
    write_atomically(page, explorer_page(views))
    say(f"\nexplorer, to be opened in a browser: {page}")


def _build(component: Component, seed: int, shape: ModelShape) -> PositionalEncoding:
    """Return the encoding with the initial parameters that a run with this seed would have."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(named_seed(seed, "encoding 0"))
        return component.build(shape)


def _audit_table(label: str, encoding: PositionalEncoding) -> Table:
    count = sum(parameter.numel() for parameter in trainable(encoding).values())
    untrained = f", before training ({count:,} parameters)" if count else ""
    if isinstance(encoding, AbsoluteEncoding):
        size = f"width {encoding.width}"
        criteria = audit.audit(encoding)
    else:
        size = f"head_dim {encoding.shape.head_dim}"
        criteria = audit.audit_distances(encoding, 2 * encoding.shape.train_length)
    title = f"{label}{untrained}, {size}"
    table = Table("criterion", "measured", "holds", title=title, title_justify="left", show_edge=False)
    for criterion in criteria:
        verdict = {True: "yes", False: f"no: {criterion.problem}", None: ""}[criterion.holds]
        table.add_row(criterion.name, criterion.measured, verdict)
    return table


def _blindness_table(components: list[Component], seed: int, shape: ModelShape) -> Table:
    """Return a table that says whether an untrained encoder with each encoding ignores the word order."""
    first, second = (" ".join(words) for words in audit.SENTENCES)
    title = f"'{first}' against '{second}', through an untrained encoder"
    headings = ("encoding", "sentences differ by", "the word 'dog' differs by", "order-blind")
    table = Table(*headings, title=title, title_justify="left", show_edge=False)
    none = load_component("pe", shipped("pe")["none"])
    for component in [none, *(component for component in components if component.label != none.label)]:
        if component.cls.causal_only:  # type: ignore[attr-defined]
            table.add_row(component.label, "", "", "causal only: there is no such encoder")
            continue
        with user_errors("pe", "fails on three words"):
            mean, dog = audit.order_blindness(partial(_build, component, seed), shape, seed)
        verdict = "no"
        if max(mean, dog) < audit.FLOAT64_TOLERANCE:
            verdict = "yes" if component.cls is PositionalEncoding else "yes (to mirror images)"
        table.add_row(component.label, f"{mean:.1e}", f"{dog:.1e}", verdict)
    return table


def explorer_page(requested: Sequence[Json] = (), data: Json | None = None, repository: str = "") -> str:
    """Return the explorer, a self-contained HTML page.

    Args:
        requested: views (`encoding_view`) to add; the first two are shown when the page opens.
        data: the data of the page, by default the published data of the shipped encodings.
        repository: path from the page to the repository, for links to its files; "" names them only.
    """
    content = data or read_json(PUBLISHED_DATA)
    views = {view["name"]: view for view in (*content["encodings"], *requested)}
    shown_first = dict.fromkeys([*(view["name"] for view in requested), "sinusoidal", "rope"])
    style_of = style_indices(views)
    encodings = [views[name] | style_of[name] for name in sorted(views)]
    content = {**content, "encodings": encodings, "opened": list(shown_first)[:2]}
    return render(_HERE / "templates" / "explore.html.j2", content, repository=repository)


def encoding_view(name: str, about: str, encoding: PositionalEncoding) -> Json:
    """Return the data that the page shows of an encoding before training, which is not changed.

    ``name`` is its name on the page, and ``about`` a description in one line.
    """
    shape = encoding.shape
    tokens = min(2 * shape.train_length, MAX_POSITIONS)
    vectors_PW = None  # added to the embeddings, or concatenated with them
    if encoding.acts_at_embedding:
        with torch.no_grad():
            vectors_PD = vectors_at(encoding, torch.arange(tokens))
        vectors_PW = vectors_PD[:, -encoding.position_width :]  # all columns if the width is 0
        vectors_PW = vectors_PW if vectors_PW.any() else None
    encoding = copy.deepcopy(encoding)
    drawn = vectors_PW is None and _randomised(encoding, tokens)
    channels_CN = audit.rotated_channels(encoding, tokens)
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
        lines_HN = audit.scores_over_distance(encoding, tokens)
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
def _randomised(encoding: PositionalEncoding, tokens: int) -> bool:
    """Draw random parameters if an encoding has no effect before training; return whether this was done."""
    parameters = trainable(encoding)
    if not parameters or audit.scores_over_distance(encoding, tokens).any():
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
