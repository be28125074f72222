"""The scripts as a user types them: what they print, and every mistake as one sentence."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from pe_experiments.configuration.choices import choices_of, groups_of
from pe_experiments.store.csv_files import read_csv
from pe_experiments.store.requested import Run
from tests.conftest import ROOT, TINY, TRAIN, Script, Tiny, assert_one_sentence

# what is typed after train.py -> what the error contains: key, value, what is allowed
MISTAKES = {
    "model.num_layers=1000 model.d_model=65536": ["too little memory", "num_layers"],
    "hydra.launcher.n_jobs=2": ["hydra.launcher.n_jobs is not a setting", "hydra.launcher.jobs=N"],
    "-m hydra/launcher=dask": ["hydra/launcher=dask is not a choice", "hydra-dask-launcher"],
    "pe._target_=mine": ["pe._target_=mine: expected the module and the name", "my_module.NAME"],
    "~label": ["'label' does not exist"],
    "model.num_heads=5": ["model.num_heads=5", "model.d_model=64", "allowed here: 1, 2, 4"],
    "task=precedence evaluation.lengths=[1]": ["length 1", "shortest is 2"],
    "results_dir=/proc/nowhere": ["/proc/nowhere", "cannot"],
    "pe=" + "x" * 5000: ["pe=xxx", "at most 1000 characters"],
    "-x seed=1": ["-x is not a flag of this command", "key=value"],
    "=3": ["'=3' is not key=value"],
    "pe=rope pe=alibi": ["pe=rope pe=alibi: pe is given twice", "-m pe=rope,alibi"],
    "study=runs": ["study=runs", "reserved"],
    "pe=tests.integration.user_encodings.Fails": ["pe fails on a training batch", "first line second line"],
    "pe=tests.integration.user_encodings.Exits": ["pe fails on a training batch", "SystemExit: 0"],
    "-m hydra.launcher.jobs_per_device=2 trainer.accelerator=cpu": ["jobs_per_device=2", "no GPU"],
    "-m trainer=ddp trainer.accelerator=cpu seed=0,1": [
        "trainer.devices=2: a sweep trains each run on one device"
    ],
    "hydra.run.dir=mine": ["has no effect here without"],
    "-m hydra.sweep.dir=mine": ["has no effect here without"],
    "hydra.verbose=true": ["has no effect here without"],
    "-m hydra/launcher=ray hydra.launcher.jobs=2 hydra.launcher.address=::1": ["launcher.jobs=2", "address"],
}


@pytest.mark.slow
@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_one_sentence_and_leaves_nothing_behind(
    typed: str, script: Script, results: Path
) -> None:
    words = [] if "results_dir=" in typed else [f"results_dir={results}"]
    outcome = script("train", *typed.split(), *words)
    assert_one_sentence(outcome, *MISTAKES[typed])
    assert len(outcome.err) < 400, outcome.err
    assert not results.exists()


# the script and what is typed after it -> what the error contains
MISTAKES_IN_OTHER_SCRIPTS = {
    "check_encoding pe=rope against=rope against_arguments=5": ["against_arguments=5", "names with values"],
    "check_encoding pe._target_=tests.conftest.Nothing": ["tests.conftest has no PositionalEncoding"],
    "show_encoding out=results/runs/x": ["out=results/runs/x", "outside"],
    "show_encoding -m pe=rope,alibi": ["-m is for train.py"],
    "show_encoding d_model=10000000": ["d_model=10000000", "at most 4096"],
    "results check=true reproduce=text": ["check=true and reproduce", "cannot be combined"],
    "evaluate evaluation.lengths=[5]": ["run is missing"],
    "compare foo": ["'foo' is not key=value; --help lists the options"],
    "evaluate +run=foo": ["run=foo", "no run"],
    "evaluate run=a/b results_dir=c": ["run=a/b is a path", "results_dir"],
}


@pytest.mark.slow
@pytest.mark.parametrize("command", MISTAKES_IN_OTHER_SCRIPTS)
def test_a_mistake_in_another_script_is_one_sentence(command: str, script: Script) -> None:
    outcome = script(*command.split())
    assert_one_sentence(outcome, *MISTAKES_IN_OTHER_SCRIPTS[command])
    assert outcome.out == ""
    assert "unexpected" not in outcome.err


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
        "index.csv", "checkpoints", "result.json",
    }  # fmt: skip
    again = script("train", *TINY, f"results_dir={results}")
    assert "(found finished)" in again.out
    assert again.out.count("\n") == outcome.out.count("\n") - 1  # the same table, no progress line


EVALUATION_MISTAKES = {
    "model=encoder": ["model is not a setting", "Allowed: pe, task, evaluation"],
    "task=parity": ["task=parity", "symbols are 4", "trained on 10"],
    "task=lag": ["task=lag", "format is aligned", "trained on causal"],
    "+task.k=2": ["task.k is not an argument of Copy"],
    "task=sort task.vocab_size=10 evaluation.lengths=[4,11]": ["length 11", "longest is 10"],
    "evaluation.decoding=beam": ["evaluation.decoding=beam", "teacher_forcing or greedy"],
    "pe=learned": ["pe=learned", "different parameters"],
    "evaluation.lengths=3,4": ["evaluation.lengths=3,4", "'evaluation.lengths=[3,4]'"],
}


def test_a_finished_run_says_that_nothing_is_logged(script: Script, results: Path) -> None:
    arguments = ("train", *TINY, f"results_dir={results}")
    script(*arguments).succeeded()
    again = script(*arguments, "logger=csv").out
    assert "it has finished before, so nothing is logged to csv; rerun=true trains again" in again
    assert "nothing is logged" not in script(*arguments).out
    (environment,) = results.glob("runs/*/environment.json")
    environment.write_text(json.dumps(json.loads(environment.read_text()) | {"commit": "a" * 40}))
    assert f"trained with commit {'a' * 40} instead of" in script(*arguments).out


@pytest.mark.slow
def test_a_sweep_says_at_once_which_runs_cannot_start(script: Script, results: Path) -> None:
    sizes = "training.batch_size=0,4"
    done = script("train", "-m", *TINY, sizes, "hydra.launcher.jobs=1", f"results_dir={results}")
    assert done.code == 1
    assert "1 of 2 runs cannot start: training.batch_size=0" in done.out


def test_nope_is_understood_in_an_own_file(script: Script, results: Path, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "x.yaml").write_text("# @package _global_\ndefaults: [{override /pe: nope}]\n")
    typed = ("--config-dir", str(tmp_path), "experiment=x", *TINY, "dry_run=true", f"results_dir={results}")
    assert "copy-decoder-none-s0" in script("train", *typed).succeeded()


@pytest.mark.slow
def test_evaluate_measures_a_run_at_other_lengths_and_on_another_task(script: Script, results: Path) -> None:
    """``task=`` with the trained task returns the run itself."""
    script("train", *TINY, "evaluation.lengths=null", f"results_dir={results}").succeeded()
    (run,) = (results / "runs").iterdir()
    evaluate = ("evaluate", f"run={run}")
    lengths = (*evaluate, "evaluation.lengths=[5,50]", "evaluation.examples=10")
    out = script(*lengths).succeeded()
    assert "8.33x" in out
    assert "evaluated without training" in out
    script(*lengths, "~logger").succeeded()
    for typed, words in EVALUATION_MISTAKES.items():
        assert_one_sentence(script(*evaluate, *typed.split()), *words)
    (first,) = (run / "evaluations").iterdir()
    task = (*evaluate, "task=modular_arithmetic", "task.modulus=7", "evaluation.decoding=greedy")
    script(*task).succeeded()
    assert "found finished" in script(*task).out
    (folder,) = set((run / "evaluations").iterdir()) - {first}
    result = json.loads((folder / "result.json").read_text())
    assert (result["task"], result["evaluated_on"]) == ("copy", "modular_arithmetic(modulus=7)")
    assert yaml.safe_load((folder / "config.yaml").read_text())["derived"]["train_lengths"] == [*range(1, 7)]
    rows = read_csv(folder / "extrapolation.csv")
    assert {row["split"] for row in rows} == {"other_task"}
    assert (rows[-1]["length"], rows[0]["loss"]) == ("48", "")  # greedy decoding has no loss
    assert f"{run} (found finished)" in script(*evaluate, "task=copy").out


@pytest.mark.slow
def test_a_sweep_runs_every_combination_and_compares_only_its_runs(script: Script, results: Path) -> None:
    arguments = ("-m", *TINY, f"results_dir={results}", "hydra.launcher.jobs=1")
    script("train", *arguments, "pe=none,learned", "seed=0,1", "hydra.sweeper.max_batch_size=3").succeeded()
    assert len(list((results / "runs").iterdir())) == 4
    manifest = json.loads((results / "multirun" / "manifest.json").read_text())
    assert len(manifest["runs"]) == 4
    assert (results / "multirun" / "figures" / "copy-decoder.png").stat().st_size > 10_000
    assert len((results / "multirun" / "table.csv").read_text().splitlines()) == 3
    second = script("train", *arguments, "pe=learned,sinusoidal", "evaluation.lengths=[4,20]")
    assert "none" not in second.out.partition("encoding")[2]
    assert {path.name for path in results.iterdir() if path.name[0] != "."} == {"runs", "multirun"}
    curves = pd.read_csv(results / "multirun" / "curves.csv")
    assert curves.groupby("label")["length"].apply(list).to_dict() == {
        "learned": [4, 6, 9, 20],  # at all the lengths of its run
        "sinusoidal": [4, 20],
    }


@pytest.mark.parametrize("many", [[], ["-m"]])
def test_a_dry_run_says_that_another_process_has_the_run(
    many: list[str], script: Script, results: Path, tiny: Tiny
) -> None:
    run = Run(tiny().config).directory
    run.path.mkdir(parents=True)
    command = ("train", *many, *TINY, f"results_dir={results}", "dry_run=true")
    with run.lock():
        assert "(in use by another process)" in script(*command).out
    assert "in use" not in script(*command).out


def test_a_dry_run_prints_the_configuration_and_writes_nothing(script: Script, results: Path) -> None:
    out = script("train", *TINY, f"results_dir={results}", "dry_run=true").succeeded()
    assert "\nnew: " in out
    assert yaml.safe_load(out.partition("\n\n")[0])["training"]["steps"] == 12
    assert not results.exists()


def test_a_page_of_verdicts_is_not_overwritten_by_a_comparison(script: Script, results: Path) -> None:
    (results / "versus" / "X").mkdir(parents=True)
    (results / "versus" / "X" / "verdicts.csv").touch()
    outcome = script("compare", "study=versus/X", f"results_dir={results}")
    assert_one_sentence(outcome, "holds a page of verdicts; add out=FOLDER")


@pytest.mark.slow
def test_show_encoding_draws_and_audits(script: Script, results: Path) -> None:
    out = script("show_encoding", "encodings=[Sinusoidal,learned,NoPE]", f"results_dir={results}").succeeded()
    assert "no: bad past the training lengths" in " ".join(out.split())
    assert (results / "encodings" / "explore-sinusoidal-learned-none.html").exists()


COMMANDS = sorted({path.stem for path in (ROOT / "scripts").glob("*.py")} - {"catalogue"})


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_short_and_useful(name: str, script: Script) -> None:
    out = script(name, "--help").succeeded()
    assert f"python scripts/{name}.py" in out
    for group in groups_of("config" if name == "train" else name):
        for choice in set(choices_of(group)) - {"default"}:
            described = re.search(rf"^  {choice} +\S", out, re.MULTILINE)
            assert described, f"configs/{group}/{choice}.yaml does not start with a comment"


def test_config_dir_adds_a_users_file(script: Script, tmp_path: Path) -> None:
    (tmp_path / "my configs" / "pe").mkdir(parents=True)
    (tmp_path / "my configs" / "pe" / "mine.yaml").write_text(
        "_target_: tests.integration.user_encodings.Recency\nslope: 0.3\n"
    )
    shared = ("--config-dir", str(tmp_path / "my configs"), "dry_run=true", f"results_dir={tmp_path / 'r'}")
    assert "Recency_slope_0.3-s0" in script("train", *shared, "pe=mine").out
    swept = script("train", *shared, "pe=mine", "pe.slope=0.3,0.4", "seed=1", "-m")
    assert "Recency_slope_0.4-s1" in swept.out
    assert "pe=mine is not a choice" in script("train", *shared[2:], "pe=mine").err
    assert "x' not found" in script("train", "--config-dir", str(tmp_path / "x"), "pe=mine").err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "mine.yaml, line "),  # the line depends on the parser
        ("defaults:\n- nothing\n", "pe/nothing"),
        ("defaults:\n- mine\n", "is circular"),
    ],
)
def test_a_mistake_in_a_users_file_is_one_sentence(
    text: str, words: str, script: Script, tmp_path: Path
) -> None:
    (tmp_path / "pe").mkdir()
    (tmp_path / "pe" / "mine.yaml").write_text(text)
    outcome = script("train", "--config-dir", str(tmp_path), "pe=mine", "dry_run=true")
    assert_one_sentence(outcome, words)
    assert "unexpected" not in outcome.err


@pytest.mark.slow
def test_no_library_warns_on_the_way(tmp_path: Path) -> None:
    """In a process of its own, with Python's and the libraries' default filters."""
    command = [sys.executable, TRAIN, *TINY, "logger=wandb", "results_dir=r"]
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("WANDB", "PYTHONWARN"))
    }
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "warn" not in done.stdout.lower()
    assert {path.name for path in tmp_path.iterdir()} <= {"r", "wandb_home"}


def readme_commands() -> list[str]:
    """The train.py commands of the README but those that need a run, without comments."""
    commands = re.findall(r"python scripts/train\.py (.+)", (ROOT / "README.md").read_text())
    without_comments = [re.split(r"\s{3,}|\s#|`", command)[0] for command in commands]
    return [
        command
        for command in without_comments
        if command != "--help" and "NAME" not in command and "FOLDER" not in command
    ]


@pytest.mark.slow
@pytest.mark.parametrize("command", readme_commands())
def test_commands_of_the_readme_work(
    command: str, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "mine.Recency" not in command:  # test_configs tries every shipped choice, at a smaller size
        monkeypatch.setattr("pe_experiments.run.try_out", lambda run: None)
    target = "tests.integration.user_encodings.Recency"
    arguments = [argument.replace("mine.Recency", target) for argument in shlex.split(command)]
    if "versus" in command:
        arguments += ["experiment=bank/s0", "task=kth"]
    elif "seed=" not in command:
        arguments.append("seed=0")
    out = script("train", *arguments, f"results_dir={tmp_path / 'r'}", "dry_run=true").succeeded()
    assert "new" in out


def test_the_encoding_of_the_readme_is_the_one_tested() -> None:
    shown, tested = (
        (ROOT / name).read_text().partition("class Recency")[2].partition("```")[0].strip()
        for name in ("README.md", "tests/integration/user_encodings.py")
    )
    assert tested == shown


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    words = shlex.join([sys.executable, str(TRAIN), "--help"])
    command = ["bash", "-c", f"set -o pipefail; {words} | true"]
    ended = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
