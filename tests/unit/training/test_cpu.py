"""The library for matrix products follows from the processor."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from pe_experiments.terminal.errors import UserError
from pe_experiments.training import cpu as library
from pe_experiments.training.cpu import SMALL, current_backend, select

AMD = {"vendor_id": "AuthenticAMD", "flags": "avx2 avx512_bf16"}
INTEL = {"vendor_id": "GenuineIntel", "flags": "avx512f"}


WITH_AMX = {"vendor_id": "GenuineIntel", "flags": "avx512f amx_bf16 amx_tile"}
AMD_WITH_AMX = {"vendor_id": "AuthenticAMD", "flags": "avx512f amx_bf16"}


@pytest.fixture(autouse=True)
def _restore_backend() -> Iterator[None]:
    before = current_backend()
    yield
    library.set_backend(before)


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
    monkeypatch.setattr(library, "_SETTING", SimpleNamespace(fp32_precision="ieee"))
    monkeypatch.setattr(library, "processor", lambda: cpu)
    assert select(choice, size) == backend == current_backend()


def test_onednn_is_refused_where_it_computes_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "processor", lambda: WITH_AMX)
    with pytest.raises(UserError, match=r"trainer\.matmul=onednn.*bfloat16; allowed here: auto, default"):
        select("onednn", 1)
