"""Edits of a run, against models whose weights were edited by hand and runs that were written out by hand."""

from __future__ import annotations

import copy

import pytest
import tiny
import torch
import torch.nn.functional as F
from edit_cases import KINDS, PATCHES, close, everything, kinds, some_patches
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import vitviz.model.trace
from vitviz.attribution.attention import rollout_matrix
from vitviz.model.config import ModelError
from vitviz.model.edits import Cut, EditError, Edits
from vitviz.model.vit import ViT

# ---- nothing


@kinds
def test_without_edits_a_run_is_the_very_same(changes: dict) -> None:
    model, images = tiny.model(**changes), tiny.images()
    with torch.no_grad():
        plain = model(images)
        tokens, grid = model.embed(images)
        assert torch.equal(model(images, Edits()), plain)
        assert torch.equal(model.run(tokens, model.angles(grid)), plain)
        close(model(images, Edits(cuts=[Cut(queries=(), keys=(1,))])), plain, 1e-6)
        for grad in (False, True):
            traced = model.trace(images, grad=grad)
            edited = model.trace(images, grad=grad, edits=Edits())
            assert torch.equal(edited.logits, traced.logits)
            assert all(torch.equal(a, b) for a, b in zip(edited.attentions, traced.attentions, strict=True))
        close(model(images, Edits(keep=torch.arange(PATCHES)[None])), plain, 1e-6)


@kinds
def test_an_edited_run_leaves_the_model_as_it_was(changes: dict) -> None:
    model, images = tiny.model(**changes), tiny.images()
    before, plain = copy.deepcopy(model.state_dict()), model(images).detach()
    model(images, everything(len(model.config.prefix)))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(images), plain)


# ---- heads


@torch.no_grad()
def silenced(model: ViT, heads: list[tuple[int, int]]) -> ViT:
    """A copy whose output projections do not read these heads."""
    other, wide = copy.deepcopy(model), model.config.head_size
    for block, head in heads:
        other.blocks[block].attn.proj.weight[:, head * wide : (head + 1) * wide] = 0.0
    return other


@kinds
def test_a_zeroed_head_is_a_projection_that_does_not_read_it(changes: dict) -> None:
    model, images = tiny.model(**changes), tiny.images()
    heads = [(0, 1), (2, 0), (2, 4)]
    edits = Edits(heads={(0, 1): "zero", (-1, 0): "zero", (2, 4): "zero"})
    expected = silenced(model, heads)(images)
    assert (expected - model(images)).abs().max() > 1e-2
    close(model(images, edits), expected)
    for grad in (False, True):
        traced, by_hand = model.trace(images, grad=grad, edits=edits), silenced(model, heads).trace(images, grad=grad)
        close(traced.logits, expected)
        for block in range(tiny.DEPTH):
            close(traced.attention(block), by_hand.attention(block))


@kinds
def test_a_head_made_its_mean_adds_its_mean(changes: dict) -> None:
    """Without the head, and its mean over the image's tokens through its part of the projection as one more bias."""
    model, images = tiny.model(**changes), tiny.images()
    tokens, grid = model.embed(images)
    angles, wide = model.angles(grid), model.config.head_size
    for index, block in enumerate(model.blocks):
        attn = block.attn
        if index != 1:
            tokens = block(tokens, angles)
            continue
        q, k, v = attn.project(block.norm1(tokens), angles)
        mixed = (q @ k.mT * wide**-0.5).softmax(-1) @ v  # (B, H, N, d)
        weight = attn.proj.weight.unflatten(1, (tiny.HEADS, wide))  # (D, H * d) -> (D, H, d)
        part = torch.einsum("bhnd,ohd->bhno", mixed, weight)  # what each head writes, (B, H, N, D)
        part[:, 3] = part[:, 3].mean(dim=1, keepdim=True)
        tokens = tokens + block.ls1(part.sum(1) + attn.proj.bias)
        tokens = tokens + block.ls2(block.mlp(block.norm2(tokens)))
    expected = model.classify(model.finish(tokens))
    assert (expected - model(images)).abs().max() > 1e-2
    edits = Edits(heads={(1, 3): "mean"})
    close(model(images, edits), expected)
    close(model.trace(images, edits=edits).logits, expected)
    close(model(images[1:], edits), expected[1:])  # the mean is over the tokens of one image


# ---- edges


def dense_run(model: ViT, tokens: Tensor, allowed: dict[int, Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The blocks of a plain model with N x N matrices in float64, edges cut where `allowed` (H, N, N) is 0.

    The exponentials of all logits are made, those of cut edges dropped, and the rows divided by what is left.
    """
    model, x, seen = copy.deepcopy(model).double(), tokens.double(), []
    heads, wide = tiny.HEADS, model.config.head_size
    for index, block in enumerate(model.blocks):
        a = block.attn
        q, k, v = F.linear(F.layer_norm(x, x.shape[-1:], block.norm1.weight, block.norm1.bias, 1e-6),
                           a.qkv.weight, a.qkv.bias).chunk(3, dim=-1)  # fmt: skip
        out = []
        for h in range(heads):
            part = slice(h * wide, (h + 1) * wide)
            power = (q[..., part] @ k[..., part].mT / wide**0.5).exp()  # (B, N, N)
            power = power * allowed.get(index, torch.ones(heads, 1, 1))[h]
            out.append(power / power.sum(-1, keepdim=True))
        seen.append(torch.stack(out, 1))  # (B, H, N, N)
        mixed = torch.cat([row @ v[..., h * wide : (h + 1) * wide] for h, row in enumerate(out)], dim=-1)
        x = x + F.linear(mixed, a.proj.weight, a.proj.bias)
        x = x + block.mlp(block.norm2(x))
    return model.classify(model.finish(x)), seen


PREFIXED = {
    "CLS": {},
    "CLS, distillation, registers": {"distillation_token": True, "registers": 2},
    "none": {"class_token": False, "pooling": "mean"},
    "attention": {"class_token": False, "registers": 1, "pooling": "attention", "width": 20},
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("changes", PREFIXED.values(), ids=PREFIXED.keys())
def test_a_cut_edge_carries_nothing_and_its_row_is_rescaled(changes: dict, grad: bool) -> None:
    model, images = tiny.model(**changes), tiny.images()
    count = len(model.config.prefix) + PATCHES
    cuts = [
        Cut(block=0, head=1, queries=(0,), keys=(5, 6)),
        Cut(block=0, queries=(3, count - 1), keys=(0,)),
        Cut(block=-1, head=4, keys=(2,)),
        Cut(block=-1, head=4, queries=(7,), keys=tuple(range(7)) + tuple(range(8, count))),
    ]
    first, last = torch.ones(tiny.HEADS, count, count), torch.ones(tiny.HEADS, count, count)
    first[1, 0, 5] = first[1, 0, 6] = first[:, 3, 0] = first[:, count - 1, 0] = 0
    last[4, :, 2] = 0
    last[4, 7] = torch.eye(count)[7]
    edits = Edits(cuts=cuts)
    expected, attention = dense_run(model, model.embed(images)[0], {0: first, 2: last})
    assert (expected - model(images)).abs().max() > 1e-3
    close(model(images, edits), expected)
    trace = model.trace(images, edits=edits, grad=grad)
    close(trace.logits, expected)
    for block in range(tiny.DEPTH):
        close(trace.attention(block), attention[block])
    used = trace.attention(0)
    assert not used[:, 1, 0, 5:7].any()
    assert not used[:, :, [3, count - 1], 0].any()
    assert not trace.column(2, 2)[:, 4].any()
    assert (trace.row(2, 7)[:, 4, 7] == 1).all()
    close(used.sum(-1), torch.ones(tiny.BATCH, tiny.HEADS, count))


def test_a_trace_answers_from_the_attention_that_was_used() -> None:
    """Rows, columns, sums, logarithms and single images of a block with cuts; the others keep no N x N matrix."""
    model, images = tiny.model(registers=1), tiny.images()
    edits = Edits(cuts=[Cut(block=1, queries=(0,), keys=(4, 9)), Cut(block=1, head=3, keys=(8,))])
    trace = model.trace(images, edits=edits)
    used = trace.attention(1)
    kept = trace.block(1)
    assert not used.requires_grad
    assert [trace.block(block).probabilities is None for block in range(3)] == [True, False, True]
    weights = torch.rand(tiny.BATCH, used.shape[-1])
    close(kept.propagate(weights), torch.einsum("bn,bhnm->bhm", weights, used))
    close(trace.row(1, "cls"), used[:, :, 0])
    close(trace.row(1, "mean"), used[:, :, 2:].mean(2))
    close(trace.column(1, 9), used[..., 9])
    assert kept.log_rows(0, 3).isfinite().all()
    close(kept.log_rows(0, 30).exp(), used[:, :, :30])
    close(kept.image(1).log_rows(0, 30).exp(), used[1:, :, :30])
    # Rollout by the strongest head reads logarithms: from the probabilities, not from queries and keys.
    by_hand = torch.eye(used.shape[-1])
    for block in range(3):
        strongest = trace.attention(block).amax(1)
        by_hand = (0.5 * strongest / strongest.sum(-1, keepdim=True) + 0.5 * torch.eye(used.shape[-1])) @ by_hand
    close(rollout_matrix(trace, fuse="max"), by_hand)


def test_gradients_flow_through_what_is_left() -> None:
    model, images = tiny.model(), tiny.images()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    edits = Edits(heads={(1, 0): "zero"}, cuts=[Cut(block=1, head=2, queries=(0,), keys=(5,))])
    trace = model.trace(images, grad=True, edits=edits)
    (gradient,) = torch.autograd.grad(trace.logits[:, 3].sum(), trace.attentions[1])
    assert gradient.isfinite().all()
    assert not gradient[:, 0].any()  # nobody reads this head
    assert gradient[:, 1].abs().max() > 1e-6


# ---- patches


@kinds
def test_what_is_removed_is_a_shorter_sequence(changes: dict) -> None:
    """Each image by itself, the blocks over its shorter sequence, with the positions of the patches that stayed."""
    model, images, keep = tiny.model(**changes), tiny.images(), some_patches(31)
    result = model(images, Edits(keep=keep))
    prefix = len(model.config.prefix)
    embedded, grid = model.embed(images)
    for index in range(tiny.BATCH):
        chosen = sorted(keep[index].tolist())
        tokens = torch.cat([embedded[index, :prefix], *(embedded[index, [prefix + one]] for one in chosen)])[None]
        angles = model.angles(grid)
        if angles is not None:
            angles = angles[0][chosen], angles[1][chosen]
        for block in model.blocks:
            tokens = block(tokens, angles)
        close(result[index], model.classify(model.finish(tokens))[0])
    assert (result - model(images)).abs().max() > 1e-2
    close(model.run(embedded, model.angles(grid), Edits(keep=keep)), result)
    # One image against several sequences, as a curve of removals asks for.
    several = model.run(embedded[:1].expand(2, -1, -1), model.angles(grid), Edits(keep=keep))
    close(several[0], result[0])


def test_what_removed_patches_showed_does_not_matter() -> None:
    for changes in KINDS.values():
        model, images, keep = tiny.model(**changes), tiny.images(), some_patches(31)
        other = torch.randn_like(images)
        for index, chosen in enumerate(keep.tolist()):
            for patch in chosen:
                row, column = (13 * at for at in divmod(patch, 11))
                area = (index, slice(None), slice(row, row + 13), slice(column, column + 13))
                other[area] = images[area]
        close(model(other, Edits(keep=keep)), model(images, Edits(keep=keep)))


def test_nothing_but_prefix_tokens_can_be_left_where_they_carry_the_answer() -> None:
    none = torch.zeros(tiny.BATCH, 0, dtype=torch.long)
    for changes in ({}, {"registers": 2, "class_token": False, "pooling": "attention", "width": 20}):
        model, images = tiny.model(**changes), tiny.images()
        result = model(images, Edits(keep=none))
        close(result[0], result[1])  # nothing of the images is left
        assert result.isfinite().all()
    for changes in ({"class_token": False, "pooling": "mean"}, {"pooling": "cls+mean"}):
        with pytest.raises(EditError, match="at least one patch"):
            tiny.model(**changes)(tiny.images(), Edits(keep=none))


def test_a_smaller_rectangle_can_be_traced() -> None:
    model, images = tiny.model(positions="rotary", head_width=16, registers=1), tiny.images()
    rows, columns = torch.meshgrid(torch.arange(2, 5), torch.arange(3, 8), indexing="ij")
    keep = (rows * 11 + columns).flatten()
    keep = torch.stack([keep, keep + 12])  # another place in the second image
    edits = Edits(keep=keep, cuts=[Cut(block=1, queries=(0,), keys=(2 + 2 * 11 + 3,))])
    trace = model.trace(images, edits=edits)
    assert trace.grid == (3, 5)
    assert trace.tokens.shape[1] == 2 + 15
    close(trace.logits, model(images, edits))
    close(trace.attention(1).sum(-1), torch.ones(tiny.BATCH, tiny.HEADS, 17))
    assert not trace.attention(1)[0, :, 0, 2].any()  # patch (2, 3) is the first that is left in the first image,
    assert trace.attention(1)[1, :, 0].all()  # and not there in the second
    for other in (keep[:, :-1], some_patches(15), torch.zeros(1, 0, dtype=torch.long)):
        with pytest.raises(EditError, match="rectangle"):
            model.trace(images, edits=Edits(keep=other))
    mixed = torch.stack([torch.arange(6), torch.tensor([0, 1, 11, 12, 22, 23])])  # 1 x 6 and 3 x 2
    with pytest.raises(EditError, match="rectangle"):
        model.trace(images, edits=Edits(keep=mixed))


def test_each_image_of_a_batch_has_its_own_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = tiny.model(positions="rotary", head_width=16), tiny.images()
    edits = Edits(keep=torch.stack([torch.arange(2, 8), torch.arange(14, 20)]))
    together = model.trace(images, edits=edits).attention(1)
    monkeypatch.setattr(vitviz.model.trace, "KEEP_BYTES", 0)  # queries and keys are made again
    trace = model.trace(images, edits=edits)
    for index in range(tiny.BATCH):
        close(trace.image(index).attention(1)[0], together[index])


# ---- together


@pytest.mark.parametrize("changes", [c for c in KINDS.values() if c.get("pooling", "cls") == "cls"])
def test_all_at_once_is_what_each_does(changes: dict) -> None:
    """Where CLS alone is read, a removed patch is a key that nobody may attend to, and cuts name the same tokens."""
    model, images = tiny.model(**changes), tiny.images()
    prefix, keep = len(model.config.prefix), torch.arange(0, 40)[None]
    cuts = everything(prefix).cuts
    heads = {(0, 1): "zero", (-1, 4): "zero"}
    removed = tuple(range(prefix + 40, prefix + PATCHES))
    result = model(images, Edits(heads=heads, cuts=cuts, keep=keep))
    close(result, silenced(model, [(0, 1), (2, 4)])(images, Edits(cuts=(*cuts, Cut(keys=removed)))))
    for other in (Edits(heads=heads, cuts=cuts), Edits(heads=heads, keep=keep), Edits(cuts=cuts, keep=keep)):
        assert (result - model(images, other)).abs().max() > 1e-5


@kinds
def test_the_order_does_not_matter(changes: dict) -> None:
    model, images = tiny.model(**changes), tiny.images()
    whole = everything(len(model.config.prefix))
    parts = [Edits(heads=whole.heads), Edits(cuts=whole.cuts), Edits(keep=whole.keep)]
    expected = model(images, whole)
    close(model(images, parts[0] | parts[1] | parts[2]), expected, 1e-6)
    close(model(images, parts[2] | (parts[1] | parts[0])), expected, 1e-6)
    assert not (Edits() | Edits())
    assert bool(Edits() | whole)


def test_what_two_edits_remove_is_gone_in_both() -> None:
    first, second = Edits(keep=torch.tensor([[5, 3, 9, 1]])), Edits(keep=torch.tensor([[9, 2, 5], [3, 1, 70]]))
    assert (first | second).keep.tolist() == (second | first).keep.tolist() == [[5, 9], [1, 3]]
    with pytest.raises(EditError, match=r"\[2, 1\]"):
        first | Edits(keep=torch.tensor([[9, 2, 5], [3, 20, 70]]))
    with pytest.raises(EditError, match="2 and for 3"):
        second | Edits(keep=torch.zeros(3, 1, dtype=torch.long))


SMALL = {"grid": (3, 4), "patch": 5}
SMALL_MODEL = tiny.model(**SMALL)
PLACES = st.integers(0, tiny.DEPTH - 1), st.integers(0, tiny.HEADS - 1)
HEADS = st.dictionaries(st.tuples(*PLACES), st.sampled_from(["zero", "mean"]), max_size=5)
TOKENS = st.lists(st.integers(0, 12), max_size=5).map(tuple)


@settings(max_examples=25)
@given(
    HEADS, st.lists(st.tuples(*PLACES, TOKENS, TOKENS), max_size=4), st.sets(st.integers(0, 11), min_size=1)
)  # fmt: skip
def test_any_edits_trace_as_they_run(heads: dict, edges: list, stay: set[int]) -> None:
    model, images = SMALL_MODEL, tiny.images(1, **SMALL)
    # CLS (token 0) can always be attended to, so that no row becomes empty, whatever is removed.
    cuts = [Cut(block=b, head=h, queries=q, keys=tuple(key for key in k if key)) for b, h, q, k in edges]
    edits, removed = Edits(heads=heads, cuts=cuts), Edits(keep=torch.tensor([list(stay)]))
    with torch.no_grad():
        edited = model(images, edits)
        close(model.trace(images, edits=edits).logits, edited)
        close(model(images, edits | Edits(keep=torch.arange(12)[None])), edited, 1e-6)
        close(model(images, edits | removed), model(images, removed | edits | removed), 1e-6)


def test_a_run_from_the_middle_is_the_rest_of_a_run() -> None:
    model, images = tiny.model(positions="rotary", head_width=16), tiny.images()
    trace, angles = model.trace(images), model.angles(tiny.GRID)
    edits = Edits(heads={(2, 1): "zero"}, cuts=[Cut(block=1, queries=(0,), keys=(4,))])
    close(model.run(trace.stream(1), angles, edits, start=1), model(images, edits))
    with pytest.raises(EditError, match=r"\[1\]"):
        model.run(trace.stream(2), angles, edits, start=2)
    for start in (-1, 3):
        with pytest.raises(ModelError, match=r"0\.\.2"):
            model.run(trace.stream(0), angles, start=start)
