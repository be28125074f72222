"""One or several schemes shown: pictures, the audit as a table, and order-blindness literally."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from rich.table import Table

from pe_experiments.analysis.audit import AUDITED, Criterion, audit
from pe_experiments.analysis.figures import encoding_figure
from pe_experiments.analysis.order_blindness import SENTENCES, order_blindness
from pe_experiments.analysis.relative import audit_distances
from pe_experiments.command_line import ALIASES
from pe_experiments.components import Component, load_component, shipped, user_errors
from pe_experiments.console import print_table, say
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.absolute import AbsoluteEncoding
from pe_experiments.errors import UserError, nearest
from pe_experiments.identity import safe_name
from pe_experiments.randomness import named_seed


def show_encodings(config: DictConfig) -> Path | None:
    """Print and draw what `configs/show_encoding.yaml` asks for.

    Returns:
        The figure, or None where no scheme does anything to draw.

    Raises:
        UserError: unknown schemes, impossible sizes.
    """
    components = _components(config)
    for key in ("d_model", "num_heads", "train_length", "seed"):
        if not isinstance(config[key], int) or config[key] < (key != "seed"):
            raise UserError(f"{key}={config[key]}: expected a whole number, {int(key != 'seed')} or more")
    with user_errors("d_model, num_heads"):
        # As many rows in a learned table as the audit looks at.
        shape = ModelShape(config.d_model, config.num_heads, 2, True, config.train_length, AUDITED)
    built = {component.label: _build(component, config.seed, shape) for component in components}
    drawn = {label: scheme for label, scheme in built.items() if type(scheme) is not PositionalEncoding}
    for label, encoding in drawn.items():
        print_table(_audit_table(label, encoding))
        say("")
    print_table(_blindness_table(components, config))
    if not drawn:
        return None
    folder = Path(config.out or Path(config.results_dir) / "encodings")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{'-'.join(safe_name(component.label) for component in components)}.png"
    encoding_figure(drawn, 2 * config.train_length).savefig(path, dpi=130)
    say(f"\nfigure: {path}")
    return path


def _components(config: DictConfig) -> list[Component]:
    if config.schemes is None:
        section = OmegaConf.to_container(config.pe)
        return [load_component("pe", section)]  # type: ignore[arg-type]
    choices = shipped("pe")
    names: Any = config.schemes
    if OmegaConf.is_list(names):
        names = OmegaConf.to_container(names)
    if not isinstance(names, list) or not names:
        raise UserError(f"schemes={names}: expected a list such as '[sinusoidal,learned]'")
    names = [ALIASES["pe"].get(name, name) for name in names]
    for name in names:
        if name not in choices:
            raise UserError(f"schemes: {name} is not a choice.{nearest(str(name), choices)}")
    return [load_component("pe", choices[name]) for name in names]


def _build(component: Component, seed: int, shape: ModelShape) -> PositionalEncoding:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(named_seed(seed, "encoding 0"))
        return component.build(shape)


def _audit_table(label: str, encoding: PositionalEncoding) -> Table:
    untrained = ", before training" if any(p.requires_grad for p in encoding.parameters()) else ""
    findings: list[Criterion]
    if isinstance(encoding, AbsoluteEncoding):
        title, findings = f"{label}{untrained}, width {encoding.width}", audit(encoding)
    else:
        title = f"{label}{untrained}, head_dim {encoding.shape.head_dim}"
        findings = audit_distances(encoding, 2 * encoding.shape.train_length)
    table = Table(title=title, title_justify="left", show_edge=False)
    for heading in ("criterion", "measured", "holds"):
        table.add_column(heading)
    for finding in findings:
        table.add_row(finding.name, finding.measured, {True: "yes", False: "no", None: ""}[finding.holds])
    return table


def _blindness_table(components: list[Component], config: DictConfig) -> Table:
    first, second = (" ".join(words) for words in SENTENCES)
    title = f"'{first}' against '{second}', through an untrained encoder"
    table = Table(title=title, title_justify="left", show_edge=False)
    for heading in ("encoding", "sentences differ by", "the word 'dog' differs by", "order-blind"):
        table.add_column(heading)
    none = load_component("pe", shipped("pe")["none"])
    for component in [none, *(c for c in components if c.label != none.label)]:
        if component.cls.causal_only:  # type: ignore[attr-defined]
            table.add_row(component.label, "", "", "causal only: there is no such encoder")
            continue
        shape = ModelShape(config.d_model, config.num_heads, 2, False, config.train_length, AUDITED)
        with user_errors("pe", "fails on three words"):
            found = order_blindness(partial(_build, component, config.seed), shape, config.seed)
        mirror = " (to mirror images)" if component.cls is not PositionalEncoding else ""
        blind = f"yes{mirror}" if found.blind else "no"
        table.add_row(component.label, f"{found.pooled:.1e}", f"{found.word:.1e}", blind)
    return table
