"""Test that captured attention equals what the module computes, and that the module is unchanged."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import timm_models
import torch
import torch.nn.functional as F
import transformers as hf
from tiny import close, shaken
from torch import Tensor, nn
from torchvision.models import VisionTransformer as TorchvisionViT

import vitviz
from vitviz.model import memory
from vitviz.model.trace import packed, unpacked
from vitviz.weights.captured import CaptureError

SIZES: dict[str, Any] = {"hidden_size": 20, "num_attention_heads": 5, "num_hidden_layers": 3, "intermediate_size": 23}
IMAGES: dict[str, Any] = {"image_size": 44, "patch_size": 4, "layer_norm_eps": 1e-3}
MODES = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "grad": torch.enable_grad}


def pixels(height: int = 44, width: int = 44, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(1))


def of_transformers(kind: type, config: Any, attention: str = "sdpa") -> nn.Module:
    torch.manual_seed(5)
    config._attn_implementation = attention
    return shaken(kind(config))


def vit(attention: str) -> nn.Module:
    return of_transformers(hf.ViTModel, hf.ViTConfig(**SIZES, **IMAGES), attention)


def registers(attention: str) -> nn.Module:
    sizes = {name: value for name, value in SIZES.items() if name != "intermediate_size"}
    config = hf.Dinov2WithRegistersConfig(**sizes, **IMAGES, mlp_ratio=2, num_register_tokens=3)
    return of_transformers(hf.Dinov2WithRegistersModel, config, attention)


def rotary(attention: str) -> nn.Module:
    return of_transformers(hf.DINOv3ViTModel, hf.DINOv3ViTConfig(**SIZES, **IMAGES, num_register_tokens=2), attention)


TRANSFORMERS = {"ViT": vit, "DINOv2 with registers": registers, "DINOv3": rotary}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_models_match_eager(name: str, mode: str) -> None:
    with MODES[mode]():
        captured = vitviz.capture(TRANSFORMERS[name]("sdpa"), pixel_values=pixels())
        expected = TRANSFORMERS[name]("eager")(pixels(), output_attentions=True)
    assert captured.grid == (11, 11)
    for ours, theirs in zip(captured.attentions, expected.attentions, strict=True):
        close(ours, theirs)
    close(captured.output.last_hidden_state, expected.last_hidden_state)


def test_eager_probabilities_are_kept_in_16_bits() -> None:
    captured = vitviz.capture(vit("eager"), pixels())
    expected = vit("eager")(pixels(), output_attentions=True).attentions
    for block, theirs in enumerate(expected):
        close(captured.attentions[block], theirs)
        close(captured.row(block, "mean"), theirs[:, :, 1:].mean(2))
        close(captured.column(block, (3, 4)), theirs[..., captured.token((3, 4))])
    assert captured.calls[0].nbytes == 2 * expected[0].numel()


def test_packed_probabilities_have_the_stated_errors() -> None:
    shares = torch.logspace(-12, 0, 9999, dtype=torch.float64)
    error = (unpacked(packed(shares)) - shares).abs()
    assert error.max() < 1.6e-5
    assert (error / shares)[shares > 1e-3].max() < 5e-4


TIMM: dict[str, Callable[[], nn.Module]] = {
    "ViT": timm_models.vit,
    "registers": lambda: timm_models.vit(reg_tokens=3, class_token=False, global_pool="avg"),
    "distilled": timm_models.distilled,
    "rotary": lambda: timm_models.eva(**timm_models.ROTARY),
    "relative bias": timm_models.beit,
}


@pytest.mark.parametrize("name", TIMM)
def test_timm_models_match_conversion(name: str) -> None:
    model, images = TIMM[name](), pixels(15, 35)
    captured, trace = vitviz.capture(model, images), vitviz.load(model).trace(images)
    assert (captured.grid, captured.prefix, captured.depth) == (trace.grid, trace.prefix, trace.depth)
    for query in (trace.default_query, "mean", (2, 4)):
        for block in (0, -1):
            close(captured.row(block, query), trace.row(block, query))
            close(captured.column(block, query), trace.column(block, query), 1e-4)
    for options in ({}, {"fuse": "max"}, {"discard": 0.3, "rescale": "sum"}):
        for ours, theirs in zip(vitviz.rollout(captured, **options), vitviz.rollout(trace, **options), strict=True):
            close(ours.values, theirs.values)
    for ours, theirs in zip(vitviz.attention(captured), vitviz.attention(trace), strict=True):
        close(ours.values, theirs.values)
    one = captured.image(1)
    assert one.batch == 1
    close(one.row(1, "mean"), trace.row(1, "mean")[1:])


def test_calls_have_names_and_need_no_hooks() -> None:
    captured = vitviz.capture(timm_models.vit(), pixels(15, 35))
    assert [call.name for call in captured.calls] == [f"blocks.{block}.attn" for block in range(3)]
    assert captured.calls[2].kind == "Attention"
    assert "not between tokens" not in repr(captured)


def torchvision_vit() -> nn.Module:
    torch.manual_seed(2)
    return shaken(TorchvisionViT(44, 11, num_layers=2, num_heads=5, hidden_dim=20, mlp_dim=23, num_classes=7))


@pytest.mark.parametrize("mode", MODES)
def test_torchvision_matches_conversion(mode: str) -> None:
    model = torchvision_vit()
    with MODES[mode]():
        captured = vitviz.capture(model, pixels())
    trace = vitviz.load(model).trace(pixels())
    assert [call.name for call in captured.calls] == [
        f"encoder.layers.encoder_layer_{index}.self_attention" for index in range(2)
    ]
    for ours, theirs in zip(captured.attentions, trace.attentions, strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention_matches_its_weights(need_weights: bool, mode: str, grad: bool) -> None:
    torch.manual_seed(3)
    attention, tokens = nn.MultiheadAttention(12, 3, batch_first=True).eval(), torch.randn(2, 5, 12)
    padding = torch.tensor([[False] * 5, [False, False, True, False, True]])
    with MODES[mode]():
        captured = vitviz.capture(
            attention, *[tokens] * 3, key_padding_mask=padding, need_weights=need_weights, grad=grad
        )
    output, weights = attention(*[tokens] * 3, key_padding_mask=padding, average_attn_weights=False)
    close(captured.calls[0].attentions, weights)
    close(captured.output[0], output)
    if grad:  # the weights lie in the graph of the output
        (slope,) = torch.autograd.grad(captured.output[0].square().sum(), [captured.calls[0].attentions])
        assert slope.shape == weights.shape
        assert slope.abs().max() > 0


@pytest.mark.parametrize("mode", MODES)
def test_the_fast_path_of_encoders_is_observed(mode: str) -> None:
    layer = nn.TransformerEncoderLayer(12, 3, 7, batch_first=True)
    encoder, tokens = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 6, 12)
    with MODES[mode]():
        captured = vitviz.capture(encoder, tokens, grid=(2, 3))
        plain = encoder(tokens)
    _, weights = encoder.layers[0].self_attn(*[tokens] * 3, average_attn_weights=False)
    assert [call.name for call in captured.calls] == ["layers.0.self_attn", "layers.1.self_attn"]
    close(captured.attentions[0], weights)
    close(captured.output, plain)


class Calls(nn.Module):
    """Call attention with any arguments."""

    def forward(self, *parts: Tensor, **options: Any) -> Tensor:
        return F.scaled_dot_product_attention(*parts, **options)


def masks() -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield arguments for 7 tokens, and the part of the mask that is kept."""
    keys = torch.ones(2, 1, 1, 7, dtype=torch.bool)
    keys[1, :, :, 4:] = False
    causal = torch.ones(7, 7, dtype=torch.bool).tril()
    generator = torch.Generator().manual_seed(4)
    yield "none", {}, ""
    yield "scale", {"scale": 0.3}, ""
    yield "causal", {"is_causal": True}, "causal"
    yield "keys", {"attn_mask": keys}, "keys"
    yield "expanded keys", {"attn_mask": keys.expand(2, 4, 7, 7)}, "keys"
    yield "written keys", {"attn_mask": torch.where(keys.expand(2, 4, 7, 7), 0.0, -torch.inf)}, "keys"
    yield "causal pairs", {"attn_mask": causal}, "causal"
    yield "causal pairs of floats", {"attn_mask": torch.where(causal, 0.0, torch.finfo().min)}, "causal"
    yield "causal pairs and keys", {"attn_mask": causal & keys}, "causal and keys"
    yield "pairs", {"attn_mask": torch.randn(1, 4, 7, 7, generator=generator)}, "pairs"
    yield "pairs of bools", {"attn_mask": (torch.rand(7, 7, generator=generator) < 0.7) | torch.eye(7).bool()}, "pairs"


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("options", "kept"), [pytest.param(*rest, id=name) for name, *rest in masks()])
def test_masks_match_the_written_out_product(options: dict[str, Any], kept: str, shared: bool, grad: bool) -> None:
    generator = torch.Generator().manual_seed(6)
    query = torch.randn(2, 4, 7, 5, generator=generator)
    key, value = torch.randn(2, 2, 2 if shared else 4, 7, 5, generator=generator)
    captured = vitviz.capture(Calls().eval(), query, key, value, **options, enable_gqa=shared, grad=grad)
    (call,) = captured.calls
    logits = query @ key.repeat_interleave(2 if shared else 1, 1).mT * options.get("scale", 5**-0.5)
    mask = torch.ones(7, 7).tril().bool() if options.get("is_causal") else options.get("attn_mask", torch.zeros(1))
    expected = (logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask).softmax(-1)
    close(call.attentions, expected)
    close(call.row(3), expected[:, :, 3])
    close(call.column(2), expected[..., 2])
    close(call.open().propagate(torch.rand(2, 7).softmax(1)).sum(-1), torch.ones(2, 4))
    if not grad:
        parts = {"causal": call.mask.causal, "keys": call.mask.keys is not None, "pairs": call.mask.pairs is not None}
        assert " and ".join(name for name, used in parts.items() if used) == kept
        assert call.keys is not None
        assert call.keys.shape[1] == (2 if shared else 4)


def test_rows_without_keys_are_zero() -> None:
    parts, mask = torch.randn(3, 1, 2, 3, 4).unbind(), torch.eye(3, dtype=torch.bool)
    mask[1, 1] = False
    for grad in (False, True):
        call = vitviz.capture(Calls().eval(), *parts, attn_mask=mask, grad=grad).calls[0]
        close(call.attentions[0, 0], mask.float())
        close(call.column(1)[0, 0], torch.zeros(3))


def test_probabilities_lie_in_the_graph_of_frozen_models() -> None:
    model = timm_models.vit().requires_grad_(False)
    captured, plain = vitviz.capture(model, pixels(15, 35), grad=True), vitviz.capture(model, pixels(15, 35))
    score = captured.output[:, 3].sum()
    gradients = torch.autograd.grad(score, list(captured.attentions))
    trace = vitviz.load(model).trace(pixels(15, 35), grad=True)
    assert trace.logits is not None
    expected = torch.autograd.grad(trace.logits[:, 3].sum(), list(trace.attentions))
    for block in range(3):
        close(captured.attentions[block], plain.attentions[block])
        close(gradients[block], expected[block])


def test_the_module_is_unchanged() -> None:
    model = timm_models.vit(attn_drop_rate=0.3)
    model.blocks[1].mlp.train()  # a mode of one part
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes, state = [part.training for part in model.modules()], torch.get_rng_state()
    for grad in (False, True):
        vitviz.capture(model, pixels(15, 35), grad=grad)
    assert [part.training for part in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert torch.backends.mha.get_fastpath_enabled()


def test_own_precision_is_kept() -> None:
    model = timm_models.vit().bfloat16()
    captured = vitviz.capture(model, pixels(15, 35).bfloat16())
    assert captured.calls[0].queries is not None
    assert captured.calls[0].queries.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        half = vitviz.capture(timm_models.vit(), pixels(15, 35))
    assert half.calls[0].queries is not None
    assert half.calls[0].queries.dtype == torch.bfloat16
    close(half.attentions[0].sum(-1), torch.ones(2, 5, 22))


def test_memory_grows_with_the_number_of_tokens() -> None:
    model = timm_models.vit()
    small, large = (vitviz.capture(model, pixels(15, 35 * times)).nbytes for times in (1, 4))
    assert large < 4 * small


class Passing(nn.Module):
    """Keep a weak reference to a tensor that only attention reads."""

    def forward(self, tokens: Tensor) -> Tensor:
        doubled = 2 * tokens
        self.doubled = weakref.ref(doubled)
        return F.scaled_dot_product_attention(doubled, doubled, doubled)


def test_tensors_of_the_module_are_freed_without_the_garbage_collector() -> None:
    module = Passing().eval()
    gc.disable()
    try:
        captured = vitviz.capture(module, torch.randn(1, 2, 7, 5))
        assert module.doubled() is None
    finally:
        gc.enable()
    assert captured.nbytes == 4 * (2 * 2 * 7 * 5 + 2 * 7)


class Cross(nn.Module):
    """Attend between channels, from two queries, and between tokens; then choose experts by a softmax."""

    def forward(self, tokens: Tensor) -> Tensor:
        channels = (tokens.mT @ tokens).softmax(-1)
        F.scaled_dot_product_attention(tokens[:, :2], tokens, tokens)
        tokens.softmax(-1)
        tokens[:, 0].softmax(-1)
        return F.scaled_dot_product_attention(tokens, tokens, tokens @ channels)


def test_calls_between_other_things_are_listed_and_not_drawn() -> None:
    captured = vitviz.capture(Cross().eval(), torch.randn(2, 7, 5), grid=(2, 3), prefix=["CLS"])
    assert [call.shape for call in captured.calls] == [(2, 1, 5, 5), (2, 1, 2, 7), (2, 1, 7, 5), (2, 1, 7, 7)]
    assert captured.between == (3,)
    assert repr(captured).count("not between tokens") == 3
    assert captured.row(0, (1, 2)).shape == (2, 1, 7)
    with pytest.raises(vitviz.VitvizError, match="1 block between 6 or 7 tokens"):
        captured.block(1)


def test_xcit_has_no_attention_between_tokens() -> None:
    from timm.models.xcit import Xcit

    model = shaken(Xcit(img_size=32, patch_size=8, embed_dim=20, depth=2, num_heads=5, cls_attn_layers=1))
    captured = vitviz.capture(model, pixels(32, 32), grid=(4, 4), prefix=["CLS"])
    assert captured.depth == 0
    assert {call.kind for call in captured.calls} == {"XCA", "ClassAttn"}
    with pytest.raises(vitviz.VitvizError, match="got none among 3 calls"):
        vitviz.attention(captured)


def test_unknown_classes_ask_for_the_grid() -> None:
    captured = vitviz.capture(Cross().eval(), torch.randn(2, 7, 5))
    assert captured.calls[-1].row(3).shape == (2, 1, 7)
    with pytest.raises(CaptureError, match=r"Pass grid=\(rows, columns\)"):
        captured.row(0, (1, 2))


def test_compiled_modules_run_uncompiled() -> None:
    model = timm_models.vit()
    compiled = torch.compile(model, backend="eager")
    close(vitviz.capture(compiled, pixels(15, 35)).attentions[1], vitviz.capture(model, pixels(15, 35)).attentions[1])
    model.blocks[1].compile(backend="eager")
    assert len(vitviz.capture(model, pixels(15, 35)).calls) == 3


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.TransformerEncoderLayer(12, 3, batch_first=True), "Call module.eval()"),
        (torch.jit.trace(nn.Linear(12, 3).eval(), torch.zeros(1, 12)), "the module from which it was made"),
        (nn.Linear(12, 3).eval(), "called neither"),
    ],
    ids=["training", "scripted", "without attention"],
)
def test_what_cannot_be_captured_is_refused(module: nn.Module, words: str) -> None:
    with pytest.raises(CaptureError) as error:
        vitviz.capture(module, torch.zeros(1, 5, 12))
    assert words in str(error.value)


@pytest.mark.parametrize("grad", [False, True])
def test_what_does_not_fit_into_memory_is_refused_before_it_runs(grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "address_bytes", lambda: 50 * 2**20)
    parts = torch.zeros(3, 1, 1, 4096 if grad else 2**21, 8).unbind()
    with pytest.raises(CaptureError, match="grad=False" if grad else "Use a smaller input"):
        vitviz.capture(Calls().eval(), *parts, grad=grad)


def language_model(attention: str) -> nn.Module:
    text = {"model_type": "llama", "vocab_size": 40, "num_key_value_heads": 1, "pad_token_id": 0}
    vision = SIZES | {"image_size": 32, "patch_size": 4}
    config = hf.SmolVLMConfig(text_config=SIZES | text, vision_config=vision, image_token_id=39, scale_factor=2)
    return of_transformers(hf.SmolVLMForConditionalGeneration, config, attention)


def test_the_decoder_of_a_language_model_matches_eager() -> None:
    inputs = {"input_ids": torch.tensor([[1, 2] + [39] * 16 + [3, 4, 5]]), "pixel_values": pixels(32, 32)[None, :1]}
    captured = vitviz.capture(language_model("sdpa"), **inputs, grid=(8, 8))
    expected = language_model("eager")(**inputs, output_attentions=True)
    text = [call for call in captured.calls if "text_model" in call.name]
    for call, theirs in zip(text, expected.attentions, strict=True):
        close(call.attentions, theirs)
        assert call.mask.causal
        assert call.mask.pairs is None
    assert captured.depth == len(captured.calls) - len(text) == 3  # of the vision model
    close(captured.output.logits, expected.logits)


def detector(attention: str) -> nn.Module:
    torch.manual_seed(8)
    backbone = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 20], depths=[1, 1], out_features=["stage2"])
    layers = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 9, "decoder_ffn_dim": 9, "num_queries": 7}
    heads = {"encoder_attention_heads": 5, "decoder_attention_heads": 5, "d_model": 20}
    own = {"use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False}
    model: Any = hf.DetrForObjectDetection(hf.DetrConfig(backbone_config=backbone, **own, **layers, **heads)).eval()
    if attention == "eager":  # else the default, because the backbone has no attention
        model.set_attn_implementation(attention)
    return model


def test_a_detector_matches_eager() -> None:
    captured = vitviz.capture(detector("sdpa"), pixels(24, 40), grid=(3, 5))
    expected = detector("eager")(pixels(24, 40), output_attentions=True)
    cross = [call for call in captured.calls if call.name.endswith("encoder_attn")]
    for ours, theirs in zip(captured.attentions, expected.encoder_attentions, strict=True):
        close(ours, theirs)
    for call, theirs in zip(cross, expected.cross_attentions, strict=True):
        close(call.attentions, theirs)
        close(call.column(3), theirs[..., 3])
