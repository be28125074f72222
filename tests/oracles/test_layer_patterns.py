"""Presets of layer patterns against the released files they describe, and mixtures by layer and by head."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from pe_experiments.checking.subject import draw_content, perturbed
from pe_experiments.configuration.choices import shipped
from pe_experiments.configuration.component import load_component
from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.alibi import Alibi
from pe_experiments.encodings.dape import Dape
from pe_experiments.encodings.layer_pattern import LayerPattern
from pe_experiments.encodings.mixtures import ByHead, Composition
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.rope_hf import RopeHf
from pe_experiments.encodings.scaled_logits import ScalableSoftmax
from pe_experiments.encodings.shaw import Shaw
from pe_experiments.encodings.t5 import T5Bias
from pe_experiments.models import Transformer, attention
from pe_experiments.models.attention_scores import attention_scores
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import CONFIG_DIR
from tests.oracles.released import FILES, text_part, written

PRESETS = {
    "gemma3": "Gemma 3 4B",
    "gpt_oss": "gpt-oss 20B",
    "llama4": "Llama 4 Scout",
    "smollm3": "SmolLM3 3B",
    "command_a": "Command A",
    "trinity": "Trinity Mini",
    "granite_swa": "Granite SWA 2B",
}
LAYERS = 12
SHAPE = ModelShape(32, 2, LAYERS, True, 77, 77)


def preset(name: str, shape: ModelShape = SHAPE) -> PositionalEncoding:
    section: Any = OmegaConf.to_container(OmegaConf.load(CONFIG_DIR / "pe" / "released" / f"{name}.yaml"))
    return load_component("pe", section).build(shape)


def scores(encoding: PositionalEncoding, layer: int) -> Tensor:
    """Logits of random content at positions whose distances are on both sides of each window and chunk."""
    generator = torch.Generator().manual_seed(layer)
    near = torch.randint(10_000, 10_300, (20,), generator=generator)
    far = torch.randint(0, 20_000, (20,), generator=generator)
    positions = torch.cat([near, far]).sort().values
    inputs = draw_content(encoding.shape, positions[None], seed=layer)
    return attention_scores(encoding, inputs, layer).nan_to_num(0)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_released_file(name: str, tmp_path: Path) -> None:
    released = RopeHf(SHAPE, config=written(tmp_path, text_part(FILES[PRESETS[name]])))
    encoding = preset(name)
    plain = Rope(SHAPE)
    for layer in range(LAYERS):
        expected = scores(released, layer)
        torch.testing.assert_close(scores(encoding, layer), expected, rtol=1e-6, atol=1e-6)
        assert not torch.allclose(scores(plain, layer), expected)


def test_every_preset_is_tested_and_needs_as_many_layers_as_its_pattern() -> None:
    names = {path.stem for path in (CONFIG_DIR / "pe" / "released").glob("*.yaml")}
    assert names == {*PRESETS, "swan"}
    for name in names - {"gpt_oss"}:
        refusal = r"pattern=\w+ has \d layers and the model 2; take model.num_layers"
        with pytest.raises(ValueError, match=refusal):
            preset(name, ModelShape(32, 2, 2, True, 77, 77))


def test_swan_scales_the_logits_of_its_global_layers() -> None:
    encoding = preset("swan")
    torch.testing.assert_close(scores(encoding, 3)[..., :1, :1], torch.zeros(1, 2, 1, 1))  # ln 1
    assert isinstance(encoding, LayerPattern)
    assert encoding.order == [0, 0, 0, 1] * 3


class Ahead(PositionalEncoding):
    """Reads all keys of a row, also later ones."""

    looks_ahead = True

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        mean_BH1K = k_BHSK.mean(2, keepdim=True)
        return (q_BHTK * mean_BH1K).sum(-1, keepdim=True) * torch.arange(k_BHSK.shape[2])


MIXTURES = [partial(mixture, encodings=[Ahead, Alibi]) for mixture in (Composition, ByHead)]


@pytest.mark.parametrize("make", [*MIXTURES, partial(Dape, bias=Ahead)])
@torch.no_grad()
def test_a_mixture_looks_ahead_if_a_part_does(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of queries then have all keys."""
    monkeypatch.setattr(attention, "BLOCK_LOGITS", 1)
    monkeypatch.setattr(attention, "FEWEST_QUERIES", 16)
    words = torch.randint(9, (1, 100), generator=torch.Generator().manual_seed(0))
    shape = ModelShape(16, 2, 2, True, 12, 100)
    results = []
    for implementation in ("eager", "blocked"):
        torch.manual_seed(0)
        model = Transformer(9, shape, make, attention_implementation=implementation, initialisation="pytorch")
        results.append(model(words))
    torch.testing.assert_close(*results, rtol=0, atol=1e-4)


@pytest.mark.parametrize("parts", [[Alibi, PositionalEncoding], [Rope, Shaw], [T5Bias, ScalableSoftmax]])
def test_each_head_is_as_in_a_model_whose_heads_all_use_its_encoding(parts: list[Any]) -> None:
    shape = ModelShape(32, 4, 2, True, 20, 20)
    mixed = perturbed(ByHead(shape, encodings=parts, heads=[1, 3]))
    for layer in (0, 1):
        logits = scores(mixed, layer)
        first, second = mixed._at_layer(layer)
        torch.testing.assert_close(logits[:, :1], scores(first, layer)[:, :1])
        torch.testing.assert_close(logits[:, 1:], scores(second, layer)[:, 1:])
        assert not torch.allclose(logits[:, 1:], scores(first, layer)[:, 1:])


def test_parts_by_name_are_the_same_as_sections() -> None:
    sections = [shipped("pe")[name] | {"_partial_": True} for name in ("rope", "alibi")]
    target = {"_target_": "pe_experiments.encodings.mixtures.ByHead"}
    written_out = load_component("pe", target | {"encodings": sections})
    by_name = load_component("pe", target | {"encodings": ["rope", "alibi"]})
    assert by_name == written_out
    assert by_name.section_without_defaults == written_out.section_without_defaults
    assert by_name.label == "by_head(encodings=rope+alibi)"
    with pytest.raises(UserError, match=r"pe=alibii is not a choice. Did you mean alibi"):
        load_component("pe", target | {"encodings": ["rope", "alibii"]})
