"""Show encodings: print the audit and order-blindness as tables, and write the explorer page."""

import inspect
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from rich.table import Table

from pe_experiments.analysis import audit
from pe_experiments.analysis.explorer import about_choice, encoding_view, explorer_page
from pe_experiments.checking.random_inputs import trainable
from pe_experiments.configuration.component import Component, load_component, shipped, user_errors
from pe_experiments.configuration.config_groups import ALIASES
from pe_experiments.configuration.schema import Count, Folder, Section, Seed
from pe_experiments.data.randomness import named_seed
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.absolute import AbsoluteEncoding
from pe_experiments.store.directory import output_folder, refuse_among_runs
from pe_experiments.store.names import safe_name, short_hash
from pe_experiments.terminal.console import print_table, say
from pe_experiments.terminal.errors import UserError, nearest
from pe_experiments.terminal.files import write_atomically

LONGEST_NAME = 100  # maximum number of characters of the labels in a file name


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
    components = _components(settings)
    with user_errors("d_model, num_heads"):
        # ``train_positions`` gives learned tables as many rows as the audit reads.
        shape = partial(
            ModelShape, settings.d_model, settings.num_heads, 2, train_length=settings.train_length
        )
        decoder, encoder = (shape(causal=causal, train_positions=audit.AUDITED) for causal in (True, False))
    encodings = {component.label: _build(component, settings.seed, decoder) for component in components}
    for label, encoding in encodings.items():
        if type(encoding) is not PositionalEncoding:
            print_table(_audit_table(label, encoding))
            say("")
    print_table(_blindness_table(components, settings.seed, encoder))
    names = "-".join(safe_name(component.label) for component in components)
    if len(names) > LONGEST_NAME:
        names = f"{names[:LONGEST_NAME]}-{short_hash(names)}"
    # The published page is called explore.html.
    page = output_folder(folder, settings.results_dir) / f"explore-{names}.html"
    views = [encoding_view(part.label, _about(part), encodings[part.label]) for part in components]
    own = [component.label for component in components if component.own_classes]
    write_atomically(page, explorer_page(views, own=own))
    say(f"\nexplorer, to be opened in a browser: {page}")


def _about(component: Component) -> str:
    """Return a description in one line, from the YAML of a shipped encoding or the docstring of a class."""
    if component.choice in shipped("pe"):
        return about_choice(component.choice)
    return (inspect.getdoc(component.cls) or component.choice).partition("\n")[0]


def _components(settings: ShowSettings) -> list[Component]:
    """Return the requested encodings; raise a UserError if one is unknown."""
    if settings.encodings is None:
        return [load_component("pe", settings.pe)]
    choices = shipped("pe")
    names = [ALIASES.get(name, name) for name in settings.encodings]
    for name in names:
        if name not in choices and "." not in name:
            raise UserError(f"encodings: {name} is not a choice.{nearest(name, choices)}")
    return [load_component("pe", choices.get(name, {"_target_": name})) for name in names]


def _build(component: Component, seed: int, shape: ModelShape) -> PositionalEncoding:
    """Return the encoding with the initial parameters that a run with this seed would have."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(named_seed(seed, "encoding 0"))
        return component.build(shape)


def _audit_table(label: str, encoding: PositionalEncoding) -> Table:
    """Return a table of the criteria of `audit` for an encoding."""
    count = sum(parameter.numel() for parameter in trainable(encoding).values())
    untrained = f", before training ({count:,} parameters)" if count else ""
    if isinstance(encoding, AbsoluteEncoding):
        size = f"width {encoding.width}"
        criteria = audit.audit(encoding)
    else:
        size = f"head_dim {encoding.shape.head_dim}"
        criteria = audit.audit_distances(encoding, 2 * encoding.shape.train_length)
    rows = []
    for criterion in criteria:
        verdict = {True: "yes", False: f"no: {criterion.problem}", None: ""}[criterion.holds]
        rows.append((criterion.name, criterion.measured, verdict))
    return _table(f"{label}{untrained}, {size}", ("criterion", "measured", "holds"), rows)


def _blindness_table(components: list[Component], seed: int, shape: ModelShape) -> Table:
    """Return a table that says whether an untrained encoder with each encoding ignores the word order."""
    none = load_component("pe", shipped("pe")["none"])
    rows = []
    for component in [none, *(component for component in components if component.label != none.label)]:
        if component.cls.causal_only:  # type: ignore[attr-defined]
            rows.append((component.label, "", "", "causal only: there is no such encoder"))
            continue
        with user_errors("pe", "fails on three words"):
            mean, dog = audit.order_blindness(partial(_build, component, seed), shape, seed)
        verdict = "no"
        if max(mean, dog) < audit.FLOAT64_TOLERANCE:
            verdict = "yes" if component.cls is PositionalEncoding else "yes (to mirror images)"
        rows.append((component.label, f"{mean:.1e}", f"{dog:.1e}", verdict))
    first, second = (" ".join(words) for words in audit.SENTENCES)
    title = f"'{first}' against '{second}', through an untrained encoder"
    headings = ("encoding", "sentences differ by", "the word 'dog' differs by", "order-blind")
    return _table(title, headings, rows)


def _table(title: str, headings: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """Return a table of rich without edges."""
    table = Table(*headings, title=title, title_justify="left", show_edge=False)
    for row in rows:
        table.add_row(*row)
    return table
