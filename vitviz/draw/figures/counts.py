"""Draw the parameters of a model by module."""

from dataclasses import dataclass

from matplotlib.figure import Figure

from vitviz.draw.figures.page import ACCENTS, SMALL, describe, inner, new_page, styled, wrap
from vitviz.formatting import number, percent
from vitviz.model.vit import ViT
from vitviz.view import View

# Prefix and substring of a parameter's name, display name of its module, and kind (color); the first match counts.
MODULES = (
    ("patch_embed.", "", "Patch embedding", "embedding"),
    ("cls_token", "", "Class token", "embedding"),
    ("dist_token", "", "Distillation token", "embedding"),
    ("reg_token", "", "Registers", "embedding"),
    ("pos_embed", "", "Position embeddings", "embedding"),
    ("mid_pos_embed", "", "Positions between blocks", "embedding"),
    ("norm_pre.", "", "Norm before the blocks", "norm"),
    ("blocks.", ".attn.qkv.", "Attention: queries, keys, values", "attention"),
    ("blocks.", ".attn.proj.", "Attention: output", "attention"),
    ("blocks.", ".mlp.fc1.", "MLP: first layer", "mlp"),
    ("blocks.", ".mlp.fc2.", "MLP: second layer", "mlp"),
    ("blocks.", "", "Norms and scales", "norm"),
    ("norm.", "", "Last norm", "norm"),
    ("attn_pool.", "", "Attention pooling", "head"),
    ("head_dist.", "", "Classifier of the distillation token", "head"),
    ("head.", "", "Classifier", "head"),
    ("", "", "Others", "head"),
)
UNITS = ((1_000_000, "parameters, in millions"), (1_000, "parameters, in thousands"), (1, "parameters"))
COMPUTED = {
    "sincos": "The sinusoidal positions are computed, not learned. ",
    "sincos1d": "The sinusoidal positions are computed, not learned. ",
    "rotary": "The rotary positions are computed, not learned. ",
    "none": "The model has no positions. ",
}


@dataclass(frozen=True)
class Count:
    """Parameters of one kind of module, which occurs in `blocks` blocks (0 for modules outside blocks)."""

    name: str
    kind: str
    parameters: int
    blocks: int


def counts(model: ViT) -> list[Count]:
    """Count the parameters of each kind of module, in the order of the forward pass."""
    sums: dict[tuple[str, str], int] = {}
    inside: set[str] = set()
    for name, parameter in model.named_parameters():
        _, _, module, kind = next(row for row in MODULES if name.startswith(row[0]) and row[1] in name)
        sums[module, kind] = sums.get((module, kind), 0) + parameter.numel()
        inside |= {module} if name.startswith("blocks.") else set()
    depth = model.config.depth
    order = ((module, kind) for _, _, module, kind in MODULES)
    return [Count(*key, sums[key], depth if key[0] in inside else 0) for key in order if key in sums]


@styled
def parameters(view: View, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw bars of the parameters of each kind of module, with their share."""
    model, rows = view.model, counts(view.model)
    numbers = [count.parameters for count in rows]
    total, most = sum(numbers), max(numbers)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    names = [f"{count.name} (×\N{NO-BREAK SPACE}{count.blocks})" if count.blocks else count.name for count in rows]
    caption = (
        f"{total:,} parameters, {size / 1e6:,.1f} MB in memory. “× {model.config.depth}” is the number of "
        f"blocks; their parameters are added up. {COMPUTED.get(model.config.position_kind, '')}{describe(view, photo)}"
    )
    wrapped = ["\n".join(wrap(name, SMALL, 0.36 * inner())) for name in names]
    height = 0.21 if not any("\n" in name for name in wrapped) else 0.31
    figure = new_page(f"{total:,} parameters by module", caption, len(rows) * height + 0.4)
    axes = figure.subplots()
    bars = axes.barh(range(len(rows)), numbers, height=0.72, color=[ACCENTS[dark][count.kind] for count in rows])
    axes.bar_label(bars, [f"{value:,}  ({percent(value / total)})" for value in numbers], padding=4)
    axes.set(xlim=(0, most), ylim=(len(rows) - 0.5, -0.5), label="bars")
    axes.set_yticks(range(len(rows)), wrapped)
    axes.spines[["top", "right"]].set_visible(False)
    unit, label = next((pair for pair in UNITS if most >= 2 * pair[0]), UNITS[-1])
    axes.xaxis.set_major_formatter(lambda value, _: number(value / unit))
    axes.set_xlabel(label)
    return figure
