"""The code of the user's classes: what counts, what cannot be compared, and what is refused."""

from __future__ import annotations

import functools
import importlib
import os
import py_compile
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_experiments.analysis.trained_model import load_model
from pe_experiments.comparison import load_runs
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.encodings.alibi import Alibi
from pe_experiments.run import evaluate_run, run_experiment
from pe_experiments.store.identity import evaluation_key, identify, untracked
from pe_experiments.store.own_code import UNTRACKED, code_digests
from pe_experiments.store.requested import Run
from pe_experiments.terminal.errors import UserError
from tests.conftest import Script, Tiny, assert_one_sentence

ENCODING = """
from pe_experiments.encodings import PositionalEncoding

class Slope(PositionalEncoding):
    def __init__(self, shape, k=1):
        super().__init__(shape)

    def bias(self, q_BHTK, k_BHSK, at):
        return -S * at.relative_positions_BTS[:, None].abs().float()
"""
Write = Callable[..., Any]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Return a function that writes files by path and imports ``mine.Slope`` as a new process would."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # of another test
    before = set(sys.modules)

    def forget() -> None:
        for module in set(sys.modules) - before:
            if str(getattr(sys.modules[module], "__file__", None) or tmp_path).startswith(str(tmp_path)):
                del sys.modules[module]

    def write_and_import(files: dict[str, str], name: str = "mine") -> Any:
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        forget()
        importlib.invalidate_caches()
        return importlib.import_module(name).Slope

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield write_and_import
    forget()


def digest(cls: Any) -> dict[str, str]:
    digests = code_digests([cls])
    assert not any(text.startswith(UNTRACKED) for text in digests.values()), digests
    return digests


def assert_untracked(cls: Any) -> None:
    (text,) = code_digests([cls]).values()
    assert text.startswith(UNTRACKED)


# For each way of importing S: the files besides ``mine.py``, its first lines, and the file that is edited.
IMPORTS: dict[str, tuple[dict[str, str], str, str]] = {
    "its own file": ({}, "S = 0.1", "mine.py"),
    "a helper of a helper": (
        {"helper.py": "from deeper import S", "deeper.py": "S = 0.1"},
        "from helper import S",
        "deeper.py",
    ),
    "a package beside its submodule": (
        {"pkg/__init__.py": "S = 0.1", "pkg/sub.py": ""},
        "import pkg.sub\nS = pkg.S",
        "pkg/__init__.py",
    ),
    "a star with __all__": (
        {"pkg/__init__.py": "__all__ = ['part']", "pkg/part.py": "S = 0.1"},
        "from pkg import *\nS = part.S",
        "pkg/part.py",
    ),
    "an attribute that a package sets": (
        {"pkg/__init__.py": "import pkg.sub\npkg.sub.S = 0.1", "pkg/sub.py": ""},
        "from pkg.sub import S",
        "pkg/__init__.py",
    ),
    "a relative import": (
        {"pkg/__init__.py": "from .part import S", "pkg/part.py": "from . import deep\nS = deep.S",
         "pkg/deep.py": "S = 0.1"},
        "from pkg import S",
        "pkg/deep.py",
    ),
    "a relative import by name": (
        {"pkg/__init__.py": "from .part import S", "pkg/deep.py": "S = 0.1",
         "pkg/part.py": "from importlib import import_module\nS = import_module('.deep', __package__).S"},
        "from pkg import S",
        "pkg/deep.py",
    ),
    "an import by name under another name": (
        {"helper.py": "S = 0.1"},
        "from importlib import import_module as load\nS = load('helper').S",
        "helper.py",
    ),
    "the table of modules": (
        {"helper.py": "S = 0.1"}, "import sys, helper as _h\nS = sys.modules['helper'].S", "helper.py"
    ),
    "an object of a module whose name is computed": (
        {"helper.py": "import importlib\nValue = importlib.import_module('deep' + 'er').Value",
         "deeper.py": "class Value:\n    S = 0.1"},
        "import helper\nS = helper.Value.S",
        "deeper.py",
    ),
    "a file with a name of the standard library": ({"this.py": "S = 0.1"}, "from this import S", "this.py"),
}  # fmt: skip


@pytest.mark.parametrize("way", IMPORTS)
def test_every_file_that_is_imported_counts(way: str, write: Write) -> None:
    files, first_lines, edited = IMPORTS[way]
    files = {"mine.py": f"{first_lines}\n{ENCODING}", **files}
    before = digest(write(files))
    assert digest(write(files)) == before
    after = digest(write(files | {edited: files[edited].replace("0.1", "0.7")}))
    assert before.keys() == after.keys()
    assert before != after


def test_an_import_within_a_function_counts_before_it_is_executed(write: Write) -> None:
    lazy = ENCODING.replace("return", "from later.part import S\n        return")
    files = {"mine.py": lazy, "later/__init__.py": "", "later/part.py": "S = 0.1"}
    before = digest(write(files))
    assert "later.part" not in sys.modules
    assert digest(write(files | {"later/__init__.py": "print()"})) != before


def test_the_module_that_python_finds_counts(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is in the working directory, another comes before it on the path."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "helper.py").write_text("S = 0.1")
    monkeypatch.syspath_prepend(tmp_path / "first")
    files = {"mine.py": f"from helper import S\n{ENCODING}", "helper.py": "S = 3"}
    before = digest(write(files))
    assert digest(write(files | {"helper.py": "S = 4"})) == before
    assert digest(write(files | {"first/helper.py": "S = 0.7"})) != before


def test_an_edited_module_that_is_not_imported_does_not_count(write: Write) -> None:
    files = {"mine.py": f"S = 0.1\n{ENCODING}", "other.py": "S = 1"}
    assert digest(write(files)) == digest(write(files | {"other.py": "S = 2"}))


@pytest.mark.slow
def test_an_edited_run_is_trained_and_evaluated_anew(tiny: Tiny, write: Write) -> None:
    write({"mine.py": f"S = 0.1\n{ENCODING}"})
    first = run_experiment(tiny("pe=mine.Slope").config)
    shipped_run = run_experiment(tiny("pe=none").config)
    changes = {"pe": {"_target_": "mine.Slope"}}
    assert evaluate_run(shipped_run.directory.path, changes).done == "evaluated"
    assert evaluate_run(shipped_run.directory.path, changes).done == "found"
    write({"mine.py": f"S = 0.7\n{ENCODING}"})
    assert evaluate_run(shipped_run.directory.path, changes).done == "evaluated"
    difference = Run(tiny("pe=mine.Slope").config).difference_to_cached_run()
    assert difference == f"not the run {first.run.name}: mine has been edited"
    assert run_experiment(tiny("pe=mine.Slope").config).done == "trained"
    with pytest.raises(UserError, match="mine changed since it was trained"):
        load_model(first.run.path, trust=True)


@pytest.mark.parametrize("validation", ["timestamp", "unchecked"])
def test_an_outdated_compiled_copy_is_untracked(write: Write, tmp_path: Path, validation: str) -> None:
    files = {"mine.py": f"from helper import S\n{ENCODING}", "helper.py": "S = float('0.1')"}
    write(files)
    helper = tmp_path / "helper.py"
    modes = py_compile.PycInvalidationMode
    mode = modes.TIMESTAMP if validation == "timestamp" else modes.UNCHECKED_HASH
    py_compile.compile(str(helper), invalidation_mode=mode)
    status = helper.stat()
    files["helper.py"] = "S = float('0.7')"
    helper.write_text(files["helper.py"])
    os.utime(helper, ns=(status.st_atime_ns, status.st_mtime_ns))
    sys.modules.pop("helper")
    sys.modules.pop("mine")
    cls = importlib.import_module("mine").Slope
    assert sys.modules["helper"].S == 0.1
    assert_untracked(cls)


def edit(mine: Any) -> None:
    path = Path(mine.__file__)
    path.write_text(path.read_text().replace("0.1", "0.7"))


CHANGES: dict[str, Callable[[Any], object]] = {
    "a new hook": lambda mine: setattr(mine.Slope, "rotate", lambda self, q, k, at: (k, q)),
    "another function of the file": lambda mine: setattr(mine.Slope, "bias", mine.helper),
    "an attribute": lambda mine: setattr(mine.Slope, "power", 2),
    "an inherited attribute": lambda mine: setattr(mine.Slope, "causal_only", True),
    "the class": lambda mine: setattr(mine, "Slope", type("Slope", (mine.Slope,), {})),
    "a helper": lambda mine: setattr(mine, "helper", functools.partial(abs)),
    "an attribute of a dataclass": lambda mine: setattr(mine.Size, "size", 2),
    "a property": lambda mine: setattr(mine.Size, "double", property(lambda self: 7)),
    "a constant": lambda mine: setattr(mine, "S", 0.7),
    "one of two constants": lambda mine: setattr(mine, "A", 7),
    "a conditional constant": lambda mine: setattr(mine, "C", 7),
    "an imported module": lambda mine: setattr(mine, "math", sys),
    "default arguments, after a use": lambda mine: [
        digest(mine.Slope),
        setattr(mine.Slope.__init__, "__defaults__", (7,)),
    ],
    "a computed value, after a use": lambda mine: [digest(mine.Slope), setattr(mine, "COMPUTED", 7)],
    "the file, after a use": lambda mine: [digest(mine.Slope), edit(mine)],
}
CHANGED = """
import math
from dataclasses import dataclass

S = 0.1
A, B = 1, 2
COMPUTED = math.sqrt(2)
if COMPUTED:
    C = 3

def helper(x):
    return x

@dataclass
class Size:
    size: int = 1

    @property
    def double(self):
        return 2 * self.size
"""


@pytest.mark.parametrize("change", CHANGES)
def test_a_loaded_module_that_is_not_what_its_file_says_is_untracked(change: str, write: Write) -> None:
    cls = write({"mine.py": CHANGED + ENCODING.replace("Encoding):", "Encoding):\n    power = 1\n")})
    CHANGES[change](sys.modules["mine"])
    assert_untracked(cls)


def test_a_helper_that_was_loaded_again_beside_its_user_is_untracked(write: Write) -> None:
    """As in a notebook: the helper is edited and loaded again, the class still has the old one."""
    cls = write({"mine.py": f"from helper import S\n{ENCODING}", "helper.py": "S = 0.1"})
    Path(sys.modules.pop("helper").__file__ or "").write_text("S = 0.25")
    importlib.import_module("helper")
    assert_untracked(cls)


def test_a_shipped_class_that_was_patched_is_trained_anew(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert untracked(identify(tiny("pe=alibi")).classes) == []
    monkeypatch.setattr(Alibi, "_bias", lambda self, at: None)
    assert untracked(identify(tiny("pe=alibi")).classes) == ["pe_experiments.encodings.alibi.Alibi"]


FILLED = """
import helper, os, sys
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from typing import NamedTuple, TYPE_CHECKING

REGISTRY, STEPS, CACHE = {}, 0, None
NAMES = []

def register(cls):
    global STEPS
    STEPS += 1
    NAMES.append(cls.__name__)
    return cls

class Registered:
    table = None

    def __init_subclass__(cls):
        cls.table = 3

@register
class Other(Registered):
    size = 1

Other.size = 2

@dataclass(slots=True)
class Slotted:
    size: int = 1

class Named(NamedTuple):
    size: int = 1

class Colour(Enum):
    RED = 1

def wrapped(function):
    @wraps(function)
    def wrapper(*arguments):
        return function(*arguments)
    return wrapper

@wrapped
def three():
    return 3

exec("def four(): return 4")
from helper import T
T = 2 * T
from helper import five
def five():
    return 5
class Twice:
    size = 1
class Twice:
    size = 2
class Part(helper.Registered):
    pass
del os
if TYPE_CHECKING:
    import sympy
    from helper import UNUSED
    from nowhere import Nothing
if sys.version_info < (3, 8):
    import pickle5
    C = 3
S = 0.1
if NAMES:
    S = 0.2
"""
HELPER = """
T, UNUSED = 1, 1

def five():
    return 4

class Registered:
    key = ""

    def __init_subclass__(cls):
        cls.key = cls.__name__
"""


def test_what_a_module_fills_itself_or_does_not_bind_is_not_a_change(write: Write) -> None:
    cls = write({"mine.py": FILLED + ENCODING, "helper.py": HELPER})
    assert digest(cls) == digest(cls)
    assert cls.__annotations__ == {}


def made_by_a_function(slope: float) -> type[PositionalEncoding]:
    class Made(PositionalEncoding):
        def bias(self, q_BHTK: Any, k_BHSK: Any, at: Any) -> Any:
            return -slope * at.relative_positions_BTS[:, None].abs().float()

    return Made


def in_a_notebook(slope: float) -> type[PositionalEncoding]:
    scope: dict[str, Any] = {"__name__": "__main__", "S": slope}
    exec(ENCODING, scope)
    return scope["Slope"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", [made_by_a_function, in_a_notebook], ids=lambda make: make.__name__)
def test_a_class_without_a_file_is_trained_anew(
    make: Callable[[float], type], results: Path, capsys: pytest.CaptureFixture[str], tiny: Tiny
) -> None:
    plain = tiny().config.model_dump(exclude={"pe"}, by_alias=True)
    first, second = (run_experiment(plain | {"pe": make(slope)}) for slope in (0.1, 7.0))
    again = run_experiment(plain | {"pe": make(7.0)})
    assert [result.done for result in (first, second, again)] == 3 * ["trained"]
    assert first.validation_loss != second.validation_loss == again.validation_loss
    assert len(list(results.glob("runs/*"))) == 3
    assert capsys.readouterr().out.count("will not be found again; load it by its path") == 3


def test_seeds_of_one_class_in_a_notebook_are_compared_as_one_encoding(tiny: Tiny) -> None:
    cls = in_a_notebook(0.1)
    base = tiny().config.model_dump(exclude={"pe"}, by_alias=True)
    for seed in (0, 1):
        result = run_experiment(base | {"pe": cls, "seed": seed})
    runs = load_runs(result.run.results_dir)
    assert runs.runs["encoding"].nunique() == 1
    assert len(runs.runs) == 2


def test_two_classes_of_one_name_are_refused_together() -> None:
    parts = [made_by_a_function(slope) for slope in (0.1, 0.7)]
    with pytest.raises(UserError, match="is the name of two different classes"):
        run_experiment({"pe": {"_target_": "pe_experiments.encodings.mixtures.ByLayer", "encodings": parts}})


def metric_of(scale: float) -> Callable[..., Any]:
    def measured(batch: Any, answers_BT: Any) -> Any:
        return scale * (answers_BT >= 0).double().mean(dim=1)

    return measured


def test_a_metric_that_is_a_closure_is_measured_anew(tiny: Tiny) -> None:
    run = run_experiment(tiny().config).directory.path
    for scale in (1.0, 2.0):
        options = tiny().config.model_dump(by_alias=True) | {"evaluation.metrics": [metric_of(scale)]}
        result = run_experiment(options)
        assert result.done == "evaluated"
        assert result.run.path == run
        assert result.curve[0]["measured"] == 0.5 * scale


def test_a_sweep_refuses_a_class_that_is_made_at_run_time(script: Script, write: Write) -> None:
    write({"mine.py": f"def make():\n    S = 0.1\n{ENCODING.replace(chr(10), chr(10) + '    ')}\n"
                      "    return Slope\nSlope = make()\n"})  # fmt: skip
    outcome = script("train", "-m", "pe=mine.Slope", "seed=0,1", "dry_run=true")
    assert_one_sentence(outcome, "mine.make.<locals>.Slope is made at run time", "top level of a file")


@pytest.mark.parametrize(
    ("default", "given", "new"),
    [
        ("k=1", "1.0", True),
        ("k=1", "true", True),
        ("k=(1, 0)", "[true,0]", True),
        ("k=(1, 0)", "[1,0]", False),
        ("k=0.0", "-0.0", True),
        ("k=1", "1", False),
        ("k: float = 1", "1.0", False),
        ("k={'a': 1}", "{a:1}", False),
        ("k={'a': 1}", "{a:1.0}", True),
    ],
)
def test_arguments_are_equal_if_type_and_value_are(
    default: str, given: str, new: bool, write: Write, tiny: Tiny
) -> None:
    write({"mine.py": "S = 0.1\n" + ENCODING.replace("k=1", default)})
    before, after = tiny("pe=mine.Slope"), tiny("pe=mine.Slope", f"+pe.k={given}")
    assert (identify(before).hash != identify(after).hash) is new
    assert before.label != after.label or not new or "true" not in given


def test_a_partial_at_the_top_is_the_same_run(tiny: Tiny) -> None:
    assert identify(tiny("+pe._partial_=true")) == identify(tiny())


@pytest.mark.parametrize("argument", ["data", "data/part", "./data/part.txt"])
def test_a_folder_a_stem_or_a_file_counts_by_its_content(
    argument: str, write: Write, tiny: Tiny, tmp_path: Path
) -> None:
    write({"mine.py": f"S = 0.1\n{ENCODING}", "data/part.txt": "a"})
    before = identify(tiny("pe=mine.Slope", f"+pe.k={argument}"))
    (tmp_path / "data" / "part.txt").write_text("b")
    after = identify(tiny("pe=mine.Slope", f"+pe.k={argument}"))
    assert before.hash != after.hash
    assert evaluation_key(tiny("pe=mine.Slope", f"+pe.k={argument}"))["files"] == after.data
