"""Every shipped encoding trains and evaluates on a device without float64, such as Apple's GPU.

The tests simulate the device. Its tensors report the device "meta" and hold their values on the CPU. An
operation raises if it would create a float64 tensor there or mixes these tensors with tensors of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from pe_experiments.configuration.choices import shipped
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.data.batches import TrainingStream
from pe_experiments.encodings import tensors
from pe_experiments.evaluation.curve import extrapolation_curve
from pe_experiments.evaluation.text import evaluate_text
from pe_experiments.terminal.errors import UserError
from pe_experiments.training.device import prepare_device
from pe_experiments.training.loop import batch_loss
from tests.conftest import Tiny

DEVICE = torch.device("meta")


class OnDevice(Tensor):
    """A tensor of the simulated device."""

    held: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> OnDevice:
        if values.dtype in (torch.float64, torch.complex128):
            raise TypeError("the device has no float64")
        tensor = Tensor._make_wrapper_subclass(
            cls, values.size(), values.stride(), values.storage_offset(), dtype=values.dtype, device=DEVICE
        )
        tensor.held = values
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        with Device():
            return func(*args, **(kwargs or {}))


class Device(TorchDispatchMode):
    """Runs the operations of the simulated device on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        reads_device = any(isinstance(x, OnDevice) for x in tensors)
        copies = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        if reads_device and not copies and any(x.dim() and not isinstance(x, OnDevice) for x in tensors):
            raise RuntimeError(f"{func} mixes tensors of the device and of the CPU")
        on_device = reads_device
        if kwargs.get("device") is not None:
            on_device = torch.device(kwargs["device"]) == DEVICE
            kwargs["device"] = torch.device("cpu")
        values = pytree.tree_map_only(OnDevice, lambda x: x.held, (args, kwargs))
        result = func(*values[0], **values[1])
        if not on_device:
            return result
        result = pytree.tree_map_only(Tensor, OnDevice, result)
        return return_and_correct_aliasing(func, args, kwargs, result) if reads_device else result


@pytest.fixture(autouse=True)
def _no_float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tensors, "WITHOUT_FLOAT64", (DEVICE.type,))
    # PyTorch has no autocast for this device. Encodings only disable autocast.
    monkeypatch.setattr(torch, "autocast", lambda device_type, enabled: nullcontext())
    monkeypatch.setattr(torch, "tensor", tensor_by_copy)
    with Device():
        yield


def tensor_by_copy(
    data: Any, *, device: Any = None, make: Callable[..., Tensor] = torch.tensor, **options: Any
) -> Tensor:
    """Replace ``torch.tensor``, which dispatch modes do not see."""
    return make(data, **options).to(device or "cpu")


def numbers(experiment: Experiment, device: torch.device) -> list[Tensor]:
    """Return the loss and the gradients of a training batch, and the loss past the training lengths."""
    model = experiment.untrained_model().to(device)
    # With so many rows a CPU computes the batch in parts.
    batch = TrainingStream(experiment.source, 128, "mixed").batch(0).to(device)
    loss = batch_loss(model, batch)
    loss.backward()
    gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
    if experiment.config.task["_target_"].endswith("Text"):
        (row,), _ = evaluate_text(model, experiment.source, [9], 8, experiment.max_length)
    else:
        (row,) = extrapolation_curve(model, experiment.source, [9], 8, experiment.max_length)
    return [loss.detach().cpu(), *gradients, torch.tensor(row["loss"])]


FORMS = [("decoder", f"pe={name}") for name in shipped("pe")]
# These compute something else in an encoder.
FORMS += [("encoder", f"pe={name}") for name in ("alibi_asymmetric", "shaw", "t5", "transformer_xl")]
SETTINGS = [
    ("decoder", "pe=rope", "positions=random_float"),
    ("decoder", "pe=learned", "pe.beyond=interpolate", "positions=interpolated"),
    ("decoder", "pe=sinusoidal", "positions=random_subset"),
    ("decoder", "pe=alibi", "model.attention_implementation=blocked"),
    ("decoder", "pe=rope_yarn", "pe.factor=4"),
    ("decoder", "pe=rope", "task=text", "positions=interpolated"),
]


@pytest.mark.slow
@pytest.mark.parametrize("choice", [*FORMS, *SETTINGS], ids=" ".join)
def test_trains_and_evaluates_as_on_the_cpu(choice: tuple[str, ...], tiny: Tiny) -> None:
    model, encoding, *overrides = choice
    layers = 2 if "rope_nope" in encoding or "by_layer" in encoding else 1  # its layers alternate
    experiment = tiny(f"model={model}", encoding, f"model.num_layers={layers}", *overrides)
    torch.testing.assert_close(numbers(experiment, DEVICE), numbers(experiment, torch.device("cpu")))


def test_float64_training_is_refused_on_mps(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert prepare_device(tiny("trainer=mps").config) == "mps"
    with pytest.raises(UserError, match=r"trainer\.precision=64-true: .* has no float64; allowed: 32-true"):
        prepare_device(tiny("trainer=mps", "trainer.precision=64-true").config)
