"""Check that converted torchvision models give torchvision's logits and attention, and torchvision imports fully."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from image_files import random_rgb
from PIL import Image
from timm_models import shaken
from torch import Tensor, nn
from torchvision.models import VisionTransformer
from torchvision.models.segmentation import FCN_ResNet50_Weights
from torchvision.models.vision_transformer import ConvStemConfig

from vitviz.weights import naming
from vitviz.weights.checks import ConvertError, attach
from vitviz.weights.from_torchvision import PLAIN, about_torchvision, convert_torchvision

pytestmark = pytest.mark.usefixtures("one_thread")

# Different primes (times required factors), so that a swapped axis does not fit.
SIZES: dict[str, Any] = {"image_size": 11 * 3, "patch_size": 3, "num_layers": 4, "num_heads": 5}
SIZES |= {"hidden_dim": 5 * 7, "mlp_dim": 23, "num_classes": 13}
MODELS = torchvision.models
KINDS = ("ViT_B_16", "ViT_B_32", "ViT_L_16", "ViT_L_32", "ViT_H_14")
WEIGHTS = [weights for kind in KINDS for weights in getattr(MODELS, f"{kind}_Weights")]


def tiny(**changes: Any) -> VisionTransformer:
    """Return a random model far from its initial values, so that every tensor matters."""
    torch.manual_seed(20261121)
    return shaken(VisionTransformer(**{**SIZES, **changes}))


def attentions(model: VisionTransformer, images: Tensor) -> list[Tensor]:
    """Return the probabilities (B, H, N, N) of every block by running each attention again."""
    probabilities: list[Tensor] = []

    def run_again(module: nn.Module, args: tuple[Tensor, ...], _: object) -> None:
        x = module.ln_1(args[0])
        probabilities.append(module.self_attention(x, x, x, need_weights=True, average_attn_weights=False)[1])

    handles = [block.register_forward_hook(run_again) for block in model.encoder.layers]
    model(images)
    for handle in handles:
        handle.remove()
    return probabilities


def headless() -> VisionTransformer:
    model = tiny()
    model.heads, model.num_classes = nn.Identity(), 35
    return model


@torch.no_grad()
@pytest.mark.parametrize(
    "theirs",
    [tiny(), tiny(norm_layer=partial(nn.LayerNorm, eps=1e-2)), tiny(num_classes=1), headless()],
    ids=["plain", "eps", "one", "no classifier"],
)
def test_logits_and_attention_match_torchvision(theirs: VisionTransformer) -> None:
    ours = convert_torchvision(theirs)
    images = torch.randn(2, 3, 33, 33)
    torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-4)
    trace, expected = ours.trace(images), attentions(theirs, images)
    assert len(expected) == len(trace.attentions) == 4
    for attention, reference in zip(trace.attentions, expected, strict=True):
        torch.testing.assert_close(attention, reference, rtol=0, atol=1e-5)
    assert (ours.training, ours.pretrained) == (False, None)
    assert ours.config.classes == (theirs.num_classes if hasattr(theirs.heads, "head") else 0)
    assert ours(torch.randn(1, 3, 15, 24)).shape == (1, theirs.num_classes)  # our model accepts other sizes too


def test_unsupported_models_are_refused() -> None:
    for model, words in (
        (nn.Linear(2, 3), r"Expected a VisionTransformer .* got Linear"),
        (tiny(representation_size=8), r"the hidden layer heads\.pre_logits"),
        (tiny(conv_stem_configs=[ConvStemConfig(7, 3, 3)]), "Expected a tensor .* with 4 axes, got none"),
    ):
        with pytest.raises(ConvertError, match=words):
            convert_torchvision(model)


@pytest.mark.parametrize("name", PLAIN)
def test_current_and_older_tensor_names_are_known(name: str) -> None:
    with torch.device("meta"):
        state = getattr(MODELS, name)().state_dict()
    older = [name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2.") for name in state]
    assert set(older) != set(state)
    now, before = naming.TORCHVISION.rename(state), naming.TORCHVISION.rename(older)
    assert not now.unknown
    assert len(now.names) == len(state)
    assert now.names.keys() == before.names.keys()


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_published_weights_bring_labels_licence_and_preprocessing(weights: Any) -> None:
    picture = Image.fromarray(random_rgb(331, 523))
    about = about_torchvision(weights)
    assert torch.equal(torch.from_numpy(about.preprocess(picture).pixels), weights.transforms()(picture))
    side = weights.meta["min_size"][0]
    assert (about.preprocess.height, about.preprocess.width) == (side, side)
    assert (len(about.labels), about.labels[0]) == (1000, "tench")
    assert about.licence.startswith("CC-BY-NC-4.0" if "SWAG" in weights.name else "unknown")
    assert weights.url in about.source
    assert weights.name in about.name
    assert "Weights" not in about.name


def test_weights_must_have_the_models_classes() -> None:
    weights = MODELS.ViT_B_32_Weights.IMAGENET1K_V1
    fitting = {"image_size": 21, "patch_size": 7}  # the weights need an input of 224 x 224 pixels
    ours = attach(convert_torchvision(tiny(num_classes=1000, **fitting)), about_torchvision(weights))
    assert ours.pretrained == about_torchvision(weights)
    assert ours.pretrained.name == "ViT_B_32 IMAGENET1K_V1"
    with pytest.raises(ConvertError, match=r"13 labels.*got 1000"):
        attach(convert_torchvision(tiny(**fitting)), about_torchvision(weights))
    with pytest.raises(ConvertError, match=r"without .*crop_size"):  # weights for another task
        about_torchvision(FCN_ResNet50_Weights.DEFAULT)


# --- import without compiled operators; other errors pass through

# A package named torchvision whose second half describes operators that only the shared library declares.
PACKAGE = """
import builtins
builtins.runs += 1
if builtins.failure:
    raise builtins.failure
import torch
from torchvision import first_half
for name in ("nms", "qnms"):
    torch.library.register_fake(f"torchvision::{name}")(lambda *args: None)
"""
IMPORTS = """
import builtins, sys
from vitviz.images.torchvision_import import import_torchvision

def attempt(load, failure=None):
    builtins.runs, builtins.first_runs, builtins.failure = 0, 0, failure
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    try:
        return load()
    except Exception as error:
        return error

nms = attempt(lambda: __import__("torchvision"))
assert "operator torchvision::nms does not exist" in str(nms), "the stand-in fails like torchvision"
for failure in (
    RuntimeError("compiled for different CUDA versions"),
    RuntimeError("operator torchvision::roi_align does not exist"),
    ImportError("libjpeg is missing"),
):
    assert attempt(import_torchvision, failure) is failure
    assert builtins.runs == 1, "a second attempt would hide effects of the first"
torchvision = attempt(import_torchvision)
assert torchvision is import_torchvision() is sys.modules["torchvision"]
assert (builtins.runs, builtins.first_runs) == (2, 2), "every module of the failed import ran again"
"""


def test_import_declares_missing_operators_and_passes_other_errors_on(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "torchvision" / "first_half.py").write_text("import builtins; builtins.first_runs += 1")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])}
    subprocess.run([sys.executable, "-B", "-c", IMPORTS], env=environment, check=True)
