"""Layer-wise relevance propagation against the same rules written out, operation by operation, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import relevance_tape as tapes
import tiny
import torch
from torch import Tensor

from vitviz.attribution import relevance
from vitviz.attribution.inputs import Case, Target
from vitviz.attribution.scores import ExplainError
from vitviz.model.vit import ViT

pytestmark = pytest.mark.usefixtures("one_thread")

METHODS = {"transformer_lrp": relevance.transformer_lrp, "attn_lrp": relevance.attn_lrp}
SMALL: dict[str, Any] = {"grid": (2, 3), "patch": 5}
CLASSES = (3, 17)  # of the two images

# Every kind of model there is, each in at least one of these.
MODELS: dict[str, dict[str, Any]] = {
    "cls": {},
    "registers": {"registers": 2, "layer_scale": 0.5, "qkv_bias": False},
    "mean": {"pooling": "mean", "class_token": False, "norm_pooled": True},
    "cls and mean": {"pooling": "cls+mean", "norm_pre": True, "positions": "sincos", "width": 20},
    "attention": {"pooling": "attention", "class_token": False, "width": 20, "activation": "quick_gelu"},
    "distillation": {"distillation_token": True},
    "rotary": {"positions": "rotary", "head_width": 12, "qk_norm": True, "mlp": "swiglu", "mlp_bias": False},
}
each_model = pytest.mark.parametrize("kind", MODELS)
each_method = pytest.mark.parametrize("method", METHODS)


def made(kind: str = "cls", seed: int = 0) -> ViT:
    return tiny.model(seed, **SMALL, **MODELS[kind]).double()


def pixels(batch: int = 2) -> Tensor:
    return tiny.images(batch, **SMALL).double()


def target(classes: tuple[int, ...] = CLASSES, against: tuple[int, ...] | None = None) -> Target:
    return Target(torch.tensor(classes), None if against is None else torch.tensor(against))


def run(method: str, model: ViT, images: Tensor, goal: Target, **options: Any) -> Tensor:
    return METHODS[method](Case(model, images, goal, model.trace(images)), **options)


# transformer_lrp


def chefer(model: ViT, image: Tensor, goal: int, against: int | None = None, start: int = 0) -> Tensor:
    """The authors' scheme for one image: all of the rollout matrix less the identity, and of it what is read: (N,)."""
    tape = tapes.CheferTape()
    walked = tapes.walk(tape, model, image)
    torch.testing.assert_close(walked.logits.tensor, model(image))
    score = walked.logits.tensor[0, goal] - (0.0 if against is None else walked.logits.tensor[0, against])
    slopes = torch.autograd.grad(score, [seen.tensor for seen in walked.attentions])
    tape.rewind(walked.logits, torch.eye(model.config.classes)[goal][None].double())
    steps = []
    for seen, slope in zip(walked.attentions, slopes, strict=True):
        assert seen.relevance is not None
        steps.append((slope * seen.relevance).clamp(min=0)[0].mean(0))
    count, depth = walked.tokens.tensor.shape[1], model.config.depth
    joint = torch.eye(count).double()
    for step in steps[start:depth]:
        joint = (step + torch.eye(count)) @ joint
    if model.config.pooling == "attention":
        return (steps[depth] @ joint)[0]
    rows = {"cls": [0], "mean": list(range(len(model.config.prefix), count))}
    read = [(joint - torch.eye(count))[rows[part]].mean(0) for part in model.config.pooling.split("+")]
    if model.config.distillation_token:
        read.append((joint - torch.eye(count))[1])
    return torch.stack(read).mean(0)


@each_model
def test_transformer_lrp_has_the_numbers_of_the_authors_scheme(kind: str) -> None:
    model, images = made(kind), pixels()
    ours = run("transformer_lrp", model, images, target())
    theirs = torch.stack([chefer(model, images[i : i + 1], goal) for i, goal in enumerate(CLASSES)])
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * theirs.abs().max().item())
    assert ours.min() >= 0
    assert ours.max() > 0


def test_transformer_lrp_starts_from_a_later_block() -> None:
    model, images = made(), pixels(1)
    for start in range(model.config.depth):
        ours = run("transformer_lrp", model, images, target((3,)), start=start)
        torch.testing.assert_close(ours[0], chefer(model, images, 3, start=start), rtol=1e-5, atol=1e-9)


def test_transformer_lrp_of_a_contrast_is_evidence_for_the_first_class() -> None:
    model, images = made(), pixels(1)
    ours = run("transformer_lrp", model, images, target((3,), (5,)))
    torch.testing.assert_close(ours[0], chefer(model, images, 3, against=5), rtol=1e-5, atol=1e-9)
    assert not torch.allclose(ours, run("transformer_lrp", model, images, target((5,), (3,))))


# attn_lrp


def attn(model: ViT, image: Tensor, goal: dict[int, float], passing: bool, **gammas: float) -> tuple[Tensor, float]:
    """Relevance of the tokens that enter the first block (N,), and what reached none."""
    tape = tapes.AttnTape(gammas=gammas, passing=passing)
    walked = tapes.walk(tape, model, image)
    torch.testing.assert_close(walked.logits.tensor, model(image))
    start = torch.zeros_like(walked.logits.tensor)
    for index, sign in goal.items():
        start[0, index] = sign * walked.logits.tensor[0, index]
    tape.rewind(walked.logits, start)
    assert walked.tokens.relevance is not None
    return walked.tokens.relevance[0].sum(-1).detach(), tape.booked


GAMMAS = {"qkv": 0.1, "proj": 0.2, "mlp": 0.3, "head": 0.4}


@each_model
@pytest.mark.parametrize("gammas", [{}, GAMMAS], ids=["epsilon", "gamma"])
def test_attn_lrp_is_relevance_propagated_by_the_papers_rules(kind: str, gammas: dict[str, float]) -> None:
    model, images = made(kind), pixels()
    options = {f"gamma_{layer}": gamma for layer, gamma in gammas.items()}
    paper = run("attn_lrp", model, images, target(), conserve=False, **options)
    whole = run("attn_lrp", model, images, target(), **options)
    logits = model(images)
    prefix = len(model.config.prefix)
    for index, goal in enumerate(CLASSES):
        for passing in (False, True):  # whether the classifier's bias reaches the tokens
            theirs, booked = attn(model, images[index : index + 1], {goal: 1.0}, passing, **gammas)
            close = {"rtol": 1e-6, "atol": 1e-8 * theirs.abs().max().item()}
            assert theirs.sum().item() + booked == pytest.approx(logits[index, goal].item())
            if not passing:
                torch.testing.assert_close(paper[index], theirs, **close)
        rest = theirs.clone()  # what reached no token is added to the prefix, else evenly to all patches
        rest[: prefix or None] += booked / (prefix or len(rest))
        torch.testing.assert_close(whole[index], rest, **close)


@each_model
def test_scores_of_attn_lrp_sum_to_the_logit(kind: str) -> None:
    model, images = made(kind).float(), pixels().float()  # in the precision that people use
    with torch.no_grad():
        logits = model(images)
    for options in ({}, {"gamma_mlp": 0.25, "gamma_qkv": 0.1}, {"softmax": "constant"}, {"epsilon": 1e-4}):
        sums = run("attn_lrp", model, images, target(), **options).sum(1)
        torch.testing.assert_close(sums, target().score(logits), rtol=0.01, atol=1e-4)


def test_without_biases_only_the_softmax_keeps_relevance() -> None:
    model, images = made("registers"), pixels()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    score = target().score(model(images)).detach()
    sums = run("attn_lrp", model, images, target(), conserve=False, softmax="constant").sum(1)
    torch.testing.assert_close(sums, score)
    assert not torch.allclose(run("attn_lrp", model, images, target(), conserve=False).sum(1), score, rtol=0.01)


def test_a_contrast_of_attn_lrp_is_the_difference_of_two_maps() -> None:
    model, images = made("rotary"), pixels()
    for options in ({}, {"gamma_head": 0.3, "gamma_mlp": 0.2}):
        first, second, both = (
            run("attn_lrp", model, images, goal, **options)
            for goal in (target((3, 4)), target((5, 6)), target((3, 4), (5, 6)))
        )
        torch.testing.assert_close(both, first - second)
        assert both.min() < 0 < both.max()


def test_epsilon_takes_relevance_and_the_constant_softmax_goes_by_the_values() -> None:
    model, images = made(), pixels()
    plain = run("attn_lrp", model, images, target(), conserve=False)
    for options in ({"epsilon": 0.1}, {"softmax": "constant"}, {"gamma_mlp": 0.5, "epsilon": 0.1}):
        assert not torch.allclose(plain, run("attn_lrp", model, images, target(), conserve=False, **options))
    tiny_epsilon = run("attn_lrp", model, images, target(), conserve=False, epsilon=1e-12)
    torch.testing.assert_close(tiny_epsilon, plain)
    # As a constant, attention is a fixed linear map of the values: of one block with no other branch, a plain product.
    with torch.no_grad():
        for block in model.blocks:
            block.mlp.fc2.weight.zero_()
            block.mlp.fc2.bias.zero_()
        for block in model.blocks[1:]:
            block.attn.proj.weight.zero_()
            block.attn.proj.bias.zero_()
    got = run("attn_lrp", model, images, target(), conserve=False, softmax="constant")
    torch.testing.assert_close(got, by_hand(model, images))


def by_hand(model: ViT, images: Tensor) -> Tensor:
    """Gradient times input of a model with one attention, whose probabilities and deviations are numbers."""
    trace = model.trace(images)
    x = model.embed(images)[0].detach().requires_grad_()

    def norm(t: Tensor, layer: torch.nn.LayerNorm) -> Tensor:
        deviation = (t.var(-1, unbiased=False, keepdim=True) + layer.eps).sqrt().detach()
        return (t - t.mean(-1, keepdim=True)) / deviation * layer.weight + layer.bias

    block, heads = model.blocks[0], model.config.heads
    values = block.attn.qkv(norm(x, block.norm1)).chunk(3, -1)[2].unflatten(-1, (heads, -1)).transpose(1, 2)
    seen = tiny.dense(trace, 0)
    out = x + block.attn.proj((seen @ values).transpose(1, 2).flatten(2))
    logits = norm(out, model.norm)[:, 0] @ model.head.weight.T
    score = logits.gather(1, torch.tensor(CLASSES)[:, None]).sum()
    (slope,) = torch.autograd.grad(score, [x])
    return (x * slope).sum(-1).detach()


# Both


@each_method
@each_model
def test_a_batch_is_its_images_one_by_one(kind: str, method: str) -> None:
    model, images = made(kind), pixels(3)
    together = run(method, model, images, target((3, 5, 3)))
    alone = [run(method, model, images[i : i + 1], target((goal,))) for i, goal in enumerate((3, 5, 3))]
    torch.testing.assert_close(together, torch.cat(alone))
    assert together.shape == (3, len(model.config.prefix) + 6)
    assert torch.isfinite(together).all()
    other = run(method, model, images, target((4, 5, 3)))
    assert torch.equal(other[1:], together[1:])
    assert not torch.allclose(other[0], together[0])


@each_method
@pytest.mark.parametrize("kind", ["cls", "mean", "attention", "distillation"])
def test_a_class_without_weights_has_a_zero_map(kind: str, method: str) -> None:
    model = made(kind)
    with torch.no_grad():  # its bias stays: a number that says nothing about the image
        model.head.weight[7] = 0.0
        if model.head_dist is not None:
            model.head_dist.weight[7] = 0.0
    scores = run(method, model, pixels(), target((7, 3)))
    assert torch.equal(scores[0], torch.zeros_like(scores[0]))
    assert scores[1].abs().max() > 0


@each_method
def test_the_model_is_as_it_was_and_need_not_be_trainable(method: str) -> None:
    model, images = made("rotary"), pixels()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainable = run(method, model, images, target())
    assert not trainable.requires_grad
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with torch.no_grad():  # also where nobody wants a graph
        torch.testing.assert_close(run(method, model.requires_grad_(False), images, target()), trainable)


@each_method
def test_single_precision_is_close_to_double(method: str) -> None:
    model, images = made("attention"), pixels()
    exact = run(method, model, images, target())
    single = run(method, model.float(), images.float(), target())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, rtol=1e-2, atol=1e-3 * exact.abs().max().item())


def test_attention_is_taken_in_pieces_without_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = made("rotary"), pixels()
    whole = run("attn_lrp", model, images, target())
    monkeypatch.setattr("vitviz.attribution.attn_lrp.CHUNK_BYTES", 2 * 5 * 7 * 8 * 3)  # three rows
    torch.testing.assert_close(run("attn_lrp", model, images, target()), whole)


@each_method
def test_another_grid_than_the_models_own(method: str) -> None:
    model = made()
    scores = run(method, model, tiny.images(1, grid=(4, 3), patch=5).double(), target((3,)))
    assert scores.shape == (1, 1 + 12)
    assert scores.abs().max() > 0


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("transformer_lrp", {"start": 3}),
        ("transformer_lrp", {"start": -1}),
        ("attn_lrp", {"gamma_mlp": -0.1}),
        ("attn_lrp", {"gamma_qkv": float("nan")}),
        ("attn_lrp", {"gamma_head": "much"}),
        ("attn_lrp", {"epsilon": -1e-6}),
        ("attn_lrp", {"softmax": "linear"}),
    ],
)
def test_wrong_options_are_refused(method: str, options: dict[str, Any]) -> None:
    with pytest.raises(ExplainError):
        run(method, made(), pixels(), target(), **options)


@each_method
def test_a_model_without_a_classifier_is_refused(method: str) -> None:
    model = tiny.model(**SMALL, classes=0).double()
    with pytest.raises(ExplainError):
        METHODS[method](Case(model, pixels(), None, model.trace(pixels())))


def test_the_registry_names_the_options_and_their_defaults() -> None:
    listed = {method.name: method for method in relevance.METHODS}
    assert set(listed) == set(METHODS)
    for name, method in listed.items():
        assert method.function is METHODS[name]
        assert method.class_specific
        assert method.options == method.function.__kwdefaults__
    assert listed["attn_lrp"].signed
    assert not listed["transformer_lrp"].signed
