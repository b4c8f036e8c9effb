"""Write which of timm's names open into docs/models.md, by family: python scripts/write_model_names.py.

Models are built on the meta device with two blocks where timm allows it, and only their config is read.
`make test-names` compares the outputs of every name.
"""

import re
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitviz.images.torchvision_import import import_torchvision
from vitviz.weights.checks import CheckpointError
from vitviz.weights.from_timm import config_of

FAMILIES = (  # modules of timm whose names look like Vision Transformers
    "vision_transformer deit beit eva vision_transformer_relpos naflexvit cait vision_transformer_sam "
    "vision_transformer_hybrid qwen3_vit gemma4_vit deepseek_vit swin_transformer swin_transformer_v2 "
    "swin_transformer_v2_cr hiera hieradet_sam2 mvitv2 pvt_v2 pit twins nest tnt convit crossvit volo xcit levit davit "
    "maxxvit tiny_vit gcvit coat"
)
SIZES: list[dict[str, Any]] = [{"depth": 2, "embed_dim": 192, "num_heads": 4}, {"depth": 2}, {}]  # tried in this order
START, END = "<!-- names of timm -->\n", "<!-- end -->\n"


def build(name: str) -> nn.Module:
    """Return a model without values."""
    import timm

    for sizes in SIZES:
        errors = TypeError, RuntimeError, AssertionError, ValueError, IndexError, AttributeError, KeyError
        with suppress(*errors), torch.device("meta"):
            return timm.create_model(name, pretrained=False, **sizes)
    raise AssertionError(f"timm cannot build {name}")


def refusal(name: str) -> str:
    """Return why a model is refused, or "" if it opens."""
    try:
        config_of(build(name))
    except CheckpointError as error:
        why = re.sub(r"^.*unsupported timm model(?: \(\w+\))?: ", "", str(error)).rstrip(".")
        return re.sub(r"^it has a (\w+) where only .*", r"\1 is another architecture", why)
    return ""


def table() -> str:
    """Return the table of families: names that open, all names, and the reasons for the others."""
    import timm

    lines, counts = ["| family in timm | open | of | refused because |", "|---|---|---|---|"], [0, 0]
    for family in FAMILIES.split():
        names = timm.list_models(module=family)
        reasons: dict[str, list[str]] = defaultdict(list)
        for name in names:
            reasons[refusal(name)].append(name)
        opened = len(reasons.pop("", []))
        counts[0], counts[1] = counts[0] + opened, counts[1] + len(names)
        why = "; ".join(f"{reason} ({len(refused)})" for reason, refused in reasons.items())
        lines.append(f"| `{family}` | {opened} | {len(names)} | {why} |")
    return "\n".join([*lines, f"| all of these | {counts[0]} | {counts[1]} | |", ""])


if __name__ == "__main__":
    import_torchvision()
    path = Path(__file__).parents[1] / "docs" / "models.md"
    before, _, rest = path.read_text(encoding="utf-8").partition(START)
    path.write_text(before + START + table() + END + rest.partition(END)[2], encoding="utf-8")
