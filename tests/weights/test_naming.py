"""Names of other libraries become ours: every tensor once, or a reason."""

import runpy
from pathlib import Path

import pytest
import skimage.data
import torch

from vitviz.images.decoding import decode
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.weights import naming
from vitviz.weights.checks import ConvertError
from vitviz.weights.naming import NAMINGS, merge

QKV = {
    f"blocks.0.attn.{part}.{kind}": torch.ones(*((4, 3) if kind == "weight" else (4,)))
    for part in "qkv"
    for kind in ("weight", "bias")
}


def test_biases_that_no_block_has_are_zero_where_a_library_leaves_them_out() -> None:
    """Queries, keys and values are stacked in this order."""
    state = {name: tensor for name, tensor in QKV.items() if name != "blocks.0.attn.k.bias"}
    state["blocks.0.attn.proj.weight"] = torch.ones(3, 4)
    with pytest.raises(ConvertError, match=r"with one bias of the same shape each, got 2"):
        merge(dict(state), patches=0)
    merged = merge(dict(state), patches=0, free_biases=True)
    assert merged["blocks.0.attn.qkv.bias"].tolist() == [1] * 4 + [0] * 4 + [1] * 4
    assert merged["blocks.0.attn.proj.bias"].tolist() == [0] * 3
    another = {name.replace(".0.", ".1."): tensor for name, tensor in QKV.items()}
    with pytest.raises(ConvertError, match=r"blocks\.0.* with one bias of the same shape each, got 2"):
        merge(state | another, patches=0, free_biases=True)
    for shape in ((3, 3), (4, 2), (4, 3, 1)):
        with pytest.raises(ConvertError, match="of the same shape each"):
            merge(QKV | {"blocks.0.attn.q.weight": torch.ones(shape)}, patches=0)


def test_positions_of_prefix_tokens_are_added_to_them() -> None:
    state = {"cls_token": torch.ones(1, 1, 2), "reg_token": torch.ones(1, 3, 2)}
    state["pos_embed"] = torch.arange(16.0).reshape(1, 8, 2)
    merged = merge(dict(state), patches=7)
    assert merged["cls_token"].flatten().tolist() == [1, 2]
    assert merged["reg_token"].equal(state["reg_token"])
    assert merged["pos_embed"].equal(state["pos_embed"][:, 1:])
    assert merge(dict(state), patches=4)["reg_token"].flatten().tolist() == [3, 4, 5, 6, 7, 8]
    for patches in (-1, 3, 6, 9):
        with pytest.raises(ConvertError, match=r"rows of the position table|Expected positions for"):
            merge(dict(state), patches=patches)
    with pytest.raises(ConvertError, match="Expected positions for cls_token"):
        merge(state | {"pos_embed": torch.zeros(8, 2)}, patches=7)


def test_unknown_names_and_names_of_one_tensor_are_refused() -> None:
    with pytest.raises(ConvertError, match=r"transformers' names, got 1 tensors too many: surplus\.weight"):
        naming.VIT.convert({"surplus.weight": torch.zeros(2)}, ViTConfig())
    with pytest.raises(ConvertError, match=r"a single number: layernorm\.bias"):
        naming.VIT.convert({"layernorm.bias": torch.tensor(1.0)}, ViTConfig())
    with pytest.raises(ConvertError, match=r"once, got 'vit\.layernorm\.bias' and 'layernorm\.bias'"):
        naming.VIT.rename(["vit.layernorm.bias", "layernorm.bias"])
    for one in NAMINGS:
        assert not one.rename(one.marks).unknown


def test_the_bundled_backbone_equals_onnxruntime() -> None:
    path = Path(__file__).parents[2] / "scripts" / "build_dinov2_imagenette.py"
    script = runpy.run_path(str(path))
    onnx_path = script["find_onnx"]()
    model = script["build_backbone"](onnx_path)
    images = torch.from_numpy(Preprocess(mode="squash")(decode(skimage.data.chelsea())).pixels)[None]
    with torch.no_grad():
        tokens = model.trace(images, blocks=[0]).tokens
    expected = script["onnx_tokens"](onnx_path, images)
    assert tokens.shape == expected.shape == (1, 257, 384)
    assert expected.std() > 0.1  # not two blank outputs that agree
    torch.testing.assert_close(tokens, expected, rtol=0, atol=1e-4)
