"""Dependencies point one way: a module imports from its own layer or those before it, and in no circle."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
# From the ground up. A module stands for itself, a package for all of its modules.
LAYERS = (
    ("terminal",),
    ("encodings", "tasks", "positions"),
    ("data",),
    ("models",),
    ("drawing",),
    ("configuration",),
    ("evaluation",),
    ("training",),
    ("store",),
    ("run",),
    ("comparison", "checking", "analysis", "pretrained"),
    ("published",),
    ("sweeps",),
    ("bank",),
    ("commands",),
)
SIDE_BY_SIDE = LAYERS[-5]  # many runs, tables, checks: none of these rooms needs another
TENSORS_ONLY = (*LAYERS[1], *LAYERS[2], *LAYERS[3])
SHELL = {"hydra", "omegaconf", "pytorch_lightning", "wandb", "pandas", "pydantic"}


def modules() -> dict[str, Path]:
    """Every module of the package by its name without the package's."""
    package = ROOT / "pe_experiments"
    found = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts).removesuffix("__init__").removesuffix(".")] = path
    return {name: path for name, path in found.items() if name}


@cache
def imports(path: Path) -> set[str]:
    """What a file imports, anywhere in it: ``module`` and ``module.name``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def arrows() -> set[tuple[str, str]]:
    """Pairs of a module and one it imports, within the package."""
    known = modules()
    found = set()
    for name, path in known.items():
        own = {imported.removeprefix("pe_experiments.") for imported in imports(path)}
        found |= {(name, other) for other in own if other in known and other != name}
    return found


def layer(module: str) -> int:
    room = module.partition(".")[0]
    layers = [index for index, rooms in enumerate(LAYERS) if room in rooms]
    assert len(layers) == 1, f"{module} stands in no layer of this test: say where it belongs"
    return layers[0]


def test_no_arrow_points_up_or_into_a_neighbouring_room() -> None:
    wrong = []
    for module, other in sorted(arrows()):
        room, theirs = module.partition(".")[0], other.partition(".")[0]
        beside = room != theirs and room in SIDE_BY_SIDE and theirs in SIDE_BY_SIDE
        if layer(other) > layer(module) or beside:
            wrong.append(f"{module} imports {other}")
    assert not wrong, "\n".join(wrong)


def test_no_circle() -> None:
    reached: dict[str, set[str]] = {name: set() for name in modules()}
    for module, other in arrows():
        reached[module].add(other)
    for _ in range(len(reached)):
        grown = {
            name: set().union(others, *(reached[other] for other in others))
            for name, others in reached.items()
        }
        if grown == reached:
            break
        reached = grown
    circles = sorted(name for name, others in reached.items() if name in others)
    assert not circles, circles


def test_the_catalogue_is_tensors_in_tensors_out() -> None:
    checked = 0
    for name, path in modules().items():
        if name.partition(".")[0] in TENSORS_ONLY:
            outside = {imported.partition(".")[0] for imported in imports(path)}
            assert not outside & SHELL, f"{name} imports {outside & SHELL}"
            checked += 1
    assert checked > 40


def test_studies_import_public_names_alone() -> None:
    for path in (ROOT / "results").rglob("*.py"):
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        for node in nodes:
            if (node.module or "").startswith("pe_experiments"):
                assert not any(alias.name.startswith("_") for alias in node.names), path


def test_the_model_names_no_encoding_and_no_task() -> None:
    for name, path in modules().items():
        if name.startswith("models"):
            for imported in imports(path):
                assert not imported.startswith(("pe_experiments.tasks", "pe_experiments.positions")), path
                encoding = imported.startswith("pe_experiments.encodings.")
                shared = ("base", "softmax", "tensors", *_exported())  # of all encodings
                assert not encoding or imported.split(".")[2] in shared, f"{path}: {imported}"


def _exported() -> list[str]:
    import pe_experiments.encodings as encodings

    return list(encodings.__all__)
