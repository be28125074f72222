"""The library for matrix products follows from the processor."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from pe_experiments.terminal.errors import UserError
from pe_experiments.training import matmul
from pe_experiments.training.matmul import SMALL, current_backend, select

AMD = {"vendor_id": "AuthenticAMD", "flags": "avx2 avx512_bf16"}
INTEL = {"vendor_id": "GenuineIntel", "flags": "avx512f"}


WITH_AMX = {"vendor_id": "GenuineIntel", "flags": "avx512f amx_bf16 amx_tile"}
AMD_WITH_AMX = {"vendor_id": "AuthenticAMD", "flags": "avx512f amx_bf16"}


@pytest.fixture(autouse=True)
def _restore_backend() -> Iterator[None]:
    before = current_backend()
    yield
    matmul.set_backend(before)


@pytest.mark.parametrize(
    ("cpu", "choice", "size", "backend"),
    [
        (AMD, "auto", SMALL, "onednn"),
        (AMD, "auto", SMALL - 1, "default"),
        (AMD, "default", SMALL, "default"),
        (AMD_WITH_AMX, "auto", SMALL, "default"),
        (INTEL, "auto", SMALL, "default"),
        (INTEL, "onednn", 1, "onednn"),
        ({}, "auto", SMALL, "default"),
    ],
)
def test_the_processor_decides(
    cpu: dict[str, str], choice: str, size: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "_SETTING", SimpleNamespace(fp32_precision="ieee"))
    monkeypatch.setattr(matmul, "processor", lambda: cpu)
    assert select(choice, size) == backend == current_backend()


def test_onednn_is_refused_where_it_computes_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "processor", lambda: WITH_AMX)
    with pytest.raises(UserError, match=r"trainer\.matmul=onednn.*bfloat16; allowed here: auto, default"):
        select("onednn", 1)


def error_of_products() -> float:
    """Return the largest error of float32 products of a small transformer, relative to their magnitudes."""
    generator = torch.Generator().manual_seed(0)
    errors = []
    for m, k, n in ((1280, 64, 256), (1280, 256, 64), (64, 1280, 256), (256, 40, 64), (1000, 64, 14)):
        a, b = torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)
        for left, right in ((a, b), (a, b.T.contiguous().T), (a.T.contiguous().T, b)):
            error = (left @ right).double() - left.double() @ right.double()
            errors.append(error.abs().max() / (left.double().abs() @ right.double().abs()).max())
    return float(torch.stack(errors).max())


def test_the_choice_for_this_machine_is_as_exact_as_pytorchs_default() -> None:
    matmul.set_backend("default")
    exact = error_of_products()
    select("auto", SMALL)
    assert 0 < error_of_products() <= 4 * exact  # with bfloat16 it is about 10,000 times
