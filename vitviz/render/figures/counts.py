"""Where a model's parameters are."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitviz.model import ViT
from vitviz.render.colorbar import number, ticks
from vitviz.render.figures.about import model_of, model_words, photo_words
from vitviz.render.figures.page import INNER, SMALL, Page, measure
from vitviz.render.figures.tokens import FOOT
from vitviz.view import View

# Beginning and end of a parameter's name: the words for its module, and the colour of its kind. The first that fits.
MODULES: tuple[tuple[str, str, str, str], ...] = (
    ("patch_embed.", "", "Patch embedding", "embedding"),
    ("cls_token", "", "Class token", "embedding"),
    ("dist_token", "", "Distillation token", "embedding"),
    ("reg_token", "", "Registers", "embedding"),
    ("pos_embed", "", "Position embeddings", "embedding"),
    ("norm_pre.", "", "Norm before the blocks", "norm"),
    ("blocks.", ".attn.qkv.weight", "Attention: queries, keys, values", "attention"),
    ("blocks.", ".attn.qkv.bias", "Attention: queries, keys, values", "attention"),
    ("blocks.", ".attn.proj.weight", "Attention: output", "attention"),
    ("blocks.", ".attn.proj.bias", "Attention: output", "attention"),
    ("blocks.", ".mlp.fc1.weight", "MLP: first layer", "mlp"),
    ("blocks.", ".mlp.fc1.bias", "MLP: first layer", "mlp"),
    ("blocks.", ".mlp.fc2.weight", "MLP: second layer", "mlp"),
    ("blocks.", ".mlp.fc2.bias", "MLP: second layer", "mlp"),
    ("blocks.", "", "Norms and scales", "norm"),
    ("norm.", "", "Last norm", "norm"),
    ("attn_pool.", "", "Attention pooling", "head"),
    ("head_dist.", "", "Classifier of the distillation token", "head"),
    ("head.", "", "Classifier", "head"),
    ("", "", "Others", "head"),
)
UNITS = ((1_000_000, "parameters, in millions"), (1_000, "parameters, in thousands"), (1, "parameters"))


@dataclass(frozen=True)
class Count:
    """How many numbers a kind of module learned. `blocks` is how many blocks have one, 0 for what is there once."""

    name: str
    kind: str
    parameters: int
    blocks: int


def counts(model: ViT) -> list[Count]:
    """The parameters of each kind of module, in the order in which a picture meets them; together they are all."""
    sums: dict[tuple[str, str], int] = {}
    inside: set[str] = set()
    for name, parameter in model.named_parameters():
        _, _, words, kind = next(row for row in MODULES if name.startswith(row[0]) and name.endswith(row[1]))
        sums[words, kind] = sums.get((words, kind), 0) + parameter.numel()
        inside |= {words} if name.startswith("blocks.") else set()
    order = [*dict.fromkeys((words, kind) for _, _, words, kind in MODULES)]
    depth = model.config.depth
    return [Count(*key, sums[key], depth if key[0] in inside else 0) for key in order if key in sums]


def parameters(source: View | ViT, *, photo: str = "", dark: bool = False) -> Figure:
    """Horizontal bars: how many parameters each kind of module has, and its share of all.

    Args:
        source: a view or a model.
        photo: the photograph's name, for the caption.
        dark: light words on a dark ground.
    """
    model = model_of(source)
    found = counts(model)
    total = sum(one.parameters for one in found)
    held = sum(p.numel() * p.element_size() for p in model.parameters())
    names = [f"{one.name} (× {one.blocks})" if one.blocks else one.name for one in found]
    texts = [f"{one.parameters:,}  ({_share(one.parameters / total)})" for one in found]
    side, right = (max(measure(text, SMALL) for text in some) + 0.1 for some in (names, texts))
    each, wide = 0.21, INNER - side - right
    caption = (
        f"{total:,} parameters, {held / 1e6:,.1f} MB as they are held. “× {model.config.depth}” is the number of "
        f"blocks, whose parts are added up. {_unlearned(model)}{photo_words(source, photo)} {model_words(source)}"
    )
    page = Page(f"{total:,} parameters by module", caption, len(found) * each + FOOT, dark=dark)
    axes = page.axes("bars", side, 0, wide, len(found) * each)
    kinds = [page.look.accents[one.kind] for one in found]
    axes.barh(range(len(found)), [one.parameters for one in found], height=0.72, color=kinds, linewidth=0)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlim(0, max(one.parameters for one in found))
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)
    page.ticks(axes, "y", range(len(found)), names)
    for row, (one, text) in enumerate(zip(found, texts, strict=True)):
        end = side + wide * one.parameters / max(c.parameters for c in found)
        page.words(end + 0.06, (row + 0.5) * each, text, down="center_baseline")
    _scale(page, axes, max(one.parameters for one in found), wide)
    return page.figure


def _scale(page: Page, axes: Axes, most: int, wide: float) -> None:
    """Round numbers along the bars, in thousands or millions where they are long."""
    unit, words = next((pair for pair in UNITS if most >= 2 * pair[0]), UNITS[-1])
    found = ticks(0, most / unit, max(2, min(6, int(wide / 0.5))))
    page.ticks(axes, "x", [tick * unit for tick in found], [number(tick, step=found[1]) for tick in found])
    page.name_axes(axes, words)


def _share(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "< 0.1%"


def _unlearned(model: ViT) -> str:
    """What has no parameters though one may look for it."""
    return {
        "learned": "",
        "sincos": "The sinusoidal positions are computed, not learned. ",
        "rotary": "The rotary positions are computed, not learned. ",
        "none": "The model has no positions. ",
    }[model.config.positions]
