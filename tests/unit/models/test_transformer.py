"""The Transformer: its initial weights, long rows in blocks, and layers that skip padding."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from pe_experiments.checking import small_shape
from pe_experiments.configuration.choices import shipped
from pe_experiments.data.batches import TrainingStream
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.encodings.learned import Learned
from pe_experiments.encodings.sinusoidal import Sinusoidal
from pe_experiments.models import Backbone, Transformer, attention, cpu
from pe_experiments.training.loop import batch_loss
from tests.conftest import Tiny

WORDS = torch.randint(9, (3, 10), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("style", ["gpt2", "pytorch"])
def test_initial_backbone_weights_do_not_depend_on_the_encoding(style: str) -> None:
    def backbone(encoding: type[PositionalEncoding], seed: int = 3) -> dict[str, Tensor]:
        model = Transformer(9, small_shape(), encoding, initialisation=style, seed=seed)  # type: ignore[arg-type]
        return {name: p for name, p in model.named_parameters() if not name.startswith("encodings")}

    reference = backbone(PositionalEncoding)
    for encoding in (Sinusoidal, Learned):
        for name, parameter in backbone(encoding).items():
            assert torch.equal(parameter, reference[name]), name
    assert not torch.equal(backbone(Learned, seed=4)["embedding.weight"], reference["embedding.weight"])


def test_concatenation_narrows_only_the_token_embedding() -> None:
    model = Transformer(9, small_shape(), lambda shape: Sinusoidal(shape, combine="concat"))
    assert model.embedding.weight.shape == (9, 16)
    assert model(WORDS).shape == (3, 10, 9)
    with pytest.raises(ValueError, match="output_head=tied"):
        Transformer(9, small_shape(), lambda shape: Sinusoidal(shape, combine="concat"), output_head="tied")


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ["rope", "alibi", "t5", "fox", "stick_breaking", "selective_rope"])
def test_long_rows_are_computed_in_blocks_with_the_same_result(
    name: str, batch: int, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encodings: no bias, a fixed one, a trained one, one of content, own weights, whole rows."""
    model = tiny(f"pe={name}", "model.sinks=" + str(name != "stick_breaking")).untrained_model().eval()
    words = torch.randint(9, (batch, attention.LONG + 3), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([words.shape[1] - 5 * row for row in range(batch)])
    monkeypatch.setattr(attention, "BLOCK_LOGITS", 100 * words.numel() * 4)  # 100 queries, or more
    blocked, eager, sdpa = (Mock(wraps=getattr(attention, name)) for name in ("blocked", "eager", "sdpa"))
    monkeypatch.setattr(attention, "blocked", blocked)
    monkeypatch.setattr(attention, "eager", eager)
    monkeypatch.setattr(attention, "sdpa", sdpa)
    monkeypatch.setattr(attention, "KEY_STEPS", 2)
    with torch.no_grad():
        in_blocks = model.hidden(words, None, lengths)
        assert blocked.called
        calls = eager.call_args_list + sdpa.call_args_list
        assert all(call.args[0].shape[2] < words.shape[1] / 2 for call in calls)
        key_counts = {call.args[1].shape[2] for call in calls}
        assert len(key_counts) <= 3  # of four blocks or more: few sizes, which fit into freed memory
        monkeypatch.setattr(attention, "LONG", words.shape[1] + 1)
        monkeypatch.setattr(cpu, "FUSED", words.shape[1] + 1)
        at_once = model.hidden(words, None, lengths)
    assert eager.call_args.args[0].shape[2] == words.shape[1]
    for row, length in enumerate(lengths):
        torch.testing.assert_close(in_blocks[row, :length], at_once[row, :length], atol=2e-5, rtol=0)


FORMS = [(name, "decoder") for name in shipped("pe")]
# These compute something else in an encoder.
FORMS += [(name, "encoder") for name in ("alibi_asymmetric", "shaw", "t5", "transformer_xl")]


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "model"), FORMS)
def test_packing_changes_no_loss_and_no_gradient(
    encoding: str, model: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny(f"pe={encoding}", f"model={model}", "training.max_length=12")
    network = experiment.untrained_model().double()
    batch = TrainingStream(experiment.source, 8, "mixed").batch(0)
    assert batch.lengths_B.sum() < cpu.PADDED * batch.tokens_BT.numel()
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    results = []
    packs, skips, computes_all = cpu.PADDED, Transformer.selected_tokens, Backbone.selected_tokens
    for share, selected_tokens in ((packs, skips), (0.0, skips), (0.0, computes_all)):
        monkeypatch.setattr(cpu, "PADDED", share)
        monkeypatch.setattr(Transformer, "selected_tokens", selected_tokens)
        loss = batch_loss(network, batch)
        gradients = torch.autograd.grad(loss, trained, materialize_grads=True)
        results.append([loss, *gradients])
    packed, padded, whole = results
    torch.testing.assert_close(packed, whole, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(padded, whole, rtol=1e-6, atol=1e-9)
