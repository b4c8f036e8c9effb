"""Attention that is learnt from: the fused kernel or plain products, the same formula in each precision."""

import pytest
import torch
from torch import Tensor

from vitviz.model import ops
from vitviz.model.ops import attention

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def parts(queries: int, keys: int, width: int = 8, batch: int = 3, heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v in float64 that every precision holds exactly."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(batch, heads, n, width, generator=generator) for n in (queries, keys, keys))
    return rounded(q), rounded(k), rounded(v)


def rounded(one: Tensor) -> Tensor:
    return one.to(torch.bfloat16).to(torch.float16).double()


def by_definition(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    weights = torch.exp(scale * torch.einsum("bhnd,bhmd->bhnm", q, k))
    weights = weights if mask is None else weights * mask
    return torch.einsum("bhnm,bhmd->bhnd", weights / weights.sum(-1, keepdim=True), v)


@DTYPES
@pytest.mark.parametrize("queries", [1, 9], ids=["one query", "all"])
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_the_mixture_and_its_gradients_are_the_formula(dtype: torch.dtype, queries: int, cut: bool) -> None:
    mask = torch.rand(1, 2, queries, 9, generator=torch.Generator().manual_seed(2)) < 0.7 if cut else None
    exact = parts(queries, 9)
    for one in exact:
        one.requires_grad_()
    expected = by_definition(*exact, scale=0.3, mask=mask)
    weight = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view_as(expected)
    expected.backward(weight)
    q, k, v = ours = [one.detach().to(dtype).requires_grad_() for one in exact]
    result = attention(q, k, v, 0.3, mask=mask)
    assert result.dtype == dtype
    result.backward(weight.to(dtype))
    for mine, right in [(result, expected), *((a.grad, b.grad) for a, b in zip(ours, exact, strict=True))]:
        assert mine is not None
        assert right is not None
        torch.testing.assert_close(mine.double(), right, rtol=0, atol=TOLERANCE[dtype])


@DTYPES
def test_dropout_leaves_out_probabilities_and_keeps_their_mean(dtype: torch.dtype) -> None:
    q, k, _ = (one.to(dtype).requires_grad_() for one in parts(8, 8, batch=200))
    eye = torch.eye(8, dtype=dtype).expand(200, 2, 8, 8).clone().requires_grad_()  # so that the mixture is the weights
    whole = attention(q, k, eye, 0.3).detach()
    torch.manual_seed(0)
    thin = attention(q, k, eye, 0.3, dropout=0.25).detach()
    kept = thin != 0
    assert float(kept.double().mean()) == pytest.approx(0.75, abs=0.02)
    torch.testing.assert_close(thin[kept].double(), whole[kept].double() / 0.75, rtol=2e-2, atol=2e-2)


def kept_for_the_backward_pass(tokens: int) -> int:
    """Numbers in the largest tensor that a backward pass in bfloat16 waits with."""
    sizes: list[int] = []

    def note(one: Tensor) -> Tensor:
        sizes.append(one.numel())
        return one

    q, k, v = (one.bfloat16().requires_grad_() for one in parts(tokens, tokens, batch=1, heads=1))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda one: one):
        attention(q, k, v, 1.0)
    return max(sizes)


def test_the_matrix_of_a_long_sequence_is_never_kept() -> None:
    short, long = 64, ops.EXPLICIT_TOKENS + 1
    assert kept_for_the_backward_pass(short) == short**2  # by hand, which is what is fast
    assert kept_for_the_backward_pass(long) < long**2
