"""Add an attribution method and a statistic of attention heads to vitviz."""

from torch import Tensor, autograd

from vitviz.analysis.attention_statistics import Rows
from vitviz.analysis.statistic import Statistic
from vitviz.attribution.inputs import Case, Method


def token_saliency(case: Case, *, block: int = 0) -> Tensor:
    """Return the norm of the score's gradient with respect to each input token of a block: (B, N).

    Args:
        case: images, model and target.
        block: index from 0; negative indices count from the last.
    """
    trace, model = case.trace, case.model
    tokens = trace.stream(block).detach().clone().requires_grad_()  # (B, N, D)
    final = model.encode(tokens, model.angles(trace.grid), start=block % trace.depth)
    (slope,) = autograd.grad(case.score(final).sum(), tokens)
    norms: Tensor = slope.norm(dim=-1)  # (B, N, D) -> (B, N)
    return norms


TOKEN_SALIENCY = Method(
    function=token_saliency,
    title="Token saliency",
    paper="Simonyan, Vedaldi and Zisserman 2014, Deep Inside Convolutional Networks, ICLR workshop",
    about="How strongly the score reacts to each token: the norm of its gradient.",
)


def largest_share(rows: Rows) -> Tensor:
    """Return the largest share on one token: (B, H, n)."""
    return rows.attention.amax(-1)  # (B, H, n, N) -> (B, H, n)


LARGEST_SHARE = Statistic(
    function=largest_share,
    title="Largest share",
    unit="",
    about="Share of the token that gets the most attention.",
    low=0.0,
    high=1.0,
)
