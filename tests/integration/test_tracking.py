"""Loggers receive the whole run: W&B's, TensorBoard's, MLflow's and Lightning's files are read back."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.proto import wandb_internal_pb2

from pe_experiments.evaluation.metrics import METRICS
from pe_experiments.run import run_experiment
from pe_experiments.store import tracking
from pe_experiments.store.csv_files import read_csv
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.tracking import upload_command
from pe_experiments.terminal.errors import UserError
from tests.conftest import Tiny
from tests.interrupted import StopAt
from tests.processes import wait_for

pytestmark = pytest.mark.slow
MEASURED = [column for metric in METRICS for column in metric.columns]
BLOCK, HEADER = 32_768, 7  # LevelDB's log: blocks of fragments, each with crc32, length and type


def records(path: Path) -> Iterator[Any]:
    """The protobuf records of a ``.wandb`` file."""
    data = path.read_bytes()
    offset = HEADER
    whole = b""
    while offset + HEADER <= len(data):
        room = BLOCK - offset % BLOCK
        if room < HEADER:
            offset += room
            continue
        _, length, kind = struct.unpack("<IHB", data[offset : offset + HEADER])
        if offset + HEADER + length > len(data):
            return  # wandb's own process is still writing it
        whole += data[offset + HEADER : offset + HEADER + length]
        offset += HEADER + length
        if kind in (1, 4):  # a whole record, or its last fragment
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def mirror(directory: RunDirectory) -> tuple[list[dict[str, Any]], dict[str, Any], list[Any]]:
    """History rows, summary and all records of the one offline run of a directory."""
    (path,) = directory.path.glob("wandb/offline-run-*/run-*.wandb")
    # wandb's own process writes it
    wait_for(lambda: any(record.HasField("exit") for record in records(path)))
    written = list(records(path))
    history = [values_of(record.history.item) for record in written if record.HasField("history")]
    summary: dict[str, Any] = {}
    for record in written:
        summary |= values_of(record.summary.update)
    return history, summary, written


def values_of(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def run_record(directory: RunDirectory) -> Any:
    """The first record that describes the run: its name, group, tags and configuration."""
    return next(record.run for record in mirror(directory)[2] if record.HasField("run"))


def check_mirror(directory: RunDirectory) -> None:
    history, summary, written = mirror(directory)
    curve = [row for row in history if "extrapolation/length" in row]
    stored = read_csv(directory.curve)
    assert len(curve) == len(stored) > 0
    for row, expected in zip(curve, stored, strict=True):
        panels = {key.removeprefix("extrapolation/") for key in row if not key.startswith("_")}
        assert panels == {"length", *MEASURED}
        for key in panels:
            assert float(row[f"extrapolation/{key}"]) == float(expected[key])
    steps = [row["training/step"] for row in history if "training/step" in row]
    assert steps == [int(row["step"]) for row in read_csv(directory.metrics)]
    result = directory.read_result()
    assert result is not None
    assert summary["exact_match_extrapolation"] == pytest.approx(result["exact_match_extrapolation"])
    # The summary has no value of a single length: wandb would keep that of the longest.
    shown = {key.split("/")[1] for key in summary if key.startswith(("extrapolation/", "text/"))}
    assert shown == {"figure", "table"}
    assert (summary["parameters"], summary["encoding_parameters"]) == (7040, 0)
    assert any(row.get("extrapolation/figure/_type") == "images/separated" for row in history)
    metrics = {record.metric.name: record.metric for record in written if record.HasField("metric")}
    for name in ("exact_match", "token_accuracy"):
        assert metrics[f"extrapolation/{name}"].step_metric == "extrapolation/length"
        assert metrics[f"extrapolation/{name}"].summary.none


def test_the_offline_file_holds_the_whole_run(tiny: Tiny) -> None:
    result = run_experiment(
        tiny("logger=wandb", "logger.wandb.tags=[a]", "study=s", "pe=rope", "pe.base=500").config
    )
    check_mirror(result.directory)
    assert str(upload_command(result.directory)).startswith("wandb sync ")
    record = run_record(result.directory)
    assert record.run_id == result.directory.name
    assert record.display_name == "rope(base=500), copy, seed 0"
    assert re.fullmatch(r"s: rope\(base=500\), copy \[[0-9a-f]{4}\]", record.run_group)
    last = [record.run for record in mirror(result.directory)[2] if record.HasField("run")][-1]
    assert list(last.tags) == ["a", "rope(base=500)", "copy", "decoder"]


def test_the_offline_file_holds_the_curves_of_the_training(tiny: Tiny) -> None:
    run = run_experiment(tiny("logger=wandb", "evaluation.every=5").config).directory
    history, _, written = mirror(run)
    logged = {row["training/step"]: row for row in history if "during_training/loss/length_9" in row}
    assert list(logged) == [5, 10]
    stored = read_csv(run.by_step)
    assert len(stored) == 6
    for row in stored:
        for metric in ("exact_match", "token_accuracy", "loss"):
            values = logged[int(row["step"])]
            assert values[f"during_training/{metric}/length_{row['length']}"] == float(row[metric])
    metrics = {record.metric.name: record.metric for record in written if record.HasField("metric")}
    assert metrics["during_training/exact_match/length_9"].step_metric == "training/step"


def test_an_evaluation_is_a_separate_wandb_run(tiny: Tiny) -> None:
    trained = run_experiment(tiny("logger=wandb").config).directory
    evaluated = run_experiment(tiny("logger=wandb", "evaluation.lengths=[5,12]").config).directory
    assert len(list(trained.path.glob("wandb/offline-run-*"))) == 1
    history, _, _ = mirror(evaluated)
    assert [row["extrapolation/length"] for row in history if "extrapolation/length" in row] == [5, 12]
    record = run_record(evaluated)
    assert record.job_type == "evaluation"
    assert record.display_name == "sinusoidal, copy, seed 0, evaluated again"
    assert record.run_group == run_record(trained).run_group


def test_a_wandb_group_holds_the_runs_that_differ_only_in_the_seed(tiny: Tiny) -> None:
    """Weights & Biases shows the mean of a group, which must not mix training lengths."""
    first, second, other = (
        run_record(run_experiment(tiny("logger=wandb", key).config).directory).run_group
        for key in ("seed=0", "seed=1", "training.max_length=5")
    )
    assert first == second != other


def scalars_of(directory: RunDirectory) -> dict[str, list[tuple[int, float]]]:
    """Steps and values by name, from the event files of TensorBoard."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(directory.path / "tensorboard"), {"scalars": 0, "images": 0})
    events.Reload()
    assert events.Tags()["images"] == ["extrapolation/figure"]
    names = events.Tags()["scalars"]
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in names}


def metrics_of(directory: RunDirectory) -> dict[str, list[tuple[int, float]]]:
    """Steps and values by name, from the one run of that name in the MLflow store."""
    client = pytest.importorskip("mlflow.tracking").MlflowClient(
        f"sqlite:///{directory.path.parents[1] / 'mlflow.db'}"
    )
    experiment = client.get_experiment_by_name("pe_experiments")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == (directory.name, "FINISHED")
    assert float(run.data.params["pe/base"]) == 500
    artifacts = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert artifacts == {"extrapolation.png", "extrapolation"}  # the figure; the folder of the table
    return {
        name: [(entry.step, entry.value) for entry in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }


def csv_of(directory: RunDirectory) -> dict[str, list[tuple[int, float]]]:
    """Steps and values by name, from the files of Lightning's CSVLogger."""
    values: dict[str, list[tuple[int, float]]] = {}
    for row in read_csv(directory.path / "csv" / "metrics.csv"):
        for name, text in row.items():
            if text and name != "step":
                value = float({"True": 1, "False": 0}.get(text, text))
                values.setdefault(name, []).append((int(row["step"]), value))
    return values


READ = {"tensorboard": scalars_of, "mlflow": metrics_of, "csv": csv_of}


@pytest.mark.filterwarnings("ignore")  # of tensorboard and mlflow
@pytest.mark.usefixtures("checkpoint_every_step")
@pytest.mark.parametrize("names", [["mlflow"], ["wandb", "csv", "tensorboard"]])
def test_every_logger_has_the_same_metrics_of_a_resumed_run(names: list[str], tiny: Tiny) -> None:
    options = (f"logger=[{','.join(names)}]", "training.steps=30", "pe=rope", "pe.base=500")
    with pytest.raises(KeyboardInterrupt):
        run_experiment(tiny(*options).config, StopAt(25, KeyboardInterrupt()))
    result = run_experiment(tiny(*options).config)
    assert result.result["resumed_from"] == 24
    for name in names:
        if name == "wandb":
            check_mirror(result.directory)
            continue
        values = READ[name](result.directory)
        for file, axis, panel, column in (
            (result.directory.curve, "length", "extrapolation/exact_match", "exact_match"),
            (result.directory.metrics, "step", "training/loss", "loss"),
        ):
            expected = [(int(row[axis]), pytest.approx(float(row[column]))) for row in read_csv(file)]
            assert values[panel] == expected
        for key in ("exact_match_extrapolation", "parameters"):
            ((_, value),) = values[key]
            assert value == pytest.approx(result.result[key])


def test_callbacks_may_use_the_loggers(tiny: Tiny) -> None:
    rates = "{_target_: pytorch_lightning.callbacks.LearningRateMonitor, logging_interval: step}"
    result = run_experiment(tiny("logger=csv", f"trainer.callbacks=[{rates}]").config)
    assert result.status == "completed", result.result
    assert any("lr-" in name for name in csv_of(result.directory))


@pytest.mark.filterwarnings("ignore")  # of mlflow
def test_runs_of_others_on_a_server_stay(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # of MLflow's artifacts
    client = pytest.importorskip("mlflow.tracking").MlflowClient(server := f"sqlite:///{tmp_path}/shared.db")
    address = f"logger.mlflow.tracking_uri='{server}'"
    for folder in ("mine", "others", "mine"):
        options = (address, f"results_dir={tmp_path / folder}", "rerun=true")
        assert run_experiment(tiny("logger=mlflow", *options).config).status == "completed"
    (experiment,) = [found for found in client.search_experiments() if found.name == "pe_experiments"]
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(Path(run.data.tags["results_dir"]).name for run in runs) == ["mine", "others"]


def test_a_logger_that_cannot_start_ends_those_before_it(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next run of a sweep's process would log to the W&B run of this one."""

    options = ("logger=[wandb,csv]", "logger.csv._target_=pytorch_lightning.loggers.CSVLoger")
    with pytest.raises(UserError, match=r"logger=csv could not start .*CSVLoger"):
        run_experiment(tiny(*options).config)
    assert wandb.run is None


def test_a_logger_that_is_not_installed_is_one_sentence(
    tiny: Tiny, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda package: None)
    brings = r'logger=mlflow: mlflow is not installed; install it with pip install .* "\.\[mlflow\]"'
    with pytest.raises(UserError, match=brings):
        run_experiment(tiny("logger=mlflow").config)
    assert not list((results / "runs").iterdir())
