"""torchvision's Vision Transformer, converted, computes what torchvision computes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torchvision
from image_files import random_rgb
from PIL import Image
from torch import Tensor, nn
from torchvision.models import VisionTransformer
from torchvision.models.vision_transformer import ConvStemConfig

from vitviz.model.vit import ViT
from vitviz.weights import naming
from vitviz.weights.checks import CheckpointError, ConvertError
from vitviz.weights.from_torchvision import BUILDERS, about_torchvision, convert_torchvision

# Every size another prime (times what has to divide it), so that a swapped axis cannot fit by chance.
SIZES: dict[str, Any] = {
    "image_size": 11 * 3,
    "patch_size": 3,
    "num_layers": 4,
    "num_heads": 5,
    "hidden_dim": 5 * 7,
    "mlp_dim": 23,
    "num_classes": 13,
}
MODELS = torchvision.models
WEIGHTS = [
    weights
    for kind in ("ViT_B_16", "ViT_B_32", "ViT_L_16", "ViT_L_32", "ViT_H_14")
    for weights in getattr(MODELS, f"{kind}_Weights")
]


def tiny(**changes: Any) -> VisionTransformer:
    """A random model, far from its initial values: every tensor matters."""
    torch.manual_seed(20261121)
    model = VisionTransformer(**{**SIZES, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def attentions(model: VisionTransformer, images: Tensor) -> list[Tensor]:
    """The probabilities (B, H, N, N) of every block. torchvision throws them away: each block is asked again."""
    kept: list[Tensor] = []

    def ask(module: nn.Module, args: tuple[Tensor, ...], _: object) -> None:
        x = module.ln_1(args[0])
        attend = module.self_attention
        kept.append(attend(x, x, x, need_weights=True, average_attn_weights=False)[1])

    handles = [block.register_forward_hook(ask) for block in model.encoder.layers]
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    return kept


@pytest.mark.parametrize(
    "changes", [{}, {"norm_layer": partial(nn.LayerNorm, eps=1e-2)}, {"num_classes": 1}], ids=["plain", "eps", "one"]
)
def test_the_same_numbers_as_torchvision(changes: dict[str, Any]) -> None:
    theirs = tiny(**changes)
    ours = convert_torchvision(theirs)
    images = torch.randn(2, 3, 33, 33)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-4)
        trace = ours.trace(images)
    expected = attentions(theirs, images)
    assert len(expected) == len(trace.attentions) == 4
    for attention, reference in zip(trace.attentions, expected, strict=True):
        torch.testing.assert_close(attention, reference, rtol=0, atol=1e-5)
    assert not ours.training
    assert ours.pretrained is None
    with torch.no_grad():
        assert ours(torch.randn(1, 3, 15, 24)).shape == (1, theirs.num_classes)  # ours takes other sizes too


def test_another_classifier_and_none() -> None:
    theirs = tiny()
    theirs.heads.head = nn.Linear(35, 17)
    images = torch.randn(1, 3, 33, 33)
    with torch.no_grad():
        torch.testing.assert_close(convert_torchvision(theirs)(images), theirs(images), rtol=0, atol=1e-4)
        theirs.heads = nn.Identity()
        ours = convert_torchvision(theirs)
        assert ours.config.classes == 0
        torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-4)


def test_older_names() -> None:
    state = tiny().state_dict()
    renamed = {
        name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."): tensor
        for name, tensor in state.items()
    }
    assert renamed.keys() != state.keys()
    assert naming.TORCHVISION.rename(renamed).names.keys() == naming.TORCHVISION.rename(state).names.keys()


def test_conversion_is_pure() -> None:
    theirs = tiny()
    before = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    ours = convert_torchvision(theirs)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.fill_(7.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in theirs.state_dict().items())


def converted(model: VisionTransformer, state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> ViT:
    monkeypatch.setattr(model, "state_dict", lambda: state)
    return convert_torchvision(model)


def test_a_left_over_a_missing_and_a_misshaped_tensor_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tiny()
    state = dict(theirs.state_dict())
    with pytest.raises(ConvertError, match=r"1 tensors too many: surplus\.weight"):
        converted(theirs, state | {"surplus.weight": torch.zeros(2)}, monkeypatch)
    for name in state:
        with pytest.raises(CheckpointError, match=r"missing|Expected"):
            converted(theirs, {other: state[other] for other in state if other != name}, monkeypatch)
        with pytest.raises(CheckpointError, match=r"got \(1, |Expected"):
            converted(theirs, state | {name: state[name][None]}, monkeypatch)


def test_models_that_differ_are_refused() -> None:
    with pytest.raises(ConvertError, match=r"Expected a VisionTransformer .* got Linear"):
        convert_torchvision(nn.Linear(2, 3))
    with pytest.raises(ConvertError, match=r"too many: heads\.pre_logits"):
        convert_torchvision(tiny(representation_size=8))
    stem = [ConvStemConfig(7, 3, 3)]
    with pytest.raises(ConvertError, match="Expected names that"):
        convert_torchvision(tiny(conv_stem_configs=stem))
    theirs = tiny()
    theirs.heads = nn.Linear(35, 17)  # not where the classifier is
    with pytest.raises(ConvertError, match=r"too many: heads\.bias, heads\.weight"):
        convert_torchvision(theirs)


@pytest.mark.parametrize("name", BUILDERS)
def test_the_published_names_are_those_of_torchvision(name: str) -> None:
    with torch.device("meta"):
        theirs = getattr(MODELS, name)()
    renamed = naming.TORCHVISION.rename(theirs.state_dict())
    assert not renamed.unknown
    assert len(renamed.names) == len(theirs.state_dict())


# --- what travels with the weights


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_pixels_are_those_of_torchvision(weights: Any) -> None:
    picture = Image.fromarray(random_rgb(331, 523))
    pixels = torch.from_numpy(about_torchvision(weights).preprocess(picture).pixels)
    assert torch.equal(pixels, weights.transforms()(picture))


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_what_travels_with_published_weights(weights: Any) -> None:
    about = about_torchvision(weights)
    side = weights.meta["min_size"][0]
    assert (about.preprocess.height, about.preprocess.width) == (side, side)
    assert len(about.labels) == 1000
    assert about.labels[0] == "tench"
    assert about.licence.startswith("CC-BY-NC-4.0" if "SWAG" in weights.name else "unknown")
    assert weights.url in about.source
    assert weights.name in about.name
    assert "Weights" not in about.name


def test_weights_come_with_the_model() -> None:
    weights = MODELS.ViT_B_32_Weights.IMAGENET1K_V1
    fitting = {"image_size": 21, "patch_size": 7}  # the weights are fed with 224 x 224 pixels
    ours = convert_torchvision(tiny(num_classes=1000, **fitting), weights)
    assert isinstance(ours, ViT)
    assert ours.pretrained == about_torchvision(weights)
    assert ours.pretrained.name == "ViT_B_32 IMAGENET1K_V1"
    with pytest.raises(ConvertError, match="Expected 13 labels, one for each class, got 1000"):
        convert_torchvision(tiny(**fitting), weights)


def test_weights_for_other_tasks_are_refused() -> None:
    from torchvision.models.segmentation import FCN_ResNet50_Weights

    with pytest.raises(ConvertError, match=r"without .*crop_size"):
        about_torchvision(FCN_ResNet50_Weights.DEFAULT)
