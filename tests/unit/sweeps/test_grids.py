"""Test which runs a sweep of several grids has, and which of them an option on the command line selects."""

from __future__ import annotations

import pytest

from hydra_plugins.pe_experiments.sweeps import grid_runs

PARAMS = {"seed": "0,1"}
GRIDS = [
    {"task": "copy,lag", "pe": "none,rope"},
    {"task": "copy", "pe": "rope", "positions": "random_subset"},
    {"task": "lag", "pe": "fox", "pe.initial_bias": 4.0, "seed": 2},
]


def runs(*typed: str) -> set[str]:
    return {" ".join(sorted(run)) for run in grid_runs(PARAMS, GRIDS, typed)}


def test_a_sweep_has_every_combination_of_each_grid() -> None:
    assert len(grid_runs(PARAMS, GRIDS)) == len(runs()) == 2 * (4 + 1) + 1
    assert "pe.initial_bias=4.0 pe=fox seed=2 task=lag" in runs()
    assert grid_runs(PARAMS, []) == [["seed=0"], ["seed=1"]]


@pytest.mark.parametrize(
    ("typed", "number"),
    [
        (("pe=rope",), 2 * (2 + 1)),  # of the first grid and the second
        (("pe=fox",), 1),
        (("pe=rope", "task=lag"), 2),
        (("pe=alibi",), 2 * 2),  # in no grid, so it takes the place of the first
        (("training.steps=9",), 11),
        (("seed=0",), 4 + 1),
        (("+pe.base=2",), 11),
    ],
)
def test_what_is_typed_selects_or_replaces(typed: tuple[str, ...], number: int) -> None:
    chosen = runs(*typed)
    assert len(chosen) == number
    assert all(text in run for run in chosen for text in typed)


def test_grids_do_not_repeat_a_run() -> None:
    grids = [{"task": "copy", "pe": "rope"}, {"pe": "rope", "task": "copy,lag"}]
    assert len(grid_runs({}, grids)) == 2
