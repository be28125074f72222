"""A module imports from its layer or earlier ones, and imports form no cycle."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from pe_experiments import encodings

ROOT = Path(__file__).parents[2]
# From the lowest. A name is a module, or a package with all of its modules.
LAYERS = (
    ("terminal",),
    ("encodings", "tasks", "positions"),
    ("data",),
    ("models",),
    ("configuration",),
    ("evaluation",),
    ("drawing",),
    ("training",),
    ("checking",),
    ("store",),
    ("run",),
    ("comparison", "analysis", "pretrained"),
    ("sweeps",),
    ("studies",),
    ("commands",),
)
# Packages of one layer that do not import each other.
INDEPENDENT = {"comparison", "analysis", "pretrained"}
TENSORS_ONLY = {"encodings", "tasks", "positions", "data", "models"}
HARNESS = {"hydra", "omegaconf", "pytorch_lightning", "wandb", "pandas", "pydantic"}


@cache
def modules() -> dict[str, Path]:
    """Every module by its name within the package."""
    package = ROOT / "pe_experiments"
    paths = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(parts).removesuffix("__init__").removesuffix(".")
        if name:
            paths[name] = path
    return paths


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


@cache
def imported_modules(module: str) -> set[str]:
    """The modules of the package that a module of it imports."""
    names = {name.removeprefix("pe_experiments.") for name in imports(modules()[module])}
    return (names & modules().keys()) - {module}


def layer(module: str) -> int:
    package = module.partition(".")[0]
    layers = [index for index, packages in enumerate(LAYERS) if package in packages]
    assert len(layers) == 1, f"{module} is in no layer of this test: say where it belongs"
    return layers[0]


def test_no_module_imports_from_a_later_layer_or_an_independent_package() -> None:
    wrong = []
    for module in modules():
        package = module.partition(".")[0]
        forbidden = INDEPENDENT - {package} if package in INDEPENDENT else set()
        for imported in imported_modules(module):
            if layer(imported) > layer(module) or imported.partition(".")[0] in forbidden:
                wrong.append(f"{module} imports {imported}")
    assert not wrong, "\n".join(sorted(wrong))


def test_no_imports_form_a_cycle() -> None:
    graph = {module: imported_modules(module) for module in modules()}
    in_order = list(TopologicalSorter(graph).static_order())  # a CycleError names the cycle
    assert len(in_order) == len(graph)


def test_tensor_code_imports_no_library_of_the_harness() -> None:
    assert modules().keys() >= TENSORS_ONLY
    for name, path in modules().items():
        if name.partition(".")[0] in TENSORS_ONLY:
            libraries = {imported.partition(".")[0] for imported in imports(path)}
            assert not libraries & HARNESS, f"{name} imports {libraries & HARNESS}"


def test_the_model_imports_no_task_no_policy_and_no_single_encoding() -> None:
    shared = {"base", "softmax", "tensors", *encodings.__all__}
    for name, path in modules().items():
        if name.partition(".")[0] == "models":
            for imported in imports(path):
                assert not imported.startswith(("pe_experiments.tasks", "pe_experiments.positions")), path
                if imported.startswith("pe_experiments.encodings."):
                    assert imported.split(".")[2] in shared, f"{path}: {imported}"
