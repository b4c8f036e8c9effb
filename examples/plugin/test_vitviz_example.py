"""Test the method against finite differences, and the statistic against the definition."""

import pytest
import torch
from vitviz_example import LARGEST_SHARE, TOKEN_SALIENCY

import vitviz
from vitviz.analysis.head_statistics import STATISTICS, head_statistics
from vitviz.attribution.registry import score_tokens


@pytest.fixture
def model() -> vitviz.ViT:
    """Return a random model in double precision, with images of 3 x 5 patches."""
    torch.manual_seed(0)
    return vitviz.ViT(vitviz.preset("tiny", image_size=(48, 80), depth=3, classes=7)).double().eval()


def test_saliency_is_the_slope_of_the_score(model: vitviz.ViT) -> None:
    """Move the tokens before the last block along each channel."""
    images = torch.randn(1, 3, 48, 80).double()
    _, saliency = score_tokens(model, images, 3, TOKEN_SALIENCY, None, None, {"block": 2})
    tokens, step = model.trace(images).stream(2), 1e-5
    for token in (0, 5):
        moves = step * torch.eye(model.config.width).double()  # (D, D), one channel each
        scores = []
        for sign in (1, -1):
            moved = tokens.repeat(len(moves), 1, 1)
            moved[:, token] += sign * moves
            scores.append(model.run(moved, None, start=2)[:, 3])
        slope = (scores[0] - scores[1]) / (2 * step)  # (D,)
        torch.testing.assert_close(saliency[0, token], slope.norm(), rtol=1e-4, atol=1e-6)


def test_largest_share_is_the_mean_of_the_rows_maxima(model: vitviz.ViT, monkeypatch: pytest.MonkeyPatch) -> None:
    """Average over the 15 patches; the first token is CLS."""
    monkeypatch.setitem(STATISTICS, "largest_share", LARGEST_SHARE)
    trace = model.trace(torch.randn(1, 3, 48, 80).double())
    shares = head_statistics(model, trace, names=["largest_share"])["largest_share"]
    for block, attention in enumerate(trace.attentions):
        largest = attention[0, :, 1:].amax(-1).mean(-1)  # (H, N, N) -> (H,)
        torch.testing.assert_close(torch.from_numpy(shares[block]), largest.double(), rtol=1e-5, atol=1e-7)
