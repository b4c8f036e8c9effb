"""Check that the table of names is complete, and that its comparison detects a difference."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from vitviz.weights import from_timm

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "write_model_names.py"))

pytestmark = pytest.mark.usefixtures("one_thread")


def test_table_counts_every_name_of_timm() -> None:
    table = (ROOT / "docs" / "models.md").read_text(encoding="utf-8").partition(SCRIPT["START"].format("names of timm"))
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \|(.*)\|$", table[2].partition(SCRIPT["END"])[0], re.M)
    assert [family for family, *_ in rows] == SCRIPT["MODULES"].split()
    for family, equal, names, reasons in rows:
        assert int(equal) + sum(map(int, re.findall(r"\((\d+)\)(?:;| $)", reasons))) == int(names)
        assert SCRIPT["DIFFERS"] not in reasons
        if timm.__version__ == "1.0.31":
            assert int(names) == len(timm.list_models(module=family)), family


def test_comparison_finds_equal_refused_and_different_names(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    outcome, compare, name = SCRIPT["outcome"], SCRIPT["compare_timm"], "vit_tiny_patch16_224"
    assert outcome(compare, name) == SCRIPT["EQUAL"]
    assert "between channels" in outcome(compare, "xcit_nano_12_p16_224")
    config_of = from_timm.config_of

    def wrong(model: Any) -> Any:
        config, channels = config_of(model)
        return type(config)(**config.to_dict() | {"activation": "gelu_tanh"}), channels

    monkeypatch.setattr(from_timm, "config_of", wrong)
    assert outcome(compare, name) == f"{SCRIPT['DIFFERS']} {name}"
