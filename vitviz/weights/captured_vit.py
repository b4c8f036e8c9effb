"""Open modules that are not converted: they run as they are, and their attention is captured."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitviz.errors import VitvizError, first_line
from vitviz.extras import extra
from vitviz.formatting import abbreviate
from vitviz.images.torchvision_import import import_torchvision
from vitviz.model.config import AttentionPooling, Norms, ViTConfig
from vitviz.model.edits import Edits
from vitviz.model.ops import PLAIN, Attended, Explicit, Ops
from vitviz.model.vit import Pretrained, ViT
from vitviz.outputs import SEVERAL
from vitviz.weights.capture import Observer, as_it_is, capture
from vitviz.weights.captured import Captured, CaptureError
from vitviz.weights.checks import CONFIG, ConvertError, attach, read_json
from vitviz.weights.objects import about_object, bare, quiet_transformers
from vitviz.weights.output import INVERSES, inverse_activation, read_output
from vitviz.weights.parts import LOCK, Parts
from vitviz.weights.tokens import is_known, parts_of, size_of, tokens_of
from vitviz.weights.transformers_folder import load_transformers_folder, read_preprocessor
from vitviz.weights.verify import verified


class NotConvertedError(CaptureError, AttributeError):
    """Raised for what only a converted model can compute."""


@dataclass(frozen=True, kw_only=True)
class CapturedConfig(ViTConfig):
    """Sizes of a captured module, as far as they can be observed; of heads and widths, those of the first block.

    Args:
        prefix_names: names of the tokens in front of the patches.
        pools: number of attentions after the last block that pool the tokens.
        features: width of the classifier's input, or of the output without a classifier.
        dense: whether a call keeps numbers for all pairs of tokens.
        window: number of tokens in the largest attention window; 0 without windows.
        multiple: height and width of images must be multiples of this number of pixels.
    """

    prefix_names: tuple[str, ...] = ()
    pools: int = 0
    features: int = 1
    dense: bool = False
    window: int = 0
    multiple: int = 1

    @property
    def size_multiple(self) -> int:
        """Return the number of pixels that must divide the height and width of an image."""
        return self.multiple

    def pairs(self, tokens: int) -> int:
        """Return the number of query-key pairs of a head in the first block, for N tokens."""
        return tokens * min(tokens, self.window or tokens)

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
        """Return F, the number of features."""
        return self.features

    @property
    def keeps_queries(self) -> bool:
        """Return whether queries and keys are kept, because they cannot be computed again."""
        return True

    def query_width(self, tokens: int) -> int:
        """Return the width of a head's queries and keys, or of its rows of numbers for all pairs."""
        return self.head_size + (min(tokens, self.window or tokens) if self.dense else 0)


class CapturedViT(ViT):
    """A module that runs as it is, with the methods of a `ViT` that need its attention, its tokens and its output.

    Attributes:
        module: the module, which is not copied; its mode is not changed.
        parts: the module's blocks, final norm and classifier.
        attentions, pools: names of the modules that compute the attention of each block, and of the pooling.
        reason: why it was not converted.
        activation: the module's last operation, if it returns probabilities; a key of `INVERSES`.
        bypassed: whether the output depends on the image not only by the tokens between two blocks, such as by the
            convolutions beside MobileViT's blocks and by GCViT's queries. Parts of the module then do not run alone.
    """

    config: CapturedConfig
    removes_patches = False
    activation = ""
    bypassed = False

    def __init__(self, module: nn.Module, config: CapturedConfig, captured: Captured, reason: str) -> None:
        nn.Module.__init__(self)
        self.module, self.config, self.reason = module, config, reason
        self.attentions = tuple(captured.call(block).name for block in range(captured.depth))
        self.pools = tuple(call.name for call in captured.pooling)
        parts = parts_of(module)
        assert parts is not None
        self.parts = parts
        self.pretrained: Pretrained | None = None
        self.text_source = ""
        self.training = False

    def __getattr__(self, name: str) -> Any:
        """Return a part of the module; parts of a converted model are missing."""
        if name == "head":  # whether there is a classifier
            return self.module if self.config.classes else None
        if name == "blocks":
            return tuple(CapturedBlock(self, index) for index in range(self.config.depth))
        if name == "attn_pool":
            return self.classify if self.config.pools else None
        if name == "norm":  # of each token
            return _norm_of(self.module, self.parts)
        if name in _PARTS:
            self.refuse()
        return super().__getattr__(name)

    def refuse(self) -> NoReturn:
        """Raise an error for what needs a converted model."""
        raise NotConvertedError(
            f"Expected a converted model, got {type(self.module).__name__}, which runs as it is, so that only its "
            "attention, the tokens between its blocks, and its output are known. Use attention, rollout, gradient "
            f"methods, the logit lens, or methods that change the photograph. It was not converted: {self.reason}."
        )

    def check_converted(self) -> None:
        """Raise an error: this module is not converted."""
        self.refuse()

    def train(self, mode: bool = True) -> "CapturedViT":
        """Set the mode, but leave the module in its own."""
        self.training = mode
        return self

    def forward(self, images: Tensor, edits: Edits | None = None) -> Tensor:
        """Run the module: (B, channels, H, W) -> logits (B, C), or features (B, F) without a classifier."""
        if edits:
            self.refuse()
        self.check(images)
        with _at_any_size(self.module):
            return self._logits(self.module(images))

    def angles(self, grid: tuple[int, int]) -> Any:
        """Return blank images (1, channels, H, W) with this grid of patches, from which the module takes positions."""
        weight, side = next(self.module.parameters()), self.config.patch_size
        return weight.new_zeros(1, self.config.channels, grid[0] * side, grid[1] * side)

    def last_grid(self, grid: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of patches in the last block, for a grid of patches."""
        places = tokens_of(self.module, [self.angles(grid)])
        return places.layouts[-1].grid if places is not None and places.layouts else grid

    def features(self, images: Tensor) -> Tensor:
        """Return the features, the classifier's input: (B, channels, H, W) -> (B, F)."""
        self.check(images)
        return self.read_out(self._run(self._embedded(images), 0, self._end, images[:1]))

    @property
    def _end(self) -> int:
        return self.config.depth + 1

    def _embedded(self, images: Tensor) -> Tensor:
        with _at_any_size(self.module), self._parts_at(images).recorded() as seen:
            self.module(images)
        return seen[0]

    def _parts_at(self, images: Tensor) -> Parts:
        """Return the parts with the orders of tokens at this image size."""
        places = tokens_of(self.module, [images])
        return self.parts.ordered(places.layouts if places else ())

    def _run(
        self, tokens: Tensor, start: int, stop: int | nn.Module | None, angles: Any = None, ops: Ops = PLAIN
    ) -> Any:
        """Run the module between two points, see `Parts.run`.

        With `Explicit`, the attention matrices are appended to `ops.seen`, as part of the autograd graph.
        """
        if type(ops) not in (Ops, Explicit) or ops.edit is not None:
            self.refuse()
        if self.bypassed:
            raise NotConvertedError(
                f"Expected a module whose blocks run alone, got {type(self.module).__name__}, in which the image also "
                "takes another path. Use attention, rollout, or methods that change the photograph."
            )
        images = self.angles(self.config.grid) if angles is None else angles
        if not self.parts.outputs:  # not known yet
            self._embedded(images)
        if not isinstance(ops, Explicit):
            with _at_any_size(self.module):
                return self._parts_at(images).run(self.module, images, tokens, start, stop)
        with _at_any_size(self.module), as_it_is(True, [tokens]), Observer(self.module, grad=True) as observer:
            result = self._parts_at(images).run(self.module, images, tokens, start, stop)
        names = self.attentions[start:stop] if isinstance(stop, int) else self.pools
        empty = tokens.new_empty(0)
        for call in observer.calls:
            if call.name in names and call.probabilities is not None:
                ops.seen.append(Attended(empty, empty, empty, call.probabilities))
        return result

    def run_from_start(self, tokens: Tensor, angles: Any, *, features: bool = False) -> Tensor:
        """Return the logits, or the features, from the input of the first block: (B, N, D) -> (B, C) or (B, F)."""
        stop = self.parts.head if features else None
        result = self._run(tokens, 0, stop, angles)
        return self._logits(result) if stop is None else result

    def leave(self, index: int, tokens: Tensor, angles: Any, ops: Ops = PLAIN) -> Tensor:  # noqa: ARG002
        """Return the tokens unchanged, because operations between two blocks count as part of the second block."""
        return tokens

    def encode(
        self, tokens: Tensor, angles: Any, edits: Edits | None = None, *, ops: Ops = PLAIN, start: int = 0
    ) -> Tensor:
        """Return the final tokens from the input of block `start`: (B, N, D) -> (B, N, D')."""
        if edits:
            self.refuse()
        final: Tensor = self._run(tokens, start, self._end, angles, ops)
        return final

    def finish(self, tokens: Tensor, ops: Ops = PLAIN, angles: Any = None) -> Tensor:
        """Return the final tokens from the output of the last block: (B, N, D) -> (B, N, D')."""
        final: Tensor = self._run(tokens, self.config.depth, self._end, angles, Ops() if ops.edit is None else ops)
        return final

    def read_out(self, tokens: Tensor, ops: Ops = PLAIN) -> Tensor:
        """Return the features from final tokens: (B, N, D) -> (B, F)."""
        if self.parts.head is None:
            return self.classify(tokens, ops)
        features: Tensor = self._run(tokens, self._end, self.parts.head, None, ops)
        return features

    def classify(self, tokens: Tensor, ops: Ops = PLAIN) -> Tensor:
        """Return the logits of final tokens, or the features without a classifier: (B, N, D) -> (B, C)."""
        return self._logits(self._run(tokens, self._end, None, None, ops))

    def trace(self, images: Tensor, *, grad: bool = False, **changes: Any) -> Captured:  # type: ignore[override]
        """Run the module and return its attention; with `grad`, in the autograd graph.

        Other arguments of `ViT.trace`, a choice of blocks and edits, are refused.
        """
        if any(change is not None for change in changes.values()):
            self.refuse()
        self.check(images)
        with _at_any_size(self.module):
            captured = capture(self.module, images, grad=grad)
        return replace(captured, output=self._logits(captured.output), classifies=self.config.classes > 0)

    def _logits(self, output: Any) -> Tensor:
        """Return the logits or features (B, C) of what the module returned."""
        return INVERSES[self.activation](read_output(output, self.parts))

    @property
    def distilled(self) -> bool:
        """Return whether the logits depend on a distillation token."""
        return "distillation" in self.config.prefix


class CapturedBlock:
    """One block of a module that runs as it is, with the operations between the previous block and this one."""

    def __init__(self, model: CapturedViT, index: int) -> None:
        self._model, self._index = model, index

    def __call__(self, x: Tensor, angles: Any = None, ops: Ops = PLAIN, first: int | None = None) -> Tensor:
        """Run the block: (B, N, D) -> (B, N', D')."""
        tokens: Tensor = self._model._run(x, self._index, self._index + 1, angles, ops)
        return tokens if first is None else tokens[:, :first]

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse access to the operations inside."""
        self._model.refuse()


@contextmanager
def _at_any_size(module: nn.Module) -> Iterator[None]:
    """Let timm's Swin accept images of any size during one run.

    Raises:
        CaptureError: instead of the error with which another module refuses the size.
    """
    settings = {"strict_img_size": False, "dynamic_mask": True}
    own = [(part, name, vars(part)[name]) for part in module.modules() for name in settings if name in vars(part)]
    swin = any(name == "dynamic_mask" for _, name, _ in own)
    with LOCK:
        try:
            for part, name, _ in own if swin else ():
                setattr(part, name, settings[name])
            yield
        except (AssertionError, ValueError) as error:
            if isinstance(error, VitvizError):
                raise
            what = f"Expected images that the module takes, got its error: {str(error).rstrip('.')}. Use its own size."
            raise CaptureError(what) from error
        finally:
            for part, name, value in own:
                setattr(part, name, value)


def _norm_of(module: Any, parts: Parts) -> nn.Module:
    """Return the final norm, or the identity. In timm's models, it may come after pooling (`fc_norm`)."""
    if isinstance(parts.last, nn.Identity):
        norm: nn.Module = getattr(module, "fc_norm", parts.last)
        return norm
    return nn.Identity() if parts.last is parts.blocks[-1] else parts.last


_PARTS = {
    *("patch_embed", "cls_token", "dist_token", "reg_token", "pos_embed", "mid_pos_embed", "dropout", "norm_pre"),
    *("projection", "head_dist"),
}


def open_captured(
    module: nn.Module,
    refusal: VitvizError,
    preprocess: Any = None,
    about: Callable[[ViTConfig], Pretrained] | None = None,
) -> CapturedViT:
    """Return a module of a known class that runs as it is, after its conversion was refused.

    Args:
        module: of a class in `vitviz.weights.tokens`, in eval mode.
        refusal: why it was not converted.
        preprocess: see `objects.about_object`.
        about: function that returns labels and preprocessing of published weights; by default, those of the object.

    Raises:
        VitvizError: `refusal`, for a module of another class, or without attention between tokens.
    """
    module = bare(module)
    module = getattr(module, "vision_encoder", module)  # of SAM
    size, weight = size_of(module), next(module.parameters(), None)
    if size is None or weight is None or not weight.is_floating_point():
        raise refusal
    channels = next((part.in_channels for part in module.modules() if isinstance(part, nn.Conv2d)), 3)
    try:
        images = weight.new_zeros(1, channels, *size)
        captured, places_fit = _probed(module, images)
        config = _config(module, captured, size, channels) if places_fit else None
    except CaptureError as error:
        both = f"{refusal} It does not run as it is either. {error}"
        raise ConvertError(both) from error
    except Exception as error:  # the module's own error
        raise refusal from error
    if config is None:
        raise refusal
    model = CapturedViT(module, config, captured, str(refusal).rstrip("."))
    model.activation, notes = inverse_activation(module, images, model.parts)
    with torch.no_grad():
        model.config = replace(model.config, features=model.read_out(captured.tokens).shape[1])
    model.bypassed = _bypassed(model, images)
    own = about(model.config) if about else about_object(module, model.config, preprocess)
    if model.activation == "sigmoid":
        own = replace(own, problem_type=own.problem_type or SEVERAL)
    note = f"captured: the model runs as it is. {model.reason}"
    attach(model, replace(own, assumed=(*own.assumed, *notes, note)))
    warnings.warn(f"The model runs as it is, and its attention is captured. {refusal}", stacklevel=3)
    return model


@torch.no_grad()
def _bypassed(model: CapturedViT, images: Tensor) -> bool:
    """Return whether the tokens of another image give another output than this image; see `CapturedViT`.

    In a model with windows, the tokens between all blocks are tried.
    """
    other = torch.rand(images.shape, generator=torch.Generator().manual_seed(0)).to(images)
    captured = capture(model.module, other)
    expected, starts = model._logits(captured.output), range(captured.depth if captured.layouts else 1)
    largest = 100 * torch.finfo(images.dtype).eps * expected.abs().max()
    try:
        outputs = (model._logits(model._run(captured.streams[start], start, None, images)) for start in starts)
        return not all((output - expected).abs().max() <= largest for output in outputs)
    except RuntimeError:  # the module's own, such as after a block of CoAtNet that merges its tokens
        return True


def _probed(module: nn.Module, images: Tensor) -> tuple[Captured, bool]:
    """Run a module on a gray image, and return its attention, and whether its tokens lie where its class says.

    All calls of a block's class must be between tokens, and a change of one patch must change that patch's token most,
    or after overlapping convolutions the squares of 3 x 3 tokens around it.
    """
    captured = capture(module, images)
    if captured.places is None or not captured.depth or len(captured.streams) != captured.depth + 1:
        return captured, False
    kinds = {captured.calls[index].kind for index in captured.between}
    if any(call.kind in kinds for index, call in enumerate(captured.calls) if index not in captured.between):
        return captured, False
    (rows, columns), side, call = captured.grid, captured.patch_size, captured.call(0)
    convolutions = (part for part in module.modules() if isinstance(part, nn.Conv2d))
    overlap = any(part.kernel_size[0] > part.stride[0] for part in convolutions)
    for place in {(0, columns - 1), (rows - 1, 0), (rows // 2, columns // 2)}:
        changed = images.clone()
        row, column = (slice(side * index, side * (index + 1)) for index in place)
        changed[..., row, column] += torch.linspace(-2, 2, side, dtype=images.dtype, device=images.device)
        other = capture(module, changed)
        if overlap:
            differences = (other.streams[0] - captured.streams[0]).float().abs().sum(2)[:, -rows * columns :]
            most = int(F.avg_pool2d(differences.view(1, rows, columns), 3, 1, 1).argmax())
            if max(abs(most // columns - place[0]), abs(most % columns - place[1])) > 1:
                return captured, False
            continue
        # The keys, or the columns of the attention to them.
        before, after = (part.attentions.mT if part.keys is None else part.keys for part in (call, other.call(0)))
        differences = (after.float() - before.float()).abs().sum((1, 3))  # of each token, (1, N) or (W, M)
        if captured.layouts:
            differences = captured.layouts[0].join(differences)
        if int(differences.argmax()) != captured.token(place, 0):
            return captured, False
    return captured, True


def load_transformers(folder: Path, *, name: str | None = None, licence: str = "unknown") -> ViT:
    """Load a folder as `load_transformers_folder` does, and verify the model against that of transformers.

    What is refused or differs runs as it is. If transformers cannot build the model with exactly the folder's tensors,
    `pretrained.assumed` says that the two were not compared.
    """
    refusal, model = ConvertError(), None
    try:
        model = load_transformers_folder(folder, name=name, licence=licence)
    except ConvertError as error:
        if not is_known(read_json(folder / CONFIG).get("model_type")):
            raise
        refusal = error
    try:
        source, others = _source(folder)
        if model is not None:
            try:
                return verified(model, source)
            except ConvertError as error:
                refusal = error
        if others:
            raise ConvertError(f"Expected the tensors of a model of transformers, got others: {abbreviate(others)}.")
    except VitvizError as error:
        if model is None:
            raise refusal from error
        assert model.pretrained is not None
        note = f"its attention and output: not compared with those of transformers. {error}"
        model.pretrained = replace(model.pretrained, assumed=(*model.pretrained.assumed, note))
        return model
    title = name or folder.resolve().name
    captured = open_captured(source, refusal, read_preprocessor(folder))
    assert captured.pretrained is not None
    origin = f"transformers folder {title}"
    captured.pretrained = replace(captured.pretrained, name=title, licence=licence, source=origin)
    return captured


def _source(folder: Path) -> tuple[nn.Module, list[str]]:
    """Return the model of transformers in a folder, in eval mode, and the tensors that only one of the two has.

    Raises:
        ConvertError: if transformers does not have its class, or cannot load the folder.
    """
    names = read_json(folder / CONFIG).get("architectures") or ["AutoModel"]
    import_torchvision()  # transformers imports torchvision, whose import may fail
    with extra("transformers"):
        import transformers

        kind: Any = getattr(transformers, str(names[0]), None) if isinstance(names, list) else None
    if kind is None:
        raise ConvertError(f"Expected a class of transformers, got {names!r:.80}. Install a newer version.")
    try:
        with quiet_transformers():
            module, loading = kind.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    except Exception as error:  # the library's own error
        line = f"{first_line(error):.200}"
        raise ConvertError(f"Expected a folder that transformers loads, got its error: {line}.") from error
    others = [name for keys in ("missing_keys", "unexpected_keys", "mismatched_keys") for name in loading.get(keys, ())]
    return module.eval(), list(map(str, others))


def _config(module: nn.Module, captured: Captured, size: tuple[int, int], channels: int) -> CapturedConfig:
    parts = parts_of(module)
    assert parts is not None
    output, call = read_output(captured.output, parts), captured.call(0)
    if not output.isfinite().all():
        raise CaptureError("Expected finite outputs, got NaN or infinity. Check its weights.")
    classes = output.shape[1] if _classifies(parts, captured.output) else 0
    width = captured.head_width or 1  # 0 if only the softmax is observed
    assert captured.places is not None
    layouts, patch = captured.layouts, captured.patch_size
    padded = any(layout.members.numel() > layout.tokens for layout in layouts)
    steps = [  # height and width of a window in pixels
        side * (whole // count)
        for layout in (() if padded else layouts)
        for side, whole, count in zip(layout.side, size, layout.grid, strict=True)
    ]
    pooled = isinstance(parts.last, nn.Identity) and not isinstance(_norm_of(module, parts), nn.Identity)
    return CapturedConfig(
        image_size=size,
        channels=channels,
        patch_size=captured.patch_size,
        width=width * call.shape[1],
        depth=captured.depth,
        heads=call.shape[1],
        classes=classes,
        class_token="CLS" in captured.prefix,
        pooling="attention" if captured.pooling else captured.places.pooling,
        pool=AttentionPooling(heads=call.shape[1]),
        norms=Norms(final="pooled" if pooled else "tokens"),
        prefix_names=captured.prefix,
        pools=len(captured.pooling),
        window=max((layout.members.shape[1] for layout in captured.layouts), default=0),
        multiple=math.lcm(patch, *steps),
        dense=any(part.probabilities is not None or part.mask.pairs is not None for part in captured.calls),
    )


def _classifies(parts: Parts, output: Any) -> bool:
    """Return whether a module's output is logits."""
    if hasattr(output, "keys"):  # of transformers
        return "logits" in output
    return parts.head is not None and not isinstance(parts.head, nn.Identity)
