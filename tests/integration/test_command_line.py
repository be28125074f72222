"""The scripts as a user types them: what they print, and every mistake as one sentence."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import ROOT, TINY, Outcome

Script = Callable[..., Outcome]
HUGE = "pe_experiments.tasks.copying.UniqueCopy"

# what is typed -> words the one sentence must hold: key, value, what is allowed
MISTAKES = {
    "unknown scheme": (["pe=sinusiodal"], ["pe=sinusiodal", "Did you mean sinusoidal", "learned"]),
    "unknown task": (["task=copie"], ["task=copie", "Did you mean copy", "reverse"]),
    "unknown group": (["pee=none"], ["pee", "Did you mean pe"]),
    "unknown key": (["training.stepz=3"], ["training.stepz", "Did you mean steps"]),
    "unknown top key": (["sede=3"], ["sede", "Did you mean seed"]),
    "forced unknown key": (["+training.stepz=3"], ["training.stepz", "Did you mean steps"]),
    "unknown argument": (["+pe.bass=3"], ["pe.bass", "Did you mean base"]),
    "argument of another scheme": (["pe=none", "pe.base=3"], ["pe.base", "not a setting"]),
    "argument where none is taken": (["pe=none", "+pe.base=3"], ["pe.base", "takes no arguments"]),
    "wrong type": (["training.steps=abc"], ["training.steps=abc", "whole number"]),
    "fraction": (["training.steps=1.5"], ["training.steps=1.5", "whole number"]),
    "wrong type of an argument": (["pe.base=abc"], ["pe.base=abc", "a number"]),
    "no such option": (["training.schedule=cos"], ["training.schedule=cos", "cosine"]),
    "no such option of a scheme": (
        ["pe=learned", "pe.beyond=x"],
        ["pe.beyond=x", "untrained", "interpolate"],
    ),
    "out of range": (["training.learning_rate=-1"], ["training.learning_rate=-1", "more than 0"]),
    "zero": (["training.batch_size=0"], ["training.batch_size=0", "1 or more"]),
    "range of an argument": (["pe.base=0.5"], ["base=0.5", "greater than 1"]),
    "range of a task's argument": (["task.vocab_size=1"], ["vocab_size=1", "at least 2"]),
    "heads": (["model.num_heads=5"], ["model.num_heads=5", "model.d_model=64", "allowed here: 1, 2, 4"]),
    "lengths the wrong way round": (
        ["training.min_length=30"],
        ["training.min_length=30", "training.max_length=20"],
    ),
    "no lengths": (["evaluation.lengths=[]"], ["evaluation.lengths", "at least one"]),
    "length zero": (["evaluation.lengths=[0,5]"], ["evaluation.lengths", "=0", "1 or more"]),
    "negative length": (["evaluation.lengths=[-5]"], ["evaluation.lengths", "=-5", "1 or more"]),
    "fractional length": (["evaluation.lengths=[5.5]"], ["evaluation.lengths", "=5.5", "whole number"]),
    "length as a word": (["evaluation.lengths=[five]"], ["evaluation.lengths", "=five", "whole number"]),
    "one length": (["evaluation.lengths=50"], ["evaluation.lengths=50", "list"]),
    "length the task cannot make": (
        ["task=precedence", "evaluation.lengths=[1]"],
        ["length 1", "shortest is 2"],
    ),
    "training lengths the task cannot make": (
        ["task=lag", "training.max_length=3"],
        ["training.max_length=3", "shortest is 4"],
    ),
    "table too short": (
        ["pe=learned", "pe.beyond=error"],
        ["beyond=error", "42 trained rows", "evaluation.lengths"],
    ),
    "offsets too few": (
        ["positions=random_offset", "positions.max_positions=9"],
        ["max_positions=9", "42"],
    ),
    "no such device": (["hardware.accelerator=gpu"], ["hardware.accelerator=gpu", "cpu or auto"]),
    "several devices": (["hardware.devices=2"], ["hardware.devices=2", "allowed: 1"]),
    "unwritable": (["results_dir=/proc/nowhere"], ["/proc/nowhere", "cannot"]),
    "a file in the way": ([f"results_dir={ROOT / 'LICENSE'}"], ["LICENSE", "cannot"]),
    "causal-only scheme in an encoder": (
        ["model=encoder", "pe=none", "pe._target_=tests.integration.outside.CausalOnly"],
        ["CausalOnly", "causal", "model=decoder"],
    ),
    "a list where one choice belongs": (
        ["pe=[none,learned]"],
        ["pe=[none,learned]", "one choice", "-m pe=none,learned"],
    ),
    "several without -m": (["pe=none,learned"], ["pe=none,learned", "-m"]),
    "no choice": (["pe=null"], ["pe=null", "sinusoidal"]),
    "empty choice": (["pe="], ["pe=", "sinusoidal"]),
    "no such module": (
        ["pe=none", "pe._target_=nowhere.X"],
        ["pe._target_=nowhere.X", "no module 'nowhere'"],
    ),
    "no such class": (
        ["pe=none", "pe._target_=pe_experiments.encodings.sinusoidal.Sinus"],
        ["Sinus", "Did you mean Sinusoidal"],
    ),
    "not a scheme": (["pe=none", f"pe._target_={HUGE}"], ["UniqueCopy", "PositionalEncoding"]),
    "no key=value": (["nonsense"], ["nonsense", "key=value"]),
    "no key": (["=3"], ["=3", "key=value"]),
    "no such flag": (["--foo"], ["--foo", "not a flag"]),
    "hidden argument": (["+pe._base=3"], ["pe._base", "base"]),
    "not a number": (["pe.base=nan"], ["base=nan", "finite"]),
    "too many threads": (["hardware.threads=1000000000000"], ["hardware.threads", "at most 1024"]),
    "a lag no input reaches": (["task=lag", "task.k=20000"], ["no input of such a length"]),
    "a study outside": (["study=.."], ["study=..", "no dot first"]),
    "a study in the way": (["study=runs"], ["study=runs", "reserved"]),
    "no such launcher": (["-m", "hydra/launcher=foo", "seed=0,1"], ["hydra/launcher=foo", "joblib"]),
    "a scheme that fails": (
        ["pe=none", "pe._target_=tests.integration.outside.Fails"],
        ["pe fails on a training batch", "first line second line"],
    ),
    "a scheme that loses a row": (
        ["pe=none", "pe._target_=tests.integration.outside.LosesARow"],
        ["hidden states are [batch, tokens] = (63, ", "expected (64, "],
    ),
    "a scheme that stops the program": (
        ["pe=none", "pe._target_=tests.integration.outside.Stops"],
        ["pe fails on a training batch", "SystemExit"],
    ),
    "not a label": (["label=a/b"], ["label=a/b", "letters"]),
    "negative seed": (["seed=-1"], ["seed=-1", "0 or more"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_leaves_nothing_behind(
    mistake: str, script: Script, results: Path
) -> None:
    arguments, words = MISTAKES[mistake]
    given = [] if any(a.startswith("results_dir=") for a in arguments) else [f"results_dir={results}"]
    outcome = script("train", *arguments, *given)
    assert outcome.code != 0
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1, outcome.err
    for word in words:
        assert word in outcome.err, outcome.err
    assert not results.exists()


@pytest.mark.parametrize(
    "mistake", ["range of an argument", "no such device", "table too short", "wrong type"]
)
def test_a_dry_run_finds_the_same_mistakes(mistake: str, script: Script, results: Path) -> None:
    outcome = script("train", *MISTAKES[mistake][0], f"results_dir={results}", "dry_run=true")
    assert outcome.code == 1
    assert not results.exists()


def test_train_prints_the_table_and_the_paths(script: Script, results: Path) -> None:
    outcome = script("train", *TINY, f"results_dir={results}")
    assert outcome.code == 0
    assert outcome.err == ""
    assert "<- longest training length" in outcome.out
    assert "0.25x" not in outcome.out
    (run,) = (results / "runs").iterdir()
    assert f"figure: {run}/extrapolation.png" in outcome.out
    assert f"run:    {run} (trained)" in outcome.out
    files = {path.name for path in run.iterdir()} - {".lock"}
    assert files == {
        "config.yaml", "environment.json", "metrics.csv", "extrapolation.csv", "extrapolation.png",
        "checkpoints", "result.json",
    }  # fmt: skip
    again = script("train", *TINY, f"results_dir={results}")
    assert "(found finished)" in again.out
    assert again.out.count("\n") == outcome.out.count("\n") - 1  # the same table, no progress line


def test_evaluate_measures_a_finished_run_otherwise(script: Script, results: Path) -> None:
    script("train", *TINY, f"results_dir={results}")
    (run,) = (results / "runs").iterdir()
    outcome = script("evaluate", f"run={run}", "evaluation.lengths=[5,50]", "evaluation.examples=10")
    assert outcome.code == 0, outcome.err
    assert "8.33333x" in outcome.out
    assert "evaluated without training" in outcome.out
    assert len(list((run / "evaluations").iterdir())) == 1
    for arguments, words in (
        (["evaluation.lengths=[5]"], ["run is missing"]),
        ([f"run={results}/nothing"], ["nothing", "no run"]),
        ([f"run={run}", "task=reverse"], ["task", "only pe, evaluation"]),
        ([f"run={run}", "training.steps=3"], ["training.steps", "only pe, evaluation"]),
        ([f"run={run}", "evaluation.length=[3]"], ["evaluation.length", "Did you mean lengths"]),
        ([f"run={run}", "evaluation.lengths=[]"], ["evaluation.lengths", "at least one"]),
        ([f"run={run}", "pe=learned"], ["pe=learned", "other parameters"]),
        ([f"run={run}", "pe=larned"], ["pe=larned", "Did you mean learned"]),
        ([f"run={run}", "evaluation.lengths=3,4"], ["evaluation.lengths=3,4", "'[3,4]'"]),
        (["+run=foo"], ["run=foo", "no run"]),
    ):
        failed = script("evaluate", *arguments)
        assert failed.code != 0
        assert failed.err.startswith("error: ")
        assert failed.err.count("\n") == 1
        for word in words:
            assert word in failed.err
    assert len(list((run / "evaluations").iterdir())) == 1


def test_damaged_files_are_one_sentence(script: Script, results: Path) -> None:
    script("train", *TINY, f"results_dir={results}")
    (run,) = (results / "runs").iterdir()
    (run / "result.json").write_text("{")
    outcome = script("train", *TINY, f"results_dir={results}")
    assert outcome.code == 1
    assert "result.json is damaged" in outcome.err
    assert outcome.err.count("\n") == 1
    shown = script("compare", f"results_dir={results}")
    assert "result.json is damaged" in shown.err


def test_a_sweep_runs_every_combination_and_compares(script: Script, results: Path) -> None:
    arguments = (*TINY, f"results_dir={results}", "-m", "pe=none,sinusoidal,learned", "seed=0,1")
    outcome = script("train", *arguments)
    assert outcome.code == 0, outcome.err
    assert len(list((results / "runs").iterdir())) == 6
    manifest = json.loads((results / "multirun" / "manifest.json").read_text())
    assert len(manifest["runs"]) == 6
    assert (results / "multirun" / "figures" / "copy-decoder.png").stat().st_size > 10_000
    table = (results / "multirun" / "table.csv").read_text().splitlines()
    assert len(table) == 4
    again = script("train", *arguments)
    assert "6 of 6 runs are finished already" in again.out
    assert again.out.count("\n") == 6  # nothing was compared anew


def test_a_failing_job_stops_no_other_and_is_named(script: Script, results: Path) -> None:
    outcome = script(
        "train", "-m", *TINY, f"results_dir={results}", "pe=learned", "pe.beyond=error,zero,clamp"
    )
    assert outcome.code == 1
    assert len(list((results / "runs").iterdir())) == 2
    assert outcome.err.startswith("error: pe: position")
    assert outcome.err.count("\n") == 1
    assert "alone: python scripts/train.py" in outcome.out
    assert "learned(beyond=zero)" in outcome.out


def test_a_sweep_of_mistakes_says_each_once_and_writes_nothing(script: Script, results: Path) -> None:
    outcome = script("train", "-m", f"results_dir={results}", "pe=none,learned", "training.steps=abc")
    assert outcome.code == 1
    assert outcome.err == "error: training.steps=abc: expected a whole number\n"
    assert outcome.out.count("alone: ") == 2
    assert not results.exists()
    dry = script("train", "-m", *TINY, f"results_dir={results}", "pe=none,learned", "dry_run=true")
    assert dry.code == 0
    assert dry.out.count("new ") == 2
    assert not results.exists()


def test_an_unnamed_sweep_compares_its_own_runs_at_all_their_lengths(script: Script, results: Path) -> None:
    script("train", "-m", *TINY, f"results_dir={results}", "pe=none,learned")
    outcome = script(
        "train", "-m", *TINY, f"results_dir={results}", "pe=learned,sinusoidal", "evaluation.lengths=[4,20]"
    )
    assert "none" not in outcome.out.partition("scheme")[2]
    assert {path.name for path in results.iterdir() if path.name[0] != "."} == {"runs", "multirun"}
    curves = pd.read_csv(results / "multirun" / "curves.csv")
    assert curves.groupby("label")["length"].apply(list).to_dict() == {
        "learned": [4, 6, 9, 20],
        "sinusoidal": [4, 20],
    }


def test_several_places_in_one_sweep_are_compared_apart(script: Script, tmp_path: Path) -> None:
    both = f"results_dir={tmp_path / 'a'},{tmp_path / 'b'}"
    outcome = script("train", "-m", *TINY, both, "study=s")
    assert outcome.code == 0, outcome.err
    assert all((tmp_path / place / "s" / "table.csv").exists() for place in "ab")


def test_dry_run_touches_nothing(script: Script, results: Path) -> None:
    outcome = script("train", *TINY, f"results_dir={results}", "dry_run=true")
    assert outcome.code == 0
    assert outcome.out.startswith("new: ")
    assert not results.exists()


def test_compare_names_what_it_leaves_out(script: Script, results: Path, tmp_path: Path) -> None:
    assert "nothing to compare" in script("compare", f"results_dir={results}").err or not results.exists()
    script("train", *TINY, f"results_dir={results}")
    (run,) = (results / "runs").iterdir()
    unfinished = results / "runs" / "unfinished"
    shutil.copytree(run, unfinished)
    (unfinished / "result.json").unlink()
    (results / "runs" / "foreign").mkdir()
    outcome = script("compare", f"results_dir={results}", f"out={tmp_path / 'out'}")
    assert outcome.code == 0, outcome.err
    assert "left out: unfinished: unfinished" in outcome.out
    assert "left out: foreign" in outcome.out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "runs.csv", "curves.csv", "pairs.csv", "table.csv", "table.md", "table.tex", "methods.md",
        "methods.tex",
        "references.bib", "report.md", "report.html", "figures",
    }  # fmt: skip
    assert "results_dir=None" in script("compare", "results_dir=null").err
    assert "Allowed: attention, baseline" in script("compare", "foo=1").err
    missing = script("compare", f"results_dir={results}", "study=nothing")
    assert missing.code == 1
    assert "study=nothing" in missing.err


def test_show_encoding_draws_and_audits(script: Script, results: Path) -> None:
    outcome = script("show_encoding", "schemes=[sinusoidal,learned,none]", f"results_dir={results}")
    assert outcome.code == 0, outcome.err
    assert "dog bites man" in outcome.out
    assert "linear in the offset, exact map" in outcome.out
    assert (results / "encodings" / "sinusoidal-learned-none.png").stat().st_size > 20_000
    other = script("show_encoding", "pe=learned", "pe.beyond=error", f"results_dir={results}")
    assert other.code == 0, other.err
    assert (results / "encodings" / "learned_beyond=error.png").exists()
    concatenated = script("show_encoding", "pe.combine=concat", "pe.width=100", f"results_dir={results}")
    assert concatenated.code == 0, concatenated.err
    rotary = script("show_encoding", "schemes=[nope,rope]", f"results_dir={results}")
    assert "rope, head_dim 64" in rotary.out
    causal = script("show_encoding", "pe=none", "pe._target_=tests.integration.outside.CausalOnly")
    assert "causal only" in causal.out
    assert "d_model=abc" in script("show_encoding", "d_model=abc").err
    wrong = script("show_encoding", "schemes=[sine]", f"results_dir={results}")
    assert "Did you mean" in wrong.err
    assert wrong.code == 1


@pytest.mark.parametrize("name", ["train", "evaluate", "compare", "show_encoding"])
def test_help_is_short_and_useful(name: str, script: Script) -> None:
    outcome = script(name, "--help")
    assert outcome.code == 0
    assert f"python scripts/{name}.py" in outcome.out


def test_no_library_warns_on_the_way(tmp_path: Path) -> None:
    """In a process of its own, with Python's and the libraries' default filters."""
    command = [
        sys.executable,
        str(ROOT / "scripts" / "train.py"),
        *TINY,
        "logger.mode=offline",
        "results_dir=r",
    ]
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("WANDB", "PYTHONWARN"))
    }
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "warn" not in done.stdout.lower()
    assert {path.name for path in tmp_path.iterdir()} <= {"r", "wandb_home"}


def readme_commands() -> list[str]:
    """The train.py commands of the README, without what is said beside them."""
    lines = (ROOT / "README.md").read_text().splitlines()
    commands = [
        line.partition("scripts/train.py ")[2] for line in lines if "python scripts/train.py " in line
    ]
    return [re.split(r"\s{3,}|\s#|`", command)[0] for command in commands if command]


@pytest.mark.parametrize("command", readme_commands())
def test_commands_of_the_readme_can_be_carried_out(command: str, script: Script, tmp_path: Path) -> None:
    if command.startswith("--help"):
        return
    target = "tests.integration.outside.Recency"
    arguments = [argument.replace("mine.Recency", target) for argument in shlex.split(command)]
    outcome = script(
        "train", *arguments, f"results_dir={tmp_path / 'r'}", "dry_run=true", "hydra/launcher=basic"
    )
    assert outcome.code == 0, outcome.err
    assert "new" in outcome.out


def test_the_scheme_of_the_readme_is_the_one_tested() -> None:
    shown = (ROOT / "README.md").read_text().partition("class Recency")[2].partition("```")[0].strip()
    tested = (ROOT / "tests" / "integration" / "outside.py").read_text().partition("class Recency")[2].strip()
    assert tested == shown


def test_a_closed_pipe_ends_the_output_and_not_the_run(results: Path) -> None:
    command = (
        f"{sys.executable} {ROOT / 'scripts' / 'train.py'} {shlex.join(TINY)} results_dir={results} | true"
    )
    subprocess.run(command, shell=True, check=True, executable="/bin/bash")
    (run,) = (results / "runs").iterdir()
    assert json.loads((run / "result.json").read_text())["status"] == "completed"
