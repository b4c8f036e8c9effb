"""TrivialAugment and RandAugment: every operation is torchvision's, and every image has its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from vitviz.compat import import_torchvision
from vitviz.training.policy import OPERATIONS, apply_policy, magnitudes, operate

import_torchvision()
from torchvision.transforms import v2  # noqa: E402 - only after import_torchvision

pytestmark = pytest.mark.usefixtures("one_thread")

THEIRS = {"trivial": v2.TrivialAugmentWide(), "rand": v2.RandAugment()}


def pictures(k: int, height: int = 19, width: int = 23, seed: int = 0) -> Tensor:
    """Half noise, half smooth blots, and a grey one: edges, flat places and few levels."""
    generator = torch.Generator().manual_seed(seed)
    rough = torch.randint(0, 256, (k, 3, height, width), generator=generator).float()
    smooth = torch.nn.functional.interpolate(rough[:, :, :4, :5], (height, width), mode="bilinear") * 0.6 + 30
    pixels = torch.where((torch.arange(k) % 2 == 0)[:, None, None, None], rough, smooth).to(torch.uint8)
    pixels[-1] = pixels[-1, :1]
    return pixels


def theirs(image: Tensor, name: str, strength: float) -> Tensor:
    policy = THEIRS["trivial"]
    return policy._apply_image_or_video_transform(image, name, strength, policy.interpolation, policy._fill)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("policy", ["trivial", "rand"])
@pytest.mark.parametrize(("height", "width"), [(19, 23), (2, 5)])
def test_an_operation_does_what_torchvisions_does(name: str, policy: str, height: int, width: int) -> None:
    """At every strength, with either sign; all at once here, one by one there."""
    steps = magnitudes(policy == "trivial", height, width)[OPERATIONS.index(name)]
    signed = policy_space(policy, height, width)[name][1]
    strengths = np.concatenate([steps, -steps]) if signed else steps
    pixels = pictures(len(strengths), height, width)
    ours = operate(pixels, np.array([name] * len(strengths)), strengths)
    expected = torch.stack([theirs(image, name, float(s)) for image, s in zip(pixels, strengths, strict=True)])
    same = (ours == expected).float().mean()
    if name in ("Rotate", "ShearX", "ShearY"):  # pixels half-way between two are rounded by the last bit
        assert same > 0.98
    else:  # and so are levels that come out whole
        assert int((ours.int() - expected.int()).abs().max()) <= 1
        assert same > 0.95


def policy_space(policy: str, height: int, width: int) -> dict[str, tuple[np.ndarray | None, bool]]:
    space = THEIRS[policy]._AUGMENTATION_SPACE
    found = {}
    for name, (values, signed) in space.items():
        steps = values(31, height, width)
        found[name] = (None if steps is None else steps.double().numpy(), signed)
    return found


@pytest.mark.parametrize("policy", ["trivial", "rand"])
def test_operations_and_magnitudes_are_torchvisions(policy: str) -> None:
    space = policy_space(policy, 30, 50)
    assert set(space) == set(OPERATIONS)
    for name, ours in zip(OPERATIONS, magnitudes(policy == "trivial", 30, 50), strict=True):
        expected, _ = space[name]
        np.testing.assert_array_equal(ours, np.zeros(31) if expected is None else expected)


def test_images_with_different_operations_do_not_meet() -> None:
    random = np.random.default_rng(0)
    pixels = pictures(60)
    names = random.permutation(np.repeat(OPERATIONS, 5))[:60]
    strengths = np.where(names == "Posterize", 3, 0.4)
    alone = [operate(pixels[at : at + 1], names[at : at + 1], strengths[at : at + 1]) for at in range(60)]
    assert torch.equal(operate(pixels, names, strengths), torch.cat(alone))


@pytest.mark.parametrize("policy", ["trivial", "rand"])
def test_draws_reach_every_operation_strength_and_sign(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float]] = []

    def spy(pixels: Tensor, names: np.ndarray, strengths: np.ndarray) -> Tensor:
        seen.extend(zip(names.tolist(), strengths.tolist(), strict=True))
        return pixels

    monkeypatch.setattr("vitviz.training.policy.operate", spy)
    draws = np.random.default_rng(0).random((3, 60000))
    draws[:, :2] = [[0, 1 - 2**-53]] * 3  # the ends of what may be drawn
    apply_policy(torch.zeros(60000, 3, 2, 5, dtype=torch.uint8), policy, *draws)
    for name, (steps, signed) in policy_space(policy, 2, 5).items():
        expected = np.zeros(1) if steps is None else steps if policy == "trivial" else steps[9:10]
        values = [strength for one, strength in seen if one == name]
        assert abs(len(values) - 60000 / 14) < 5 * (60000 / 14) ** 0.5
        assert set(np.round(values, 5)) == {*np.round(expected, 5), *(np.round(-expected, 5) if signed else ())}
        if signed:
            assert abs(np.mean(np.array(values) < 0) - 0.5) < 0.06


def test_no_policy_does_nothing() -> None:
    pixels = pictures(3)
    assert apply_policy(pixels, "none", *np.zeros((3, 3))) is pixels
