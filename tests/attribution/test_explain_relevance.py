"""Layer-wise relevance propagation against the same rules written out, operation by operation, in float64."""

from typing import Any

import explain_cases as cases
import pytest
import reference_vit as reference
import torch
from torch import Tensor

from vitviz.attribution.inputs import Case, Target
from vitviz.attribution.relevance import attn_lrp, transformer_lrp
from vitviz.model.vit import ViT

pytestmark = pytest.mark.usefixtures("one_thread")
CLASSES = (3, 17)  # of the two images


def case(model: ViT, images: Tensor, against: tuple[int, ...] | None = None) -> Case:
    target = Target(torch.tensor(CLASSES), None if against is None else torch.tensor(against))
    return Case(model, images, target, model.trace(images))


# ---- transformer_lrp


def chefer(model: ViT, image: Tensor, goal: int, against: int | None = None, start: int = 0) -> Tensor:
    """The authors' scheme for one image: all of the rollout matrix less the identity, and of it what is read: (N,)."""
    tape = reference.CheferTape()
    walked = reference.run(model, image, tape)
    score = walked.logits.tensor[0, goal] - (0.0 if against is None else walked.logits.tensor[0, against])
    attentions = [*walked.attentions, *([walked.pool] if walked.pool else [])]
    slopes = torch.autograd.grad(score, [attention.tensor for attention in attentions])
    tape.rewind(walked.logits, torch.eye(model.config.classes)[goal][None].double())
    steps = [
        (slope * attention.relevance).clamp(min=0)[0].mean(0)
        for attention, slope in zip(attentions, slopes, strict=True)
    ]
    count, depth = walked.tokens.tensor.shape[1], model.config.depth
    joint = torch.eye(count).double()
    for step in steps[start:depth]:
        joint = (step + torch.eye(count)) @ joint
    rest = joint - torch.eye(count)
    rows = {"cls": [0], "mean": list(range(len(model.config.prefix), count))}
    parts = [rest[rows[part]].mean(0) for part in model.config.pooling.split("+") if part in rows]
    read = torch.stack(parts).mean(0) if parts else torch.zeros(count)
    if model.config.distillation_token:
        read = (read + rest[model.config.prefix.index("distillation")]) / 2
    return read + (steps[depth] @ joint)[0] if walked.pool else read


@cases.kinds
def test_transformer_lrp_has_the_numbers_of_the_authors_scheme(kind: str) -> None:
    """From any block on; of two classes, the one rather than the other. Fixed positions are in single precision."""
    model, images = cases.model(kind), cases.images()
    for against, start in ((None, 0), (None, 1), (None, 2), ((5, 11), 0)):
        ours = transformer_lrp(case(model, images, against), start=start)
        each = zip(images.split(1), CLASSES, against or (None, None), strict=True)
        cases.close(ours, torch.stack([chefer(model, *asked, start) for asked in each]), 5e-5)
        assert ours.max() > ours.min() >= 0


# ---- attn_lrp


def attn(model: ViT, image: Tensor, goal: int, **rules: Any) -> tuple[Tensor, float]:
    """Relevance of the tokens that enter the first block (N,), and what reached none."""
    tape = reference.AttnTape(**rules)
    walked = reference.run(model, image, tape)
    start = torch.zeros_like(walked.logits.tensor)
    start[0, goal] = walked.logits.tensor[0, goal]
    tape.rewind(walked.logits, start)
    return walked.tokens.relevance[0].sum(-1).detach(), tape.booked


GAMMAS = {"qkv": 0.1, "proj": 0.2, "mlp": 0.3, "head": 0.4}


@pytest.mark.parametrize("gammas", [{}, GAMMAS], ids=["epsilon", "gamma"])
@cases.kinds
def test_attn_lrp_is_relevance_propagated_by_the_papers_rules(kind: str, gammas: dict[str, float]) -> None:
    model, images = cases.model(kind), cases.images()
    made, options = case(model, images), {f"gamma_{layer}": gamma for layer, gamma in gammas.items()}
    paper = attn_lrp(made, conserve=False, **options)
    whole = attn_lrp(made, **options)
    constant = attn_lrp(made, conserve=False, softmax="constant", **options)
    logits = model(images)
    prefix = len(model.config.prefix)
    for index, goal in enumerate(CLASSES):
        for passing in (False, True):  # whether the classifier's bias reaches the tokens
            theirs, booked = attn(model, images[index : index + 1], goal, passing=passing, gammas=gammas)
            assert theirs.sum().item() + booked == pytest.approx(logits[index, goal].item(), rel=1e-5)
            if not passing:
                cases.close(paper[index], theirs, 2e-5)
        theirs_constant, _ = attn(model, images[index : index + 1], goal, constant=True, gammas=gammas)
        cases.close(constant[index], theirs_constant, 2e-5)
        rest = theirs.clone()  # what reached no token is added to the prefix, else evenly to all patches
        rest[: prefix or None] += booked / (prefix or len(rest))
        cases.close(whole[index], rest, 2e-5)


@cases.kinds
def test_scores_of_attn_lrp_sum_to_the_logit(kind: str) -> None:
    made = case(cases.model(kind).float(), cases.images().float())  # in the precision that people use
    for options in ({}, {"gamma_mlp": 0.25, "gamma_qkv": 0.1}, {"softmax": "constant"}, {"epsilon": 1e-4}):
        sums = attn_lrp(made, **options).sum(1)
        torch.testing.assert_close(sums, made.target.score(made.trace.logits), rtol=0.01, atol=1e-4)


def test_epsilon_absorbs_relevance() -> None:
    made = case(cases.model(), cases.images())
    plain, little, more = (attn_lrp(made, conserve=False, epsilon=epsilon) for epsilon in (0.0, 1e-12, 0.1))
    assert not torch.allclose(plain, more)
    torch.testing.assert_close(plain, little)


def test_attention_is_taken_in_pieces_without_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    made = case(cases.model("registers, rotary"), cases.images())
    whole = attn_lrp(made)
    monkeypatch.setattr("vitviz.attribution.attn_lrp.CHUNK_BYTES", 2 * 5 * 19 * 8 * 3)  # three rows
    torch.testing.assert_close(attn_lrp(made), whole)
