"""Identity covers the code that trains: a table of edits, and what each must lead to."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.parts import load_component
from pe_experiments.run import run_experiment
from pe_experiments.store import code as fingerprints
from pe_experiments.store.code import class_code, common_code, source_meaning
from pe_experiments.store.identity import evaluated, identify, part_code
from pe_experiments.store.plan import plan
from pe_experiments.terminal.errors import UserError
from tests.conftest import ROOT, TINY, Script
from tests.processes import run_script
from tests.synthetic import fading, write_run

Tiny = Callable[..., Experiment]

ORIGIN = fingerprints.HERE
NEW_RUN, EVALUATED_AGAIN, NOTHING = "new run", "evaluated again", "nothing"
CODE = "\nADDED = 1\n"
# What is added to which file, and what must follow for pe=rope task=copy.
SHARED = sorted(fingerprints._files(fingerprints.SHARED))
EDITS = {
    **{str(path.relative_to(fingerprints.HERE)): (CODE, NEW_RUN) for path in SHARED},
    "encodings/rope.py": (CODE, NEW_RUN),
    "tasks/copying.py": (CODE, NEW_RUN),
    "evaluation/curve.py": (CODE, EVALUATED_AGAIN),
    "evaluation/text.py": (CODE, EVALUATED_AGAIN),
    "data/seen.py": (CODE, EVALUATED_AGAIN),
    "tasks/ceilings.py": (CODE, EVALUATED_AGAIN),
    "encodings/alibi.py": (CODE, NOTHING),
    "tasks/sorting.py": (CODE, NOTHING),
    "comparison/figures.py": (CODE, NOTHING),
    "terminal/errors.py": (CODE, NOTHING),
    "evaluation/summary.py": (CODE, NOTHING),
    "models/attention.py, a comment": ("\n# words\n", NOTHING),
    "training/loop.py, its layout": ("\n\n\n", NOTHING),
}


def forget() -> None:
    """As a new process would: digests are taken once per process."""
    fingerprints.common_code.cache_clear()
    fingerprints.class_code.cache_clear()
    fingerprints.files_of.cache_clear()
    fingerprints._meaning.cache_clear()


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package's sources; what is not edited in it is read once for all edits."""
    copy = tmp_path_factory.mktemp("copy") / "package"
    shutil.copytree(fingerprints.HERE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture
def read_from(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Has the sources of the package's modules read from a copy; what is imported stays as it is."""
    origin = fingerprints.module_file

    def redirect(copy: Path) -> None:
        here = ORIGIN

        def elsewhere(module: str) -> Path | None:
            path = origin(module)
            inside = path is not None and path.is_relative_to(here)
            return copy / path.relative_to(here) if path is not None and inside else path

        monkeypatch.setattr(fingerprints, "module_file", elsewhere)
        monkeypatch.setattr(fingerprints, "HERE", copy)
        forget()

    return redirect


@pytest.mark.parametrize("edit", EDITS)
def test_what_an_edit_leads_to(
    tiny: Tiny, package: Path, read_from: Callable[[Path], None], edit: str
) -> None:
    experiment = tiny("pe=rope")
    before, evaluation = identify(experiment).hash8, evaluated(experiment)["code"]
    path, (added, leads_to) = package / edit.partition(",")[0], EDITS[edit]
    source = path.read_text()
    path.write_text(source + added)
    read_from(package)
    try:
        after, evaluation_after = identify(experiment).hash8, evaluated(experiment)["code"]
    finally:
        path.write_text(source)
    assert (after != before) == (leads_to == NEW_RUN)
    if leads_to != NEW_RUN:
        assert (evaluation_after != evaluation) == (leads_to == EVALUATED_AGAIN)


def test_docstrings_and_places_of_modules_do_not_count() -> None:
    one = "from pe_experiments.data.batches import Batch\ndef f():\n    'words'\n    return 1"
    other = "from pe_experiments.elsewhere import (Batch)\ndef f():\n    'others'\n    return 1  # one"
    assert source_meaning(one) == source_meaning(other)
    assert source_meaning(one) != source_meaning(one.replace("Batch", "Source"))


def test_derived_values_are_part_of_a_run(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    before = identify(tiny()).hash8
    monkeypatch.setattr("pe_experiments.configuration.experiment.warmup_steps", lambda training: 7)
    assert identify(tiny()).hash8 != before


def test_what_the_training_code_imports_counts_or_computes_nothing() -> None:
    """A function moved out of the shared files would no longer be watched."""
    watched = fingerprints._files(fingerprints.SHARED) | fingerprints._files(fingerprints.EVALUATION)
    imported = set()
    for path in fingerprints._files(fingerprints.SHARED):
        module = ".".join(("pe_experiments", *path.relative_to(fingerprints.HERE).with_suffix("").parts))
        imported |= {
            name for name in fingerprints._imports(module, path) if name.startswith("pe_experiments.")
        }
    found = {name: fingerprints.module_file(name) for name in imported}
    inits = {name for name, path in found.items() if path and path.name == "__init__.py"}  # re-exports alone
    others = {name for name, path in found.items() if path and path not in watched} - inits
    assert others == {
        "pe_experiments.configuration.parts",
        "pe_experiments.configuration.schema",
        "pe_experiments.terminal.arguments",
        "pe_experiments.terminal.errors",
    }


@pytest.mark.slow
def test_an_edit_says_what_changed_and_a_changed_evaluation_is_repeated(tmp_path: Path) -> None:
    """The commands themselves, on a copy of the package."""
    for name in ("pe_experiments", "configs", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = ("scripts/train.py", "pe=rope", *TINY, "results_dir=r")

    def run(*edit: str) -> str:
        if edit:
            name, old, new = edit
            path = tmp_path / "pe_experiments" / name
            path.write_text(path.read_text().replace(old, new))
        environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        done = run_script(*command, cwd=tmp_path, path=[tmp_path], environment=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "(trained)" in run()
    assert "(found finished)" in run("training/loop.py", '"""Mean cross entropy', '"""The mean cross entropy')
    assert "(evaluated" in run("evaluation/curve.py", "TOKENS_AT_ONCE = 16_384", "TOKENS_AT_ONCE = 16_383")
    (first,) = (tmp_path / "r" / "runs").iterdir()
    assert "(found finished)" in run()
    said = run("models/transformer.py", "self.norm(x_ND)", "self.norm(0.3 * x_ND)")
    assert f"Changed since {first.name}: the training code." in said
    assert len(list((tmp_path / "r" / "runs").iterdir())) == 2


def test_an_evaluation_by_other_code_replaces_the_old_one(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_experiment(tiny())
    curve, took = run.directory.curve.read_bytes(), run.result["seconds_per_step"]
    edited = {"trained": fingerprints.states, "evaluated": lambda *_: {"evaluation": "edited"}}
    monkeypatch.setattr("pe_experiments.store.identity.states", lambda code, half: edited[half](code, half))
    assert plan(tiny()).state == "to evaluate"
    again = run_experiment(tiny())
    assert (again.done, again.directory.path) == ("evaluated", run.directory.path)
    assert again.result["evaluation"]["code"] == {"evaluation": "edited"}
    assert again.result["seconds_per_step"] == took
    assert run.directory.curve.read_bytes() == curve
    assert not (run.directory.path / "evaluations").exists()
    assert run_experiment(tiny()).done == "found"


def test_meaning_is_the_same_on_every_python() -> None:
    """A literal: should a new Python read the same source otherwise, every run would be trained again."""
    source = "def f(a, *, b=1):\n    'words'\n    return [f'{a!r:>3}', a @ b]  # more words\n"
    assert fingerprints.digest(source_meaning(source)) == "17fff20f8c28"


SCHEME = """
{imports}from pe_experiments.encodings import PositionalEncoding
class {name}(PositionalEncoding):
    {body}
"""


def test_a_helper_beside_a_scheme_belongs_to_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helping.py").write_text("SLOPE = 1.0\n")
    text = SCHEME.format(imports="import helping\n", name="Helped", body="slope = helping.SLOPE")
    (tmp_path / "helped.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    def digests() -> dict[str, str]:
        forget()
        return class_code(load_component("pe", {"_target_": "helped.Helped"}).cls)

    before = digests()
    assert {"helped.Helped", "helping"} == set(before)
    (tmp_path / "helping.py").write_text("SLOPE = 1.0  # a comment\n")
    assert digests() == before
    (tmp_path / "helping.py").write_text("SLOPE = 2.0\n")
    assert digests() != before


MINE = """
import math
from helping import SLOPE, OTHER
from pe_experiments.encodings import PositionalEncoding
from torch import nn
unrelated = (nn.Module, OTHER)
FACTOR = 2.0
TABLE = {}
def twice(x): return FACTOR * x
class Mine(PositionalEncoding):
    slope = twice(SLOPE) if TABLE else math.pi
"""
UNRELATED = {
    "a class": "class Unrelated(nn.Module):\n    size = OTHER",
    "a class that uses it": "class Unrelated(Mine): pass",
    "a function": "@torch.no_grad()\ndef draw(x): return Mine",
    "a constant": "SIZE = 3\nSIZES: tuple = (SIZE, 4)",
    "an import of what only others use": "import json\nfrom torch import Tensor\ndef f(): json, Tensor",
    "a script": "if __name__ == '__main__':\n    print(Mine)",
    "words": "'Words.'",
}
RELATED = {
    "what it uses of what it uses": "FACTOR = 3.0",
    "an attribute put in afterwards": "Mine.slope = 1",
    "a change of a value": "FACTOR += 1",
    "an entry in a table": "TABLE['x'] = 1",
    "a call": "print()",
    "a class that is listed somewhere": "def listed(x): return x\n@listed\nclass Listed: pass",
    "an import for what it does": "import doing",
    "everything of a module": "from json import *",
    "a class under a condition": "if math:\n    class Mine(PositionalEncoding): slope = 1",
}


@pytest.mark.parametrize("added", [*UNRELATED, *RELATED])
def test_of_its_own_file_only_what_a_class_uses_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: str
) -> None:
    (tmp_path / "helping.py").write_text("SLOPE = 1.0\nOTHER = 2\n")
    (tmp_path / "doing.py").write_text("")
    (tmp_path / "own.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("own", "helping"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    cls = load_component("pe", {"_target_": "own.Mine"}).cls
    before = class_code(cls)
    (tmp_path / "own.py").write_text(f"{MINE}{(UNRELATED | RELATED)[added]}\n")
    forget()
    assert set(before) == {"own.Mine", "helping"}
    assert (class_code(cls) == before) == (added in UNRELATED)


def test_of_a_class_that_may_use_anything_the_whole_file_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SCHEME.format(imports="", name="Open", body="def f(self): return globals()['un' + 'known']")
    (tmp_path / "opened.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    cls = load_component("pe", {"_target_": "opened.Open"}).cls
    before = class_code(cls)
    (tmp_path / "opened.py").write_text(f"{text}\ndef unknown(): pass\n")
    forget()
    assert class_code(cls) != before


def test_two_parts_of_one_file_both_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = MINE.replace("from helping import SLOPE, OTHER", "SLOPE = OTHER = 1")
    (tmp_path / "both.py").write_text(f"{text}class Other(Mine): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    parts = [load_component("pe", {"_target_": f"both.{name}"}) for name in ("Mine", "Other")]
    assert set(part_code(parts[0]) | part_code(parts[1])) == {"both.Mine", "both.Other"}


def test_a_dry_run_says_why_a_run_is_new(
    tiny: Tiny, script: Script, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SCHEME.format(imports="", name="Edited", body="slope = 1")
    (tmp_path / "edited.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    typed = ["pe=none", "pe._target_=edited.Edited"]
    before = write_run(tiny(*typed), fading(1, 0)).path.name
    (tmp_path / "edited.py").write_text(text.replace("1", "2"))
    for many in ([], ["-m"]):
        forget()
        said = script("train", *many, *TINY, *typed, f"results_dir={results}", "dry_run=true").out
        assert f"(changed since {before}: edited.Edited)" in said


def test_a_helper_in_a_folder_without_init_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nsp").mkdir()
    (tmp_path / "nsp" / "helper.py").write_text("SLOPE = 1.0\n")
    text = SCHEME.format(imports="from nsp.helper import SLOPE\n", name="Spaced", body="slope = SLOPE")
    (tmp_path / "nsp" / "mine.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert "nsp.helper" in class_code(load_component("pe", {"_target_": "nsp.mine.Spaced"}).cls)


def test_evaluation_that_ends_a_training_is_part_of_it(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, stopped = tiny(), tiny("training.stop_at_exact_match=0.5")
    before = [identify(plain).hash8, identify(stopped).hash8]
    common = {**common_code(), "evaluation": "edited"}
    monkeypatch.setattr("pe_experiments.store.identity.common_code", lambda: common)
    assert identify(plain).hash8 == before[0]
    assert identify(stopped).hash8 != before[1]


def test_arguments_without_a_text_of_their_own(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "def __init__(self, shape, kernel={}): super().__init__(shape)"
    code = "def kernel(): pass\nclass Odd: pass\n"
    for name, default in (("Called", "kernel"), ("Unsorted", "frozenset('ab')"), ("Nameless", "Odd()")):
        text = SCHEME.format(imports=code, name=name, body=body.format(default))
        (tmp_path / f"{name.lower()}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    options = [
        ["pe=none", f"pe._target_={name.lower()}.{name}"] for name in ("Called", "Unsorted", "Nameless")
    ]
    assert identify(tiny(*options[0])).trained["pe"]["kernel"] == "called.kernel"
    assert identify(tiny(*options[1])).trained["pe"]["kernel"] == ["a", "b"]
    with pytest.raises(UserError, match="Odd: such an argument has no text"):
        identify(tiny(*options[2]))


def test_a_scheme_of_an_installed_library_is_watched_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SCHEME.format(imports="", name="Installed", body="slope = 1.0")
    (tmp_path / "installed.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(fingerprints, "LIBRARIES", (tmp_path,))
    cls = load_component("pe", {"_target_": "installed.Installed"}).cls
    before = class_code(cls)
    (tmp_path / "installed.py").write_text(text.replace("1.0", "2.0"))
    forget()
    assert class_code(cls) != before


TASK = """
from pathlib import Path
from pe_experiments.tasks.copying import Copy
class Words(Copy):
    {body}
"""


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        (
            "def __init__(self, path: str): super().__init__(len(Path(path).read_text()))",
            {"path": "words.txt"},
        ),
        ("def __init__(self, path: str = 'words.txt'): super().__init__(len(Path(path).read_text()))", {}),
        ("def __init__(self): super().__init__(len(Path(__file__).with_name('words.txt').read_text()))", {}),
        ("data_files = (Path(__file__).parent / ('words' + '.txt'),)", {}),
        ("data_files = (Path(__file__).parent / 'folder',)", {}),
    ],
)
def test_a_data_file_belongs_to_the_run(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, arguments: dict[str, str]
) -> None:
    (tmp_path / "wordy.py").write_text(TASK.format(body=body))
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "words.txt", tmp_path / "folder" / "words.txt"):
        path.write_text("one two three")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wordy", raising=False)
    monkeypatch.chdir(tmp_path)
    options = [
        "task._target_=wordy.Words",
        *(f"+task.{k}={v}" for k, v in arguments.items()),
    ]
    first = identify(tiny(*options))
    assert any("words.txt" in name for name in first.sources["task"])
    for path in (tmp_path / "words.txt", tmp_path / "folder" / "words.txt"):
        path.write_text("one two seven")
    second = identify(tiny(*options))
    assert second.trained == first.trained
    assert second.hash8 != first.hash8


@pytest.mark.parametrize(
    "body",
    [
        "def slope(self): return {value}",
        "slope = [{value}]",
        "@property\n    def slope(self): return {value}",
        "@staticmethod\n    def slope(): return {value}",
        "@torch.no_grad()\n    def slope(self): return {value}",
        "def slope(self): return helper({value})",
        "def slope(self): return helper(0)",
    ],
)
def test_a_class_typed_into_a_notebook_is_watched(body: str) -> None:
    def typed(value: str) -> type:
        space: dict[str, type] = {"__name__": "__typed__"}  # type: ignore[dict-item]
        imports = f"import torch\ndef helper(x): return x + {value}\n"
        exec(SCHEME.format(imports=imports, name="Typed", body=body.format(value=value)), space)
        return space["Typed"]

    one, same, other = (typed(value) for value in ("1", "(1)", "2"))
    assert class_code(one) == class_code(same) != class_code(other)


def test_a_scheme_that_gets_a_file_of_its_own_keeps_its_runs(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash finds a run, the label only names it."""
    trained = write_run(tiny("pe=rope", "label=before"), fading(1, 0)).path
    named = plan(tiny("pe=rope"))
    assert named.identity.name != trained.name
    assert (named.state, named.run.path) == ("finished", trained)
    assert plan(tiny("pe=rope", "seed=1")).state == "new"
    trained.rename(trained.with_name(named.identity.name[:-8] + "00000000"))
    assert plan(tiny("pe=rope")).state == "new"
