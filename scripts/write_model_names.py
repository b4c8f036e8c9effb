"""Write which names of timm, torchvision and transformers open into docs/models.md: make test-names.

Names that open are built with two blocks (per stage) and random weights, and their outputs and attention are compared
with the library's; names whose parts are the same share a run. `--settings` only reads the settings, without a
comparison.
"""

import argparse
import dataclasses
import importlib
import math
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from vitviz.images.torchvision_import import import_torchvision
from vitviz.model.config import ViTConfig
from vitviz.model.trace import AttentionTrace
from vitviz.model.vit import ViT
from vitviz.weights.captured import Captured
from vitviz.weights.captured_vit import open_captured
from vitviz.weights.checks import CheckpointError
from vitviz.weights.from_timm import config_of, convert_timm
from vitviz.weights.from_torchvision import BUILDERS, convert_torchvision
from vitviz.weights.from_transformers import read_settings
from vitviz.weights.objects import convert_transformers_object
from vitviz.weights.tokens import is_known, size_of
from vitviz.weights.verify import VerifyError

# The names that look like Vision Transformers: modules of timm; a pattern of names in torchvision; and in transformers
# the model types with an image model whose settings have patches and heads.
MODULES = (
    "vision_transformer deit beit eva vision_transformer_relpos naflexvit cait vision_transformer_sam "
    "vision_transformer_hybrid qwen3_vit gemma4_vit deepseek_vit swin_transformer swin_transformer_v2 "
    "swin_transformer_v2_cr hiera hieradet_sam2 mvitv2 pvt_v2 pit twins nest tnt convit crossvit volo xcit levit davit "
    "maxxvit tiny_vit gcvit coat"
)
TORCHVISION = re.compile("vit_|swin_|maxvit_")
MAPPINGS = "MODEL_FOR_IMAGE_MAPPING_NAMES", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "MODEL_MAPPING_NAMES"

TOLERANCE = 1e-5  # of attention; of outputs in proportion to the largest
ROUNDING = 1.5e-5  # rounding error of probabilities that are stored in 16 bits
MAX_WIDTH, HEADS = 1_024, 8  # wider models are compared with this number of heads
STAGES = (2, 2, 2, 2)  # blocks of each stage of a windowed model
EQUAL, DIFFERS = "equal", "it differs:"
START, END = "<!-- {} -->\n", "<!-- end -->\n"
ERRORS = TypeError, RuntimeError, AssertionError, ValueError, IndexError, AttributeError, KeyError


def build(name: str, device: str = "meta") -> nn.Module:
    """Return a model of timm, with two blocks if timm allows it; for a comparison, wide models are made narrower."""
    import timm

    def attempt(changes: dict[str, Any], device: str) -> Any:
        with suppress(*ERRORS), torch.device(device):
            return timm.create_model(name, pretrained=False, **changes)

    two: dict[str, Any] = {"depth": 2}
    for sizes in (two, two | {"num_kv_heads": HEADS // 2}, {"depths": STAGES}, {}):
        if (built := attempt(sizes, "meta")) is None:
            continue
        if device == "meta":
            return built
        width = getattr(built, "embed_dim", 0)
        if hasattr(built, "blocks") and width > MAX_WIDTH:  # in other models the width may be a tuple
            sizes |= {"embed_dim": width // built.blocks[0].attn.num_heads * HEADS, "num_heads": HEADS}
        return attempt(sizes, device)
    raise AssertionError(f"timm cannot build {name}")


def reason(error: CheckpointError) -> str:
    """Return why a model is refused."""
    why = re.sub(r"^.*(?:unsupported timm model(?: \(\w+\))?: |got model_type '[\w-]+': )", "", str(error)).rstrip(".")
    return re.sub(r"^it has a (\w+) where only .*", r"\1 is another architecture", why)


# --- comparison


def outcome(compare: Callable[..., None], name: str, *arguments: Any) -> str:
    """Return "equal", why a model is refused, or how it differs."""
    print(f"comparing {name}", flush=True)
    try:
        compare(name, *arguments)
    except (VerifyError, AssertionError) as error:
        print(error, flush=True)
        return f"{DIFFERS} {name}"
    except CheckpointError as error:
        return reason(error)
    return EQUAL


@torch.no_grad()
def shaken(model: nn.Module) -> Any:
    """Add noise to all parameters, half of which are initially zeros or ones, so that each one matters."""
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape) * 0.02)
    return model.eval()


def normalized(model: nn.Module) -> Any:
    """Set the statistics of batch norms to those of random images, else images hardly matter after a few layers."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    if norms and (size := size_of(model)) is not None:
        for norm in norms:
            norm.momentum = None  # the statistics of one batch
        model.train()(torch.randn(2, 3, *size))
    return model.eval()


def opened(convert: Callable[[nn.Module], ViT], model: nn.Module) -> ViT:
    """Convert a model, or capture it if its conversion is refused."""
    try:
        return convert(model)
    except CheckpointError as refusal:
        if isinstance(refusal, VerifyError):
            raise
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return open_captured(model, refusal, "half")


@contextmanager
def softmaxes(trace: Captured) -> Iterator[list[Tensor]]:
    """Record the results of softmaxes with the shapes of attention calls; the library calls no fused kernel."""
    original, seen = Tensor.softmax, list[Tensor]()
    sizes = {(*call.shape[2:], math.prod(call.shape)) for call in (trace.calls[index] for index in trace.between)}

    def softmax(logits: Tensor, *args: Any, **named: Any) -> Tensor:
        result = original(logits, *args, **named)
        if (*result.shape[-2:], result.numel()) in sizes:
            seen.append(result if result.ndim < 5 else result.flatten(0, -4))
        return result

    with mock.patch.object(Tensor, "softmax", softmax):
        yield seen


def check(
    ours: ViT,
    images: Tensor,
    trace: AttentionTrace,
    tokens: Tensor,
    outputs: Tensor | None,
    attentions: list[Tensor],
) -> None:
    """Compare tokens after the last norm, outputs and attention with another library's.

    Of windowed models, the attention in windows is compared: of all blocks, or of the last block of each stage.

    Raises:
        AssertionError: if they differ.
    """
    tolerance = TOLERANCE
    if isinstance(trace, Captured):
        own = [trace.calls[index].attentions for index in trace.between]
        step = max(1, len(own) // max(1, len(attentions)))  # transformers returns the last block of each stage
        own = own[step - 1 :: step]
        tolerance += ROUNDING * any(call.probabilities is not None for call in trace.calls)
    else:
        own = [block.attn.talk(attention) for block, attention in zip(ours.blocks, trace.attentions, strict=True)]
    count = len(attentions) // len(own)  # attentions of a block that we show as one
    assert len(attentions) == count * len(own), "another number of attentions"
    theirs = [torch.cat(attentions[at : at + count], dim=1) for at in range(0, len(attentions), count)]
    if tokens.ndim == 4 and tokens.shape[1] == trace.tokens.shape[2]:  # a map of features, channels first
        tokens = tokens.flatten(2).mT
    if any(each.ndim != 4 for each in theirs):  # heads are in the batch (SAM), or before windows (Hiera)
        theirs = [each.reshape(attention.shape) for each, attention in zip(theirs, own, strict=True)]
    for attention, reference in zip(own, theirs, strict=True):
        torch.testing.assert_close(attention, reference, rtol=0, atol=tolerance)
    last = trace.tokens
    if ours.config.pool.blocks:  # CaiT normalises its class token, which is in front, together with the patches
        last, tokens = ours.norm(last), tokens[:, 1:]
    if outputs is not None and outputs.ndim > 2:  # of a tower
        outputs = outputs.flatten(1, -2).mean(1)
    if tokens.numel() != last.numel():  # of a tower that merges its tokens at the end
        tokens = last
    pairs = [(last, tokens.reshape_as(last))] + ([] if outputs is None else [(ours(images), outputs)])
    for result, expected in pairs:
        torch.testing.assert_close(result, expected, rtol=0, atol=TOLERANCE * max(1.0, float(expected.abs().max())))


def pixels(config: ViTConfig) -> Tensor:
    """Return a random image of the model's input size."""
    return torch.randn(1, config.channels, *config.image_size)


@torch.no_grad()
def compare_timm(name: str) -> None:
    """Compare a name with timm; raise `AssertionError` if they differ."""
    theirs = shaken(build(name, "cpu"))
    ours, attentions = opened(convert_timm, theirs), list[Tensor]()
    images = pixels(ours.config)
    trace = ours.trace(images)
    for module in theirs.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    if isinstance(trace, Captured):
        with softmaxes(trace) as given:
            tokens = theirs.forward_features(images)
        check(ours, images, trace, tokens, theirs(images), given)
        return
    for module in getattr(theirs, "blocks", theirs).modules():
        if hasattr(module, "attn_drop"):
            module.attn_drop.register_forward_hook(lambda _module, _given, out: attentions.append(out))
    tokens = theirs.forward_features(images)
    given, attentions[:] = attentions[: len(attentions)], []
    check(ours, images, trace, tokens, theirs(images), given)


@torch.no_grad()
def compare_torchvision(name: str) -> None:
    """Compare a name with torchvision; raise `AssertionError` if they differ."""
    import torchvision.models

    theirs = getattr(torchvision.models, name)()
    if size_of(theirs) is not None and not hasattr(theirs, "encoder"):
        ours = opened(convert_torchvision, shaken(theirs))
        trace = ours.trace(images := pixels(ours.config))
        with softmaxes(trace) as given:
            outputs = theirs(images)
        check(ours, images, trace, trace.tokens, outputs, given)
        return
    theirs.encoder.layers = theirs.encoder.layers[:2]
    ours = convert_torchvision(shaken(theirs))
    images, attentions = pixels(ours.config), []
    for layer in theirs.encoder.layers:
        attention = layer.self_attention
        layer.ln_1.register_forward_hook(
            lambda _module, _given, out, own=attention: attentions.append(
                own(out, out, out, average_attn_weights=False)[1]
            )
        )
    outputs = theirs(images)
    check(ours, images, trace := ours.trace(images), trace.tokens, outputs, attentions)


@torch.no_grad()
def compare_transformers(kind: str, config: Any) -> None:
    """Compare a class with transformers; raise `AssertionError` if they differ."""
    import transformers

    theirs = normalized(shaken(getattr(transformers, kind)._from_config(config, attn_implementation="eager")))
    ours = opened(convert_transformers_object, theirs)
    images = pixels(ours.config)
    trace = ours.trace(images)
    more = {"noise": torch.arange(ours.config.grid[0] * ours.config.grid[1])[None].float()} if "MAE" in kind else {}
    given = images
    if "Siglip2" in kind:  # NaFlex takes flattened patches (B, gh * gw, p * p * 3)
        (rows, columns), side = ours.config.grid, ours.config.patch_size
        cut = images.unflatten(3, (columns, side)).unflatten(2, (rows, side))
        given = cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        more = {"spatial_shapes": torch.tensor([[rows, columns]]), "pixel_attention_mask": torch.ones(given.shape[:2])}
    if ours.config.frames > 1:  # pictures of tubes to frames: (B, C, gh p, W) -> (B, T, 3, H, W)
        given = images.unflatten(2, (ours.config.frames, -1)).unflatten(1, (-1, 3))
        given = given.permute(0, 3, 1, 2, 4, 5).flatten(1, 2)
    with softmaxes(trace) if isinstance(trace, Captured) else nullcontext(list[Tensor]()) as seen:
        out = theirs(given, output_attentions=True, output_hidden_states=True, **more)
    tokens = getattr(out, "last_hidden_state", None)
    if tokens is None or kind == "Swin2SRModel":  # classifiers return logits only; here, a convolution follows
        tokens = trace.tokens
    logits = out.get("logits") if "Classification" in kind else None  # MAE's are pixels
    attentions = list(out.get("attentions") or seen)  # MobileViT returns none
    if kind == "YolosModel":  # its detection tokens follow the patches
        order, count = torch.arange(tokens.shape[1]), ours.config.registers
        order = torch.cat([order[:1], order[-count:], order[1:-count]])
        tokens, attentions = tokens[:, order], [each[..., order, :][..., order] for each in attentions]
    check(ours, images, trace, tokens, logits, attentions)


# --- tables


def signature(model: nn.Module, config: ViTConfig | None) -> tuple[Any, ...]:
    """Return what names must have in common to share a run: settings and classes of parts, but not sizes."""
    sizes = {"image_size", "patch_size", "width", "depth", "heads", "head_width", "mlp_width", "classes", "channels"}
    sizes |= {"table.grid", "rotary.grid", "layer_scale", "pool.heads", "projection"}
    fields = dataclasses.asdict(config or ViTConfig())
    settings = {name: value for name, value in fields.items() if not isinstance(value, dict)}
    parts = {name: value for name, value in fields.items() if isinstance(value, dict)}
    settings |= {f"{part}.{name}": value for part, inner in parts.items() for name, value in inner.items()}
    kinds = {f"{type(module).__module__}.{type(module).__name__}" for module in model.modules()}
    scaled = config is not None and config.layer_scale is not None
    return (scaled, *((name, value) for name, value in settings.items() if name not in sizes), *sorted(kinds))


def timm_results(compare: bool) -> Iterator[tuple[str, str, str]]:
    """Yield family, name and result of timm's names: "equal", why it is refused, or that it differs."""
    import timm

    done: dict[tuple[Any, ...], str] = {}
    for family in MODULES.split():
        for name in timm.list_models(module=family):
            built = build(name)
            config = None
            try:
                config, _ = config_of(built)
            except CheckpointError as error:
                if size_of(built) is None:
                    yield family, name, reason(error)
                    continue
            key = signature(built, config)
            if compare and key not in done:
                done[key] = outcome(compare_timm, name)
            yield family, name, done.get(key, EQUAL)


def torchvision_results(compare: bool) -> Iterator[tuple[str, str, str]]:
    """Yield the same for torchvision's names."""
    import torchvision.models

    for name in filter(TORCHVISION.match, torchvision.models.list_models()):
        family = "vit" if name.startswith("vit_") else name.partition("_")[0]
        if name not in BUILDERS:
            yield family, name, "it is neither a VisionTransformer nor a SwinTransformer of torchvision"
            continue
        yield family, name, outcome(compare_torchvision, name) if compare else EQUAL


def transformers_results(compare: bool) -> Iterator[tuple[str, str, str]]:
    """Yield model type, class and result of transformers' image models."""
    import transformers

    auto: Any = importlib.import_module("transformers.models.auto.modeling_auto")
    models, classifiers, others = (getattr(auto, name) for name in MAPPINGS)
    kinds: dict[str, list[str]] = defaultdict(list)
    for mapping in (models, {k: v for k, v in others.items() if k.endswith("_vision_model")}, classifiers):
        for family, names in mapping.items():
            kinds[family] += [names] if isinstance(names, str) else names
    for family in sorted({*kinds} & {*transformers.CONFIG_MAPPING}):
        own = transformers.CONFIG_MAPPING[family]
        settings = own().to_dict()
        vision = settings | (settings.get("vision_config") or {})
        if not ("patch_size" in vision and {"num_attention_heads", "num_heads", "n_head"} & {*vision}):
            continue
        for kind in dict.fromkeys(kinds[family]):
            try:
                read_settings(settings | {"architectures": [kind], "model_type": family})
            except CheckpointError as error:
                if not is_known(family):
                    yield family, kind, reason(error)
                    continue
            result = EQUAL
            if compare:
                changed = own()
                inner = getattr(changed, "vision_config", changed)
                if hasattr(inner, "depths"):
                    inner.depths = list(STAGES)
                else:
                    inner.num_hidden_layers = 2
                changed.mask_ratio = 0.0  # MAE then keeps all patches
                result = outcome(compare_transformers, kind, changed)
            yield family, kind, result


def table(results: Iterator[tuple[str, str, str]], heading: str) -> str:
    """Return the table of families: names that open, all names, and the reasons for the others."""
    families: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for family, name, result in results:
        families[family][result].append(name)
    lines, counts = [f"| {heading} | equal | of | refused because |", "|---|---|---|---|"], [0, 0]
    for family, reasons in families.items():
        opened = len(reasons.pop(EQUAL, []))
        why = "; ".join(f"{reason} ({len(names)})" for reason, names in reasons.items())
        total = opened + sum(map(len, reasons.values()))
        counts = [counts[0] + opened, counts[1] + total]
        lines.append(f"| `{family}` | {opened} | {total} | {why} |")
    return "\n".join([*lines, f"| all of these | {counts[0]} | {counts[1]} | |", ""])


LIBRARIES = {
    "names of timm": (timm_results, "family in timm"),
    "names of torchvision": (torchvision_results, "family in torchvision"),
    "names of transformers": (transformers_results, "model type in transformers"),
}


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", action="store_true", help="read the settings only")
    parser.add_argument("--library", choices=LIBRARIES, action="append", help="write this table only")
    chosen = parser.parse_args()
    import_torchvision()
    torch.manual_seed(0)
    path = Path(__file__).parents[1] / "docs" / "models.md"
    for title in chosen.library or LIBRARIES:
        results, heading = LIBRARIES[title]
        new = table(results(not chosen.settings), heading)
        before, start, rest = path.read_text(encoding="utf-8").partition(START.format(title))
        assert start, title
        path.write_text(before + start + new + END + rest.partition(END)[2], encoding="utf-8")
    if DIFFERS in path.read_text(encoding="utf-8"):
        sys.exit(f"Expected equal outputs, got names that differ. {path} lists them.")


if __name__ == "__main__":
    main()
