"""Check that a converted model is compared with its source part by part, and that its source stays as it was."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hf_cases import CASES
from timm.layers import RmsNorm
from timm_models import FAMILIES, shaken
from torch import Tensor, nn
from torchvision.models import VisionTransformer as TorchvisionViT

import vitviz
from vitviz.weights import verify as module
from vitviz.weights.captured_vit import CapturedViT
from vitviz.weights.from_timm import convert_timm
from vitviz.weights.objects import convert_object
from vitviz.weights.verify import VerifyError, verify

pytestmark = pytest.mark.usefixtures("one_thread")


def timm_model(**changes: Any) -> Any:
    """Return a random model whose layer scale hides what blocks add from the logits."""
    sizes = {"depth": 3, "embed_dim": 60, "num_heads": 5, "img_size": 48, "num_classes": 7, "dynamic_img_size": True}
    model = shaken(timm.create_model("vit_tiny_patch16_224", init_values=1.0, **sizes | changes))
    with torch.no_grad():
        for block in model.blocks:
            block.ls1.gamma.fill_(1e-5)
            block.ls2.gamma.fill_(1e-5)
    return model


def torchvision_model() -> Any:
    return shaken(TorchvisionViT(image_size=48, patch_size=16, num_layers=3, num_heads=5, hidden_dim=35, mlp_dim=23))


def twice(old: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **options: 2 * old(*args, **options)


def hooked(model: Any) -> None:
    model.blocks[1].attn.register_forward_hook(lambda _module, _given, out: out * 1.001)


def hooked_before(model: Any) -> None:
    model.blocks[2].mlp.register_forward_pre_hook(lambda _module, given: (given[0] + 0.01,))


def hooked_scale(model: Any) -> None:
    model.blocks[1].ls2.register_forward_hook(lambda _module, _given, out: 2 * out)


def replaced_forward(model: Any) -> None:
    model.blocks[2].attn.forward = twice(model.blocks[2].attn.forward)


def replaced_forward_of_block(model: Any) -> None:
    model.blocks[0].forward = twice(model.blocks[0].forward)


def activation(model: Any) -> None:
    model.blocks[1].mlp.act = nn.SiLU()


def tanh(model: Any) -> None:
    model.blocks[1].mlp.act = nn.GELU(approximate="tanh")


def scale(model: Any) -> None:
    model.blocks[0].attn.scale *= 2


def epsilon(model: Any) -> None:
    model.blocks[2].norm2.eps = 1e-2


def norm(model: Any) -> None:
    model.blocks[2].norm1 = RmsNorm(60)


def left_out(model: Any) -> None:
    del model.blocks[1]


def order(model: Any) -> None:
    model.blocks[1].forward = lambda x: x + model.blocks[1].mlp(x)


def pooling(model: Any) -> None:
    model.forward_head = lambda x, pre_logits=False: model.head(x.mean(1))


def positions(model: Any) -> None:
    model.pos_drop = nn.Softsign()


CHANGES: list[tuple[Callable[[Any], None], str]] = [
    (hooked, "attention of block 1"),
    (hooked_before, "MLP of block 2"),
    (hooked_scale, "MLP of block 1"),
    (replaced_forward, "attention of block 2"),
    (replaced_forward_of_block, "block 0|additions"),
    (activation, "MLP of block 1"),
    (tanh, "MLP of block 1: a difference of .* relative"),
    (scale, "attention of block 0"),
    (epsilon, "MLP of block 2"),
    (norm, "attention of block 2"),
    (order, "additions|block"),
    (pooling, "its output"),
    (positions, "input of block 0"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
@torch.no_grad()
def test_change_behind_a_layer_scale_is_seen(change: Callable[[Any], None], words: str) -> None:
    source = timm_model()
    for block in source.blocks:
        block.attn.fused_attn = False  # timm's fused attention ignores its scale
    ours = convert_timm(source)
    images = torch.randn(1, 3, 48, 48, generator=torch.Generator().manual_seed(2))
    before = source(images)
    change(source)
    with pytest.raises(VerifyError, match=words):
        verify(ours, source)
    if change in (hooked, tanh):  # the logits alone do not show it
        assert (source(images) - before).abs().max() < 1e-4


@pytest.mark.parametrize("change", [epsilon, tanh, hooked, pooling])
@torch.no_grad()
def test_changed_model_opens_captured_with_the_reason(change: Callable[[Any], None]) -> None:
    source = timm_model()
    change(source)
    with pytest.warns(UserWarning, match="runs as it is"):
        model = vitviz.load(source)
    assert isinstance(model, CapturedViT)
    assert model.pretrained is not None
    assert any(words.startswith("captured: ") and "Expected" in words for words in model.pretrained.assumed)
    images = torch.randn(1, 3, 48, 48)
    torch.testing.assert_close(model(images), source(images))


def test_changed_models_of_other_libraries_are_refused() -> None:
    theirs = torchvision_model()
    theirs.encoder.layers[1].self_attention.register_forward_hook(lambda _module, _given, out: (out[0] * 2, None))
    with pytest.raises(VerifyError, match="attention of block 1"):
        convert_object(theirs)
    theirs = CASES["DINOv2-classifier"].build()
    mlp = next(module for name, module in theirs.named_modules() if name.endswith("layer.1.mlp"))
    mlp.fc2.register_forward_hook(lambda _module, _given, out: out.relu())
    with pytest.raises(VerifyError, match="MLP of block 1"):
        convert_object(theirs)


@pytest.mark.parametrize("name", ["stride", "padding", "dilation"])
def test_patches_that_overlap_are_refused(name: str) -> None:
    source = timm_model()
    setattr(source.patch_embed.proj, name, (8, 8) if name == "stride" else (2, 2))
    with pytest.raises(VerifyError, match="input of block 0"):
        convert_object(source)


def test_positions_at_another_size_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, ...]] = []
    run = module.run_source
    monkeypatch.setattr(module, "run_source", lambda *args: sizes.append(tuple(args[1].shape[2:])) or run(*args))
    source = timm_model(img_size=64)
    vitviz.load(source)
    assert sizes == [(64, 64), (32, 48)]
    sizes.clear()
    vitviz.load(timm_model(dynamic_img_size=False))
    assert sizes[0] == (48, 48)
    library, blurred = timm.models.vision_transformer, {"antialias": False}
    resample = library.resample_abs_pos_embed
    monkeypatch.setattr(library, "resample_abs_pos_embed", lambda *args, **more: resample(*args, **more | blurred))
    with pytest.raises(VerifyError, match="input of block 0"):
        convert_object(source)


class Noisy(nn.Module):
    """Part that counts its calls and draws random numbers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Return the input."""
        self.calls += 1
        numbers = torch.rand(1) + random.random() + np.random.rand()  # noqa: NPY002
        return x + 0 * numbers.to(x)


def state(source: nn.Module) -> list[Any]:
    hooks = [dict(module._forward_hooks) for module in source.modules()]
    modes = [module.training for module in source.modules()]
    numbers = [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # noqa: NPY002
    tensors = [(name, tensor.tolist(), tensor.dtype) for name, tensor in source.state_dict().items()]
    gradients = [None if weight.grad is None else weight.grad.tolist() for weight in source.parameters()]
    options = [weight.requires_grad for weight in source.parameters()]
    return [hooks, modes, numbers, tensors, gradients, options, torch.get_float32_matmul_precision()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_source_and_random_numbers_stay_as_they_were(dtype: torch.dtype) -> None:
    source = timm_model().to(dtype)
    ours = convert_timm(source)
    source.pos_drop = Noisy()
    source(torch.randn(1, 3, 48, 48, dtype=dtype)).sum().backward()
    source.blocks[0].weight_of_a_plain_attribute = source.cls_token * 2
    source.cls_token.requires_grad_(False)
    source.train()
    source.blocks[1].eval()
    source.blocks[2].register_forward_hook(lambda _module, _given, _out: None)
    before = state(source)
    verify(ours, source)
    assert state(source) == before
    assert not ours.training


def test_models_are_verified_inside_inference_mode_and_autocast() -> None:
    with torch.inference_mode():
        ours = vitviz.load(timm_model())
    assert not any(parameter.is_inference() for parameter in ours.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        vitviz.load(timm_model())


@pytest.mark.parametrize("family", ["beit", "sapiens2", "parallel", "cait"])
def test_each_kind_of_block_is_compared(family: str) -> None:
    source = FAMILIES[family]()
    ours = convert_timm(source)
    with torch.no_grad():
        ours.blocks[1].norm1.bias.add_(0.01) if family != "sapiens2" else ours.blocks[1].norm1.weight.mul_(1.01)
    with pytest.raises(VerifyError, match="block 1"):
        verify(ours, source)


def test_module_that_does_not_run_or_cannot_be_copied_is_refused() -> None:
    source = timm_model()
    ours = convert_timm(source)
    source.blocks[1].mlp.fc1 = nn.Linear(7, 3)
    with pytest.raises(VerifyError, match="does not run on images of its size"):
        verify(ours, source)
    source = timm_model()
    source.lock = (value for value in ())  # a generator
    with pytest.raises(VerifyError, match="could not be copied"):
        verify(ours, source)
