"""Converted weights compute what the library they come from computes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import skimage.data
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Dinov2Config, Dinov2Model, Dinov2WithRegistersConfig, Dinov2WithRegistersModel

from vitviz.image import decode
from vitviz.model import ViT
from vitviz.preprocess import Preprocess
from vitviz.weights.from_transformers import dinov2
from vitviz.weights.source import ConvertError, Source

# Every size another prime (times what has to divide it), so that a swapped axis cannot fit by chance.
SIZES = {
    "hidden_size": 5 * 7,
    "num_attention_heads": 5,
    "num_hidden_layers": 3,
    "mlp_ratio": 2,
    "image_size": 11 * 4,
    "patch_size": 4,
    "num_channels": 3,
    "layerscale_value": 0.7,
    "layer_norm_eps": 1e-3,
    "attn_implementation": "eager",
}


def tiny(registers: int = 0, **changes: object) -> torch.nn.Module:
    """A random DINOv2 of transformers, far from its initial values: every tensor matters."""
    torch.manual_seed(20261121)
    if registers:
        model = Dinov2WithRegistersModel(
            Dinov2WithRegistersConfig(**{**SIZES, "num_register_tokens": registers, **changes})
        )
    else:
        model = Dinov2Model(Dinov2Config(**{**SIZES, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def on_disk(model: torch.nn.Module, folder: Path) -> dict[str, Tensor]:
    """The tensors under the names they have in files, which are not those in memory."""
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def converted(model: torch.nn.Module, folder: Path) -> ViT:
    config, state = dinov2(on_disk(model, folder), model.config.to_dict())
    ours = ViT(config)
    ours.load_state_dict(state, strict=True)
    return ours.eval()


@pytest.mark.parametrize("registers", [0, 2])
@pytest.mark.parametrize("size", [(44, 44), (28, 52), (60, 24)], ids=str)
def test_dinov2_equals_transformers(tmp_path: Path, registers: int, size: tuple[int, int]) -> None:
    theirs = tiny(registers)
    ours = converted(theirs, tmp_path)
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        expected = theirs(images, output_attentions=True)
        trace = ours.trace(images)
    assert trace.tokens.shape == expected.last_hidden_state.shape
    torch.testing.assert_close(trace.tokens, expected.last_hidden_state, rtol=0, atol=1e-5)
    assert len(expected.attentions) == len(trace.attentions) == 3
    for attention, reference in zip(trace.attentions, expected.attentions, strict=True):
        torch.testing.assert_close(attention, reference, rtol=0, atol=1e-5)
    with torch.no_grad():  # without a classifier the model returns CLS
        torch.testing.assert_close(ours(images), expected.last_hidden_state[:, 0], rtol=0, atol=1e-5)


def test_dinov2_without_bias(tmp_path: Path) -> None:
    theirs = tiny(qkv_bias=False)
    ours = converted(theirs, tmp_path)
    images = torch.randn(1, 3, 44, 44)
    with torch.no_grad():
        torch.testing.assert_close(ours.trace(images).tokens, theirs(images).last_hidden_state, rtol=0, atol=1e-5)


def test_the_mask_token_changes_nothing_and_may_be_missing(tmp_path: Path) -> None:
    theirs = tiny()
    state, settings = on_disk(theirs, tmp_path), theirs.config.to_dict()
    _, with_it = dinov2(state, settings)
    del state["embeddings.mask_token"]
    _, without = dinov2(state, settings)
    assert with_it.keys() == without.keys()
    assert all(torch.equal(with_it[name], without[name]) for name in without)


def test_conversion_is_pure(tmp_path: Path) -> None:
    theirs = tiny()
    state, settings = on_disk(theirs, tmp_path), theirs.config.to_dict()
    before = {name: tensor.clone() for name, tensor in state.items()}
    _, new = dinov2(state, settings)
    for tensor in new.values():
        tensor.fill_(7.0)
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], before[name]) for name in before)


@pytest.mark.parametrize("name", ["embeddings.cls_token", "encoder.layer.2.mlp.fc2.bias", "layernorm.weight"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    theirs = tiny()
    state = on_disk(theirs, tmp_path)
    del state[name]
    with pytest.raises(ConvertError, match=name.replace(".", r"\.")):
        dinov2(state, theirs.config.to_dict())


def test_tensors_left_over_are_named(tmp_path: Path) -> None:
    theirs = tiny()
    state = on_disk(theirs, tmp_path) | {"classifier.weight": torch.zeros(2, 35)}
    with pytest.raises(ConvertError, match=r"1 tensors too many: classifier\.weight"):
        dinov2(state, theirs.config.to_dict())
    # Settings with fewer blocks than the weights have: the last block is left over, not ignored.
    state.pop("classifier.weight")
    with pytest.raises(ConvertError, match=r"encoder\.layer\.2\."):
        dinov2(state, theirs.config.to_dict() | {"num_hidden_layers": 2})


def test_a_misshaped_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    theirs = tiny()
    state = on_disk(theirs, tmp_path)
    name = "encoder.layer.1.mlp.fc1.weight"
    state[name] = state[name].T.contiguous()
    with pytest.raises(ConvertError, match=r"fc1\.weight' of shape \(70, 35\).*got \(35, 70\)"):
        dinov2(state, theirs.config.to_dict())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"hidden_act": "gelu_new"}, "hidden_act='gelu_new' is not supported"),
        ({"image_size": [44, 48]}, "square"),
    ],
)
def test_settings_that_the_model_cannot_follow_are_refused(change: dict[str, object], text: str) -> None:
    with pytest.raises(ConvertError, match=text):
        dinov2({}, SIZES | change)


def test_settings_without_sizes_are_refused() -> None:
    with pytest.raises(ConvertError, match="hidden_size, num_hidden_layers"):
        dinov2({}, {"image_size": 518})


def test_a_source_gives_each_tensor_once() -> None:
    source = Source({"a": torch.zeros(2, 3), "b": torch.zeros(5)}, "test")
    assert source.take("a", 2, 3).shape == (2, 3)
    with pytest.raises(ConvertError, match="there is none"):
        source.take("a", 2, 3)
    with pytest.raises(ConvertError, match="too many: b"):
        source.finish()
    source.drop("b", "not there")
    source.finish()


def build_script() -> ModuleType:
    path = Path(__file__).parents[1] / "scripts" / "build_dinov2_imagenette.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_bundled_backbone_equals_onnxruntime() -> None:
    script = build_script()
    onnx_path = script.find_onnx()
    model = script.build_backbone(onnx_path)
    image = decode(skimage.data.chelsea())
    images = torch.from_numpy(Preprocess(mode="squash")(image).pixels)[None]
    with torch.no_grad():
        tokens = model.trace(images, blocks=[0]).tokens
    expected = script.onnx_tokens(onnx_path, images)
    assert tokens.shape == expected.shape == (1, 257, 384)
    assert expected.std() > 0.1  # not two blank outputs that agree
    torch.testing.assert_close(tokens, expected, rtol=0, atol=1e-4)
