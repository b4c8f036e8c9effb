"""Test edits of a forward pass against the reference implementation."""

import copy
from collections.abc import Callable

import pytest
import reference_vit as reference
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import close

import vitviz.model.trace
from vitviz.model.config import ModelError
from vitviz.model.edits import Cut, EditError, Edits
from vitviz.model.vit import ViT

pytestmark = pytest.mark.usefixtures("one_thread")
kinds = pytest.mark.parametrize("kind", tiny.KINDS)
ROTARY = tiny.KINDS["registers, rotary"]
PATCHES = tiny.GRID[0] * tiny.GRID[1]


def some_patches(count: int) -> torch.Tensor:
    """Return remaining patches, different ones in each image, unsorted: (B, K)."""
    generator = torch.Generator().manual_seed(0)
    return torch.stack([torch.randperm(PATCHES, generator=generator)[:count] for _ in range(tiny.BATCH)])


def everything(prefix: int) -> Edits:
    cuts = [
        Cut(block=1, head=2, queries=(0,), keys=(5, 6)),
        Cut(block=-1, queries=(prefix + 3, prefix + 4), keys=(0, prefix + 9)),
    ]
    return Edits(heads={(0, 1): "zero", (-2, 4): "mean"}, cuts=cuts, keep=some_patches(31))


@kinds
def test_empty_edits_change_nothing_and_no_edit_changes_weights(kind: str) -> None:
    model, images = tiny.model(**tiny.KINDS[kind]), tiny.images()
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        logits = model(images)
        tokens, grid = model.embed(images)
        assert torch.equal(model(images, Edits()), logits)
        assert torch.equal(model.run(tokens, model.angles(grid)), logits)
        close(model(images, Edits(cuts=[Cut(queries=(), keys=(1,))])), logits, 1e-6)
        for grad in (False, True):
            traced = model.trace(images, grad=grad)
            edited = model.trace(images, grad=grad, edits=Edits())
            assert torch.equal(edited.logits, traced.logits)
            assert all(torch.equal(a, b) for a, b in zip(edited.attentions, traced.attentions, strict=True))
        close(model(images, Edits(keep=torch.arange(PATCHES)[None])), logits, 1e-6)
        model(images, everything(len(model.config.prefix)))
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert torch.equal(model(images), logits)


def edits_of(name: str, prefix: int) -> Edits:
    last = prefix + PATCHES - 1
    lone = Cut(block=-1, head=4, queries=(7,), keys=(*range(7), *range(8, last + 1)))
    cuts = [Cut(block=0, head=1, queries=(0,), keys=(5, 6)), Cut(block=0, queries=(3, last), keys=(0,))]
    return {
        "zeroed heads": Edits(heads={(0, 1): "zero", (-1, 0): "zero", (2, 4): "zero"}),
        "a head set to its mean": Edits(heads={(1, 3): "mean"}),
        "cut edges": Edits(cuts=[*cuts, Cut(block=-1, head=4, keys=(2,)), lone]),
        "removed patches": Edits(keep=some_patches(31)),
        "everything": everything(prefix),
    }[name]


def written_out(model: ViT, images: torch.Tensor, edits: Edits) -> list[reference.Run]:
    """Run the reference on each image separately."""
    count = len(model.config.prefix) + PATCHES
    heads = {(block % tiny.DEPTH, head): mode for (block, head), mode in edits.heads.items()}
    allowed = {block: torch.ones(tiny.HEADS, count, count) for block in range(tiny.DEPTH)}
    for cut in edits.cuts:
        rows, keys = (torch.tensor(range(count) if at is None else at)[:, None] for at in (cut.queries, cut.keys))
        for block in range(tiny.DEPTH) if cut.block is None else [cut.block % tiny.DEPTH]:
            allowed[block][slice(None) if cut.head is None else cut.head][..., rows, keys.T] = 0
    stay = [None] * len(images) if edits.keep is None else [sorted(row.tolist()) for row in edits.keep]
    changes = [reference.Changes(allowed, heads, keep) for keep in stay]
    return [reference.run(model, images[i : i + 1], changes=change) for i, change in enumerate(changes)]


@pytest.mark.parametrize(
    "edit", ["zeroed heads", "a head set to its mean", "cut edges", "removed patches", "everything"]
)
@kinds
def test_edited_run_matches_reference(kind: str, edit: str) -> None:
    """Check that a head's mean is over the tokens of one image, and removed patches have no influence."""
    model, images = tiny.model(**tiny.KINDS[kind]), tiny.images()
    edits = edits_of(edit, len(model.config.prefix))
    runs = written_out(model, images, edits)
    expected = torch.cat([run.logits.tensor for run in runs])
    assert (expected - model(images)).abs().max() > 1e-4
    close(model(images, edits), expected)
    if edits.keep is None:
        for trace in (model.trace(images, edits=edits, grad=grad) for grad in (False, True)):
            close(trace.logits, expected)
            for block in range(tiny.DEPTH):
                close(trace.attention(block), torch.cat([run.attentions[block].tensor for run in runs]))
    else:  # one image with several sequences, as in a deletion curve
        tokens, grid = model.embed(images)
        close(model.run(tokens[:1].expand(2, -1, -1), model.angles(grid), edits)[:1], expected[:1])


def test_trace_queries_use_the_edited_attention() -> None:
    """Check all queries of a block with cuts; other blocks keep no N x N matrix."""
    model, images = tiny.model(registers=1), tiny.images()
    edits = Edits(cuts=[Cut(block=1, queries=(0,), keys=(4, 9)), Cut(block=1, head=3, keys=(8,))])
    trace = model.trace(images, edits=edits)
    attention, block_trace = trace.attention(1), trace.block(1)
    assert not attention.requires_grad
    assert [trace.block(block).probabilities is None for block in range(3)] == [True, False, True]
    weights = torch.rand(tiny.BATCH, attention.shape[-1])
    close(block_trace.propagate(weights), torch.einsum("bn,bhnm->bhm", weights, attention))
    close(trace.row(1, "cls"), attention[:, :, 0])
    close(trace.row(1, "mean"), attention[:, :, 2:].mean(2))
    close(trace.column(1, 9), attention[..., 9])
    assert block_trace.log_rows(0, 3).isfinite().all()
    close(block_trace.log_rows(0, 30).exp(), attention[:, :, :30])
    close(block_trace.image(1).log_rows(0, 30).exp(), attention[1:, :, :30])


def test_gradients_reach_remaining_heads_only() -> None:
    edits = Edits(heads={(1, 0): "zero"}, cuts=[Cut(block=1, head=2, queries=(0,), keys=(5,))])
    trace = tiny.model().requires_grad_(False).trace(tiny.images(), grad=True, edits=edits)
    (gradient,) = torch.autograd.grad(trace.logits[:, 3].sum(), trace.attentions[1])
    assert gradient.isfinite().all()
    assert not gradient[:, 0].any()  # a silenced head has no effect
    assert gradient[:, 1].abs().max() > 1e-6


def test_removing_all_patches_needs_a_pooled_prefix_token() -> None:
    none = torch.zeros(tiny.BATCH, 0, dtype=torch.long)
    for changes in ({}, {"registers": 2, "class_token": False, "pooling": "attention", "width": 20}):
        result = tiny.model(**changes)(tiny.images(), Edits(keep=none))
        close(result[0], result[1])  # the images have no patches left
        assert result.isfinite().all()
    for changes in ({"class_token": False, "pooling": "mean"}, {"pooling": "cls+mean"}):
        with pytest.raises(EditError, match="at least one patch"):
            tiny.model(**changes)(tiny.images(), Edits(keep=none))


def test_trace_of_a_rectangle_of_patches_matches_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = tiny.model(positions="rotary", head_width=16, registers=1), tiny.images()
    rows, columns = torch.meshgrid(torch.arange(2, 5), torch.arange(3, 8), indexing="ij")
    keep = (rows * 11 + columns).flatten()
    keep = torch.stack([keep, keep + 12])  # another position in the second image
    edits = Edits(keep=keep, cuts=[Cut(block=1, queries=(0,), keys=(2 + 2 * 11 + 3,))])
    trace = model.trace(images, edits=edits)
    assert trace.grid == (3, 5)
    assert trace.tokens.shape[1] == 2 + 15
    close(trace.logits, model(images, edits))
    close(trace.attention(1).sum(-1), torch.ones(tiny.BATCH, tiny.HEADS, 17))
    assert not trace.attention(1)[0, :, 0, 2].any()  # patch (2, 3) is the first remaining one in the first image,
    assert trace.attention(1)[1, :, 0].all()  # and removed in the second
    attention = trace.attention(2)
    monkeypatch.setattr(vitviz.model.trace, "KEEP_BYTES", 0)  # queries and keys are recomputed, rotated per image
    recomputed = model.trace(images, edits=edits)
    for index in range(tiny.BATCH):
        close(recomputed.image(index).attention(2)[0], attention[index])
    mixed = torch.stack([torch.arange(6), torch.tensor([0, 1, 11, 12, 22, 23])])  # 1 x 6 and 3 x 2
    for patches in (keep[:, :-1], some_patches(15), torch.zeros(1, 0, dtype=torch.long), mixed):
        with pytest.raises(EditError, match="rectangle"):
            model.trace(images, edits=Edits(keep=patches))


def test_edits_combine_in_any_order() -> None:
    model, images = tiny.model(**ROTARY), tiny.images()
    combined = everything(len(model.config.prefix))
    parts = [Edits(heads=combined.heads), Edits(cuts=combined.cuts), Edits(keep=combined.keep)]
    close(model(images, parts[2] | (parts[1] | parts[0])), model(images, combined), 1e-6)
    assert not (Edits() | Edits())
    assert bool(Edits() | combined)
    # A patch remains only if both edits keep it.
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
@given(HEADS, st.lists(st.tuples(*PLACES, TOKENS, TOKENS), max_size=4), st.sets(st.integers(0, 11), min_size=1))
def test_trace_of_any_edits_matches_forward(heads: dict, edges: list, remaining: set[int]) -> None:
    model, images = SMALL_MODEL, tiny.images(1, **SMALL)
    # Edges to CLS (token 0) are never cut, so no row becomes empty.
    cuts = [Cut(block=b, head=h, queries=q, keys=tuple(key for key in k if key)) for b, h, q, k in edges]
    edits, removed = Edits(heads=heads, cuts=cuts), Edits(keep=torch.tensor([list(remaining)]))
    with torch.no_grad():
        edited = model(images, edits)
        close(model.trace(images, edits=edits).logits, edited)
        close(model(images, edits | Edits(keep=torch.arange(12)[None])), edited, 1e-6)
        close(model(images, edits | removed), model(images, removed | edits | removed), 1e-6)


def test_run_from_a_later_block_matches_the_whole_run() -> None:
    model, images = tiny.model(positions="rotary", head_width=16), tiny.images()
    trace, angles = model.trace(images), model.angles(tiny.GRID)
    edits = Edits(heads={(2, 1): "zero"}, cuts=[Cut(block=1, queries=(0,), keys=(4,))])
    close(model.run(trace.stream(1), angles, edits, start=1), model(images, edits))
    with pytest.raises(EditError, match=r"\[1\]"):
        model.run(trace.stream(2), angles, edits, start=2)
    for start in (-1, 3):
        with pytest.raises(ModelError, match=r"0\.\.2"):
            model.run(trace.stream(0), angles, start=start)


PART = Edits(heads=everything(4).heads, cuts=everything(4).cuts)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 0.2), (torch.float16, 0.03), (torch.float64, 1e-4)], ids=str
)
def test_other_precisions_stay_close(dtype: torch.dtype, tolerance: float) -> None:
    model, images, edits = tiny.model(**ROTARY), tiny.images(), everything(4)
    expected = model(images, edits)
    with torch.autocast("cpu", torch.bfloat16):
        close(model(images, edits), expected, 0.2)
        close(model.trace(images, edits=Edits(cuts=edits.cuts)).logits, model(images, Edits(cuts=edits.cuts)), 0.2)
    model, images = model.to(dtype), images.to(dtype)
    result = model(images, edits)
    assert result.dtype == dtype
    close(result, expected, tolerance)
    trace = model.trace(images, edits=PART)
    close(trace.logits, model(images, PART), tolerance)
    close(trace.attention(1).sum(-1), torch.ones(trace.attention(1).shape[:-1]), 5e-3)


@pytest.mark.tier("all")
def test_compiled_model_accepts_edits() -> None:
    model, images = tiny.model(depth=1, **tiny.SMALL), tiny.images(**tiny.SMALL)
    cuts, keep = [Cut(queries=(0,), keys=(2, 3))], torch.arange(9)[None]
    edits = Edits(heads={(0, 1): "zero", (-1, 4): "mean"}, cuts=cuts, keep=keep)
    with torch.no_grad():
        close(torch.compile(model, backend="eager")(images, edits), model(images, edits))
        close(torch.compile(model, backend="eager", fullgraph=True)(images), model(images))


def test_edits_follow_the_models_device() -> None:
    """The meta device computes nothing, but like a GPU it rejects arithmetic with CPU tensors."""
    model, images = tiny.model(**ROTARY).to("meta"), tiny.images().to("meta")
    with pytest.raises(RuntimeError, match="device"):
        images + torch.zeros_like(images, device="cpu")
    for edits in (everything(4), PART):
        assert model(images, edits).is_meta


@pytest.mark.cuda
def test_gpu_matches_cpu() -> None:
    model, images = tiny.model(**ROTARY), tiny.images()
    edits = everything(4)
    expected = model(images, edits)
    close(model.cuda()(images.cuda(), edits).cpu(), expected, 1e-3)
    close(model.trace(images.cuda(), edits=PART).logits.cpu(), model.cpu()(images, PART), 1e-3)


@pytest.mark.parametrize(
    ("edits", "facts"),
    [
        (Edits(heads={(3, 0): "zero"}), ["block", "0..2", "-3..-1", "3"]),
        (Edits(heads={(-4, 0): "zero"}), ["block", "-4"]),
        (Edits(heads={(0, 5): "mean"}), ["head", "0..4", "5"]),
        (Edits(heads={(0, -1): "mean"}), ["head", "0..4", "-1"]),
        (Edits(heads={(2, 1): "mean", (-1, 1): "zero"}), ["(-1, 1)", "'zero'", "'mean'"]),
        (Edits(cuts=[Cut(block=7, keys=(0,))]), ["block", "0..2", "7"]),
        (Edits(cuts=[Cut(head=5, keys=(0,))]), ["head", "0..4", "5"]),
        (Edits(cuts=[Cut(queries=(78,), keys=(0,))]), ["token", "0..77", "78"]),
        (Edits(cuts=[Cut(queries=(0,), keys=(-1,))]), ["token", "0..77", "-1"]),
        (Edits(cuts=[Cut(block=1, head=2, queries=(6,))]), ["token 6", "block 1", "head 2", "zero"]),
        (Edits(cuts=[Cut(queries=(77,))], keep=torch.tensor([[65, 76]])), ["token 77", "block 0", "every"]),
        (Edits(keep=torch.tensor([[3, 77]])), ["0..76", "77"]),
        (Edits(keep=torch.tensor([[1], [2], [3]])), ["batch", "2", "(3, 1)"]),
    ],
)  # fmt: skip
def test_edits_outside_the_model_raise(edits: Edits, facts: list[str]) -> None:
    model = tiny.model()
    for run in (model, model.trace):
        with pytest.raises(EditError) as caught:
            run(tiny.images(), edits=edits)
        assert all(fact in str(caught.value) for fact in facts), str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Edits(heads={(0, 1): "off"}),
        lambda: Edits(heads={3: "zero"}),
        lambda: Edits(heads={(0, 1.5): "zero"}),
        lambda: Edits(cuts=[(0, 1)]),
        lambda: Cut(block=True),
        lambda: Cut(queries=("cls",)),
        lambda: Cut(keys="cls"),
        lambda: Edits(keep=[[1, 2]]),
        lambda: Edits(keep=torch.tensor([1, 2])),
        lambda: Edits(keep=torch.tensor([[1.0, 2.0]])),
        lambda: Edits(keep=torch.ones(1, 77, dtype=torch.bool)),
        lambda: Edits(keep=torch.tensor([[-1, 2]])),
        lambda: Edits(keep=torch.tensor([[4, 2], [3, 3]])),
        lambda: Edits(heads={(0, 1): "zero"}) | Edits(heads={(0, 1): "mean"}),
    ],
)
def test_invalid_edits_raise_on_construction(make: Callable[[], object]) -> None:
    with pytest.raises(EditError, match=r"[Ee]xpected .*got"):
        make()
