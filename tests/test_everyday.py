"""The threshold of the everyday model, as its script finds it."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from finish_everyday import RIGHT, cells_above, find_threshold


def test_the_threshold_is_the_lowest_whole_percent_above_which_enough_images_are_right() -> None:
    probability = torch.rand(2000, generator=torch.Generator().manual_seed(3))
    right = torch.rand(2000, generator=torch.Generator().manual_seed(4)) < probability  # calibrated
    shares = {}
    for percents in range(100):
        above = [hit for p, hit in zip(probability.tolist(), right.tolist(), strict=True) if p >= percents / 100]
        shares[percents / 100] = sum(above) / len(above)
    assert find_threshold(probability, right) == min(least for least, share in shares.items() if share >= RIGHT)


def test_always_and_never_sure() -> None:
    probability = torch.tensor([0.2, 0.9, 0.6])
    assert find_threshold(probability, torch.tensor([True, True, True])) == 0.0
    assert find_threshold(probability, torch.tensor([False, False, False])) == 1.0
    assert cells_above(0.5, probability, torch.tensor([True, True, False])) == "66.67 % | 50.00 % | 100.00 %"
    assert cells_above(0.0, probability, torch.tensor([True, True, True])) == "100.00 % | 100.00 % | none"
