"""Open modules that are not converted: they run as they are, and their attention is captured."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn

from vitviz.errors import VitvizError
from vitviz.extras import extra
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.edits import Edits
from vitviz.model.vit import Pretrained, ViT
from vitviz.model.windows import Windows
from vitviz.weights.capture import capture
from vitviz.weights.captured import Captured, CaptureError
from vitviz.weights.checks import CONFIG, ConvertError, attach, read_json
from vitviz.weights.classifier import number_classes
from vitviz.weights.from_timm import object_timm
from vitviz.weights.given import read_preprocess
from vitviz.weights.naming import CONVENTIONS
from vitviz.weights.objects import no_progress_bars
from vitviz.weights.tokens import is_known, size_of, tokens_of
from vitviz.weights.transformers_folder import load_transformers_folder, read_preprocessor


class NotConvertedError(CaptureError, AttributeError):
    """Raised for what only a converted model can compute."""


@dataclass(frozen=True, kw_only=True)
class CapturedConfig(ViTConfig):
    """Sizes of a captured module, as far as they can be observed; of heads and widths, those of the first block.

    Args:
        prefix_names: names of the tokens in front of the patches.
        pools: number of attentions after the last block that pool the tokens.
        features: width of the output of a module without a classifier.
        dense: whether a call keeps numbers for all pairs of tokens.
    """

    prefix_names: tuple[str, ...] = ()
    pools: int = 0
    features: int = 1
    dense: bool = False

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return the names of the tokens in front of the patches."""
        return self.prefix_names

    @property
    def pool_attentions(self) -> int:
        """Return the number of attentions that pool the tokens."""
        return self.pools

    @property
    def feature_width(self) -> int:
        """Return the width of the output."""
        return self.classes or self.features

    @property
    def keeps_queries(self) -> bool:
        """Return whether queries and keys are kept, because they cannot be computed again."""
        return True

    def query_width(self, tokens: int) -> int:
        """Return the width of a head's queries and keys, or of its rows of numbers for all pairs."""
        return self.head_size + (tokens if self.dense else 0)


class CapturedViT(ViT):
    """A module that runs as it is, with the methods of a `ViT` that need only its attention and its output.

    Attributes:
        module: the module, which is not copied; its mode is not changed.
        reason: why it was not converted.
    """

    removes_patches = False

    def __init__(self, module: nn.Module, config: CapturedConfig, reason: str) -> None:
        nn.Module.__init__(self)
        self.module, self.config, self.reason = module, config, reason
        self.pretrained: Pretrained | None = None
        self.text_source = ""

    def __getattr__(self, name: str) -> Any:
        """Return a part of the module; parts of a converted model are missing."""
        if name == "head":  # whether there is a classifier
            return self.module if self.config.classes else None
        if name in _PARTS:
            self.refuse()
        return super().__getattr__(name)

    def refuse(self) -> NoReturn:
        """Raise an error for what needs a converted model."""
        raise NotConvertedError(
            f"Expected a converted model, got {type(self.module).__name__}, which runs as it is, so that only its "
            "attention and its output are known. Use attention, rollout, gradient methods of attention, or methods "
            f"that change the photograph. It was not converted: {self.reason}."
        )

    def train(self, mode: bool = True) -> "CapturedViT":
        """Set the mode, but leave the module in its own."""
        self.training = mode
        return self

    def forward(self, images: Tensor, edits: Edits | None = None) -> Tensor:
        """Run the module: (B, channels, H, W) -> logits (B, C), or features (B, F) without a classifier."""
        if edits:
            self.refuse()
        self.check(images)
        return _logits(self.module(images))

    def layouts(self, grid: tuple[int, int]) -> tuple[Windows, ...]:
        """Return the windows of each block; empty unless the module has windows."""
        size = (side * self.config.patch_size for side in grid)
        places = tokens_of(self.module, [next(self.module.parameters()).new_empty(1, self.config.channels, *size)])
        return () if places is None else places.layouts

    def features(self, images: Tensor) -> Tensor:
        """Return the features of a module without a classifier: (B, channels, H, W) -> (B, F)."""
        if self.config.classes:
            self.refuse()
        return self.forward(images)

    def trace(self, images: Tensor, *, grad: bool = False, **changes: Any) -> Captured:  # type: ignore[override]
        """Run the module and return its attention; with `grad`, in the autograd graph.

        Other arguments of `ViT.trace`, a choice of blocks and edits, are refused.
        """
        if any(change is not None for change in changes.values()):
            self.refuse()
        self.check(images)
        captured = capture(self.module, images, grad=grad)
        return replace(captured, output=_logits(captured.output), classifies=self.config.classes > 0)

    @property
    def distilled(self) -> bool:
        """Return whether the logits depend on a distillation token."""
        return "distillation" in self.config.prefix


_PARTS = {
    *("patch_embed", "cls_token", "dist_token", "reg_token", "pos_embed", "mid_pos_embed", "dropout", "blocks"),
    *("norm_pre", "norm", "attn_pool", "projection", "head_dist"),
}


def _logits(output: Any) -> Tensor:
    """Return the logits or features (B, C) of a module's output."""
    for name in ("logits", "pooler_output", "last_hidden_state"):
        if isinstance(getattr(output, name, None), Tensor):
            output = getattr(output, name)
    output = output[0] if isinstance(output, tuple | list) else output
    if not isinstance(output, Tensor) or output.ndim < 2:
        raise CaptureError(f"Expected a module that returns a tensor, got {type(output).__name__}. Use vitviz.capture.")
    return output if output.ndim == 2 else output.flatten(1, -2).mean(1)


def open_captured(module: nn.Module, refusal: VitvizError, preprocess: Any = None) -> CapturedViT:
    """Return a module of a known class that runs as it is, after its conversion was refused.

    Args:
        module: of a class in `vitviz.weights.tokens`, in eval mode.
        refusal: why it was not converted.
        preprocess: see `given.read_preprocess`; by default that of its `pretrained_cfg`, or ImageNet's.

    Raises:
        VitvizError: `refusal`, for a module of another class, or without attention between tokens.
    """
    size, weight = size_of(module), next(module.parameters(), None)
    if size is None or weight is None or not weight.is_floating_point():
        raise refusal
    try:
        captured, places_fit = _probed(module, weight.new_zeros(1, 3, *size))
    except Exception as error:  # the module's own error
        raise refusal from error
    if not places_fit:
        raise refusal
    model = CapturedViT(module, _config(module, captured, size), str(refusal).rstrip("."))
    attach(model, _about(model, preprocess))
    warnings.warn(f"The model runs as it is, and its attention is captured. {refusal}", stacklevel=3)
    return model


def _probed(module: nn.Module, images: Tensor) -> tuple[Captured, bool]:
    """Run a module on a gray image, and return its attention, and whether its tokens lie where its class says.

    All calls of a block's class must be between tokens, and a change of one patch must change that patch's token most.
    """
    captured = capture(module, images)
    if captured.places is None or not captured.depth:
        return captured, False
    kinds = {captured.calls[index].kind for index in captured.between}
    if any(call.kind in kinds for index, call in enumerate(captured.calls) if index not in captured.between):
        return captured, False
    (rows, columns), side, call = captured.grid, captured.patch_size, captured.call(0)
    for place in {(0, columns - 1), (rows - 1, 0), (rows // 2, columns // 2)}:
        changed = images.clone()
        row, column = (slice(side * index, side * (index + 1)) for index in place)
        changed[..., row, column] += torch.linspace(-2, 2, side, dtype=images.dtype, device=images.device)
        other = capture(module, changed).call(0)
        # The keys, or the columns of the attention to them.
        before, after = (part.attentions.mT if part.keys is None else part.keys for part in (call, other))
        differences = (after.float() - before.float()).abs().sum((1, 3))  # of each token, (1, N) or (W, M)
        if captured.layouts:
            differences = captured.layouts[0].join(differences)
        if int(differences.argmax()) != captured.token(place, 0):
            return captured, False
    return captured, True


def load_transformers(folder: Path, *, name: str | None = None, licence: str = "unknown") -> ViT:
    """Load a folder as `load_transformers_folder` does; if that is refused, its model of transformers runs as it is."""
    try:
        return load_transformers_folder(folder, name=name, licence=licence)
    except ConvertError as refusal:
        title, preprocessor = name or folder.resolve().name, read_preprocessor(folder)
        model = open_captured(_built(folder, refusal), refusal, preprocessor)
        assert model.pretrained is not None
        source = f"transformers folder {title}"
        model.pretrained = replace(model.pretrained, name=title, licence=licence, source=source)
        return model


def _built(folder: Path, refusal: ConvertError) -> nn.Module:
    """Return the model of a folder, of a class of transformers, with exactly its weights; else raise `refusal`."""
    settings = read_json(folder / CONFIG)
    (architecture,) = settings.get("architectures") or [""]
    if not is_known(settings.get("model_type")):
        raise refusal
    with extra("convert"):
        import transformers
    kind: Any = getattr(transformers, str(architecture), None)
    if kind is None:
        raise refusal
    try:
        with no_progress_bars():
            module, loading = kind.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    except Exception as error:  # the library's own error
        raise refusal from error
    if any(loading.get(keys) for keys in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        raise refusal
    return cast(nn.Module, module.eval())


def _config(module: nn.Module, captured: Captured, size: tuple[int, int]) -> CapturedConfig:
    output, call = _logits(captured.output), captured.call(0)
    classes = output.shape[1] if _classifies(module, captured.output) else 0
    width = captured.head_width or 1  # 0 if only the softmax is observed
    assert captured.places is not None
    return CapturedConfig(
        image_size=size,
        patch_size=captured.patch_size,
        width=width * call.shape[1],
        depth=captured.depth,
        heads=call.shape[1],
        classes=classes,
        class_token="CLS" in captured.prefix,
        pooling="attention" if captured.pooling else captured.places.pooling,
        pool_heads=call.shape[1],
        prefix_names=captured.prefix,
        pools=len(captured.pooling),
        features=output.shape[1],
        dense=any(part.probabilities is not None or part.mask.pairs is not None for part in captured.calls),
    )


def _classifies(module: nn.Module, output: Any) -> bool:
    """Return whether a module's output is logits."""
    if hasattr(output, "keys"):  # of transformers
        return "logits" in output
    return getattr(module, "num_classes", 1) > 0


def _about(model: CapturedViT, preprocess: Any) -> Pretrained:
    """Return labels and preprocessing, with what is assumed."""
    config, module = model.config, cast(Any, model.module)
    own = None if preprocess is None else read_preprocess(preprocess, config)
    about = object_timm(module, config, own)
    if about is None:
        usual: Preprocess = CONVENTIONS["imagenet"].shaped(*config.image_size)
        labels, words = number_classes(config.classes)
        names = getattr(getattr(module, "config", None), "id2label", None) or {}
        if config.classes and len(names) == config.classes:
            labels, words = tuple(names[index] for index in range(config.classes)), ""
        assumed = () if own else (f"preprocessing: {usual.describe()}",)
        about = Pretrained(
            name=type(module).__name__,
            preprocess=own or usual,
            labels=labels,
            source="model in memory",
            assumed=(*assumed, *([words] if labels and words else [])),
        )
    return replace(about, assumed=(*about.assumed, f"captured: the model runs as it is. {model.reason}"))
