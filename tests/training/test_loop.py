"""Whole trainings of tiny models: that they learn, and that each setting does what it says."""

import csv
import math
from dataclasses import fields, replace
from pathlib import Path

import pytest
import tiny
import torch
import torch.nn.functional as F
import training_cases as cases
from torch import Tensor

from vitviz.model.vit import Pretrained, ViT
from vitviz.training import TrainingError, log
from vitviz.training.log import Epoch, Log
from vitviz.training.loop import Outcome, Trainer
from vitviz.training.optim import warmup_then

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A training of six epochs, and its folder."""
    out = tmp_path_factory.mktemp("plain") / "out"
    return out, cases.train(out, cases.recipe(epochs=6))


def test_the_loss_goes_down_and_everything_is_written(plain: tuple[Path, Outcome]) -> None:
    out, outcome = plain
    assert len(outcome.losses) == 6 * 6
    assert float(outcome.losses[-6:].mean()) < 0.5 * float(outcome.losses[0]) < 0.6 * math.log(3)
    assert outcome.accuracy.top1 > 0.8
    with (out / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3, 4, 5, 6]
    for number, (row, kept) in enumerate(zip(rows, outcome.epochs, strict=True)):
        assert float(row["loss"]) == pytest.approx(float(outcome.losses[6 * number : 6 * number + 6].mean()), rel=1e-4)
        assert float(row["top1"]) == pytest.approx(kept.top1, rel=1e-4)
        assert int(row["step"]) == 6 * (number + 1)
    assert any("4 of 52" in note for note in outcome.notes)
    assert not outcome.model.training
    assert all(parameter.requires_grad for parameter in outcome.model.parameters())


def test_events_can_be_read(plain: tuple[Path, Outcome]) -> None:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    (path,) = (plain[0] / "events").iterdir()
    data, at, seen = path.read_bytes(), 0, {}
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        assert int.from_bytes(data[at + 8 : at + 12], "little") == masked_crc32c(data[at : at + 8])
        event = Event.FromString(data[at + 12 : at + 12 + length])
        seen |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        at += 12 + length + 4
    for row in plain[1].epochs:
        assert seen["epoch/top1", row.step] == pytest.approx(row.top1)
        assert seen["epoch/loss", row.step] == pytest.approx(row.loss)


def test_bfloat16_learns_with_weights_in_float32(tmp_path: Path, plain: tuple[Path, Outcome]) -> None:
    half = cases.train(tmp_path / "half", cases.recipe(epochs=6, precision="bfloat16"))
    assert not torch.equal(half.losses, plain[1].losses)  # it was another precision
    torch.testing.assert_close(half.losses, plain[1].losses, atol=0.15, rtol=0)
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.float32}
    with pytest.raises(TrainingError, match="Expected a GPU"):
        cases.train(tmp_path / "fp16", cases.recipe(precision="float16"))


def test_losses_and_weights_are_those_of_plain_adamw(tmp_path: Path) -> None:
    data = cases.data(train=8, val=5)
    the_recipe = cases.recipe(epochs=7, batch=8, warmup=2.0, ema=0.0, clip=0.05, weight_decay=0.3)
    outcome = Trainer(cases.model(data), data, the_recipe, tmp_path, device="cpu", progress=False).run()
    vit, losses = cases.model(data), []
    mean, std = (torch.tensor(one)[:, None, None] for one in (cases.MEAN, cases.STD))
    images = (data.train.read(torch.arange(8)) / 255 - mean) / std
    decayed = {name for name, one in vit.named_parameters() if one.ndim > 1 and not name.endswith(("token", "embed"))}
    groups = [
        {"params": [one for name, one in vit.named_parameters() if (name in decayed) == decays], "weight_decay": decay}
        for decays, decay in ((True, 0.3), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups)
    rates = [3e-3 * share for share in map(warmup_then("cosine", 7, 2), range(7))]
    for rate in rates:
        optimizer.zero_grad()
        loss = F.cross_entropy(vit(images), data.train.classes)
        loss.backward()
        losses.append(float(loss.detach()))
        torch.nn.utils.clip_grad_norm_(vit.parameters(), 0.05)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    assert outcome.losses.tolist() == pytest.approx(losses, abs=2e-5)
    for name, one in vit.state_dict().items():
        if name.endswith("qkv.bias"):
            continue  # the keys' bias changes no attention: its gradient is rounding alone, which Adam makes large
        torch.testing.assert_close(outcome.model.state_dict()[name], one, atol=2e-4, rtol=1e-3, msg=name)
    assert [row.lr for row in outcome.epochs] == pytest.approx(rates)


def test_accumulated_batches_are_the_whole_batch(tmp_path: Path) -> None:
    settings = {"smoothing": 0.1, "epochs": 2}
    whole = cases.train(tmp_path / "whole", cases.recipe(**settings))
    parts = cases.train(tmp_path / "parts", cases.recipe(**settings, accumulate=4))
    torch.testing.assert_close(parts.losses, whole.losses, atol=1e-5, rtol=1e-5)
    assert parts.epochs[-1].accuracy == whole.epochs[-1].accuracy


def test_the_running_mean_is_validated_and_saved(tmp_path: Path) -> None:
    data = cases.data()
    vit = cases.model(data)
    seen: list[dict[str, Tensor]] = []
    undo = cases.at_step(0, lambda: seen.append(cases.weights(vit)))
    trainer = Trainer(vit, data, cases.recipe(ema=0.7), tmp_path, device="cpu", progress=False)
    trainer.on_epoch = lambda rows: seen.append(cases.weights(vit)) if len(rows) == 3 else None
    outcome = trainer.run()
    undo()
    assert len(seen) == 19  # before each of 18 steps, and after the last one
    mean = {name: one.double() for name, one in seen[1].items()}
    for number, state in enumerate(seen[2:], 1):
        decay = min(0.7, (1 + number) / (10 + number))
        mean = {name: decay * one + (1 - decay) * state[name].double() for name, one in mean.items()}
    for name, one in outcome.model.named_parameters():
        torch.testing.assert_close(one.detach().double(), mean[name], atol=1e-5, rtol=1e-4, msg=name)
    # What is told is what this model does; tests/evaluation/test_accuracy.py has the sums.
    mean, std = (torch.tensor(one)[:, None, None] for one in (cases.MEAN, cases.STD))
    logits = outcome.model((data.val.read(torch.arange(23)) / 255 - mean) / std).detach()
    assert outcome.accuracy.predicted.tolist() == logits.argmax(1).tolist()
    assert outcome.accuracy.top1 == pytest.approx(float((logits.argmax(1) == data.val.classes).float().mean()))
    assert outcome.accuracy.loss == pytest.approx(float(F.cross_entropy(logits, data.val.classes)), rel=1e-4)
    assert outcome.accuracy.top5 == 1.0


@pytest.mark.parametrize(("last", "flip"), [(0, False), (2, True), (2, False)])
def test_frozen_parts_stay_and_the_others_learn(tmp_path: Path, last: int, flip: bool) -> None:
    data = cases.data()
    vit = cases.model(data, pooling="cls+mean")
    tiny.randomise(vit, 0)
    before = cases.weights(vit)
    frozen = cases.recipe(unfreeze_last=last, flip=flip, epochs=6, head_lr=0.03)
    outcome = Trainer(vit, data, frozen, tmp_path, device="cpu", progress=False).run()
    learns = ("head.", *(f"blocks.{index}." for index in range(3 - last, 3)), *(["norm."] if last else []))
    for name, one in outcome.model.state_dict().items():
        assert one.equal(before[name]) != name.startswith(learns), name
    assert (tmp_path / "cache").exists() == (not flip)
    assert float(outcome.losses[-6:].mean()) < float(outcome.losses[:3].mean())


def teacher() -> ViT:
    """It knows the stripes, in another order, and other things."""
    vit = tiny.model(3, grid=(4, 4), patch=3, classes=4)
    feed = cases.data().preprocess((0.1, 0.2, 0.3), (0.5,) * 3)
    vit.pretrained = Pretrained(name="teacher", preprocess=feed, labels=("church", "dog", "ox", "golf ball"))
    return vit


@pytest.mark.parametrize(("kind", "flip"), [("soft", False), ("hard", True)])
def test_a_student_learns_its_teacher_by_the_distillation_token(tmp_path: Path, kind: str, flip: bool) -> None:
    taught = cases.recipe(epochs=8, distill=kind, alpha=1.0, flip=flip, ema=0.0)
    data = cases.data()
    vit = cases.model(data, distillation_token=True)
    outcome = Trainer(vit, data, taught, tmp_path, device="cpu", teacher=teacher(), progress=False).run()
    assert not outcome.model.head.weight.any()  # alpha is 1: only the other classifier was told anything
    assert outcome.model.head_dist.weight.any()
    first, last = (float(part.mean()) for part in (outcome.losses[:6], outcome.losses[-6:]))
    assert last < 0.8 * first


def test_numbers_that_are_not_finite_end_a_training_and_replace_no_good_state(tmp_path: Path) -> None:
    data = cases.data()
    vit = cases.model(data)
    undo = cases.at_step(8, lambda: vit.head.bias.register_hook(lambda grad: grad * math.nan))
    with pytest.raises(TrainingError, match="finite"):
        Trainer(vit, data, cases.recipe(), tmp_path / "good", device="cpu", save_every=0, progress=False).run()
    undo()
    assert cases.step_of(tmp_path / "good") == 7
    assert cases.train(tmp_path / "good", resume=True).losses.equal(cases.train(tmp_path / "other").losses)
    vit = cases.model(data)
    with torch.no_grad():
        vit.blocks[1].mlp.fc1.weight[0, 0] = math.nan
    with pytest.raises(TrainingError, match=r"finite loss.*step 1 of 6 in epoch 1.*--lr.*none was saved"):
        Trainer(vit, data, cases.recipe(), tmp_path / "bad", device="cpu", save_every=0, progress=False).run()
    assert cases.step_of(tmp_path / "bad") == 0


def test_models_data_and_teachers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    data = cases.data()
    good = cases.model(data)
    feed, sizes = good.pretrained.preprocess, good.config
    crop = replace(feed, mode="crop", resize=cases.SIDE)
    for match, vit, settings, more in [
        ("classifier", ViT(sizes), {}, {}),
        ("at most all 52", good, {"batch": 64}, {}),
        ("their order", ViT(sizes, Pretrained(name="", preprocess=feed, labels=("a", "b", "c"))), {}, {}),
        ("mode='squash'.*mode='crop'", ViT(sizes, Pretrained(name="", preprocess=crop, labels=data.labels)), {}, {}),
        ("Expected a teacher", good, {}, {"teacher": teacher()}),
        ("Expected a teacher", good, {"distill": "soft"}, {}),
    ]:
        with pytest.raises(TrainingError, match=match):
            Trainer(vit, data, cases.recipe(**settings), tmp_path, device="cpu", progress=False, **more).run()


def test_dropouts_are_the_recipes_and_the_callers_random_numbers_and_threads_stay(tmp_path: Path) -> None:
    """All patches are seen in the last fifth of the steps."""
    data = cases.data()
    vit, tokens = cases.model(data, dropout=0.1), []

    def count(module: torch.nn.Module, args: tuple[Tensor, ...], _out: Tensor) -> None:
        if module.training:
            tokens.append(args[0].shape[1])

    vit.blocks[0].register_forward_hook(count)
    recipe = cases.recipe(patch_dropout=0.5, ema=0.0, dropout=0.2, flip=True, mixup=0.5)
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    Trainer(vit, data, recipe, tmp_path, device="cpu", progress=False).run()
    assert torch.rand(3).equal(expected)
    assert torch.get_num_threads() == 1
    assert vit.config.dropout == 0.2
    assert tokens == [9] * 14 + [17] * 4  # 18 steps, 16 patches and the class token


def test_without_a_terminal_long_epochs_say_where_they_are_and_five_classes_have_no_top_five(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Epoch(**{field.name: 1.0 for field in fields(Epoch)})
    assert "top-5" not in row.describe(2, classes=5)
    assert "top-5 100 %" in row.describe(2, classes=6)
    now = [1000.0]
    monkeypatch.setattr(log.time, "monotonic", lambda: now[0])
    made = Log(tmp_path, 2, 200, 10, 0, progress=True)
    made.begin(0, 100, 0)
    for number in range(10, 60, 10):
        now[0] += 12.0
        made.steps(number, 10, 1.5, 0.001, 640.0)
    made.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["step 30 of 200"]  # after 36 s; the next would come after 66 s
    assert "03:24 left" in lines[0]  # 36 s for 30 steps, 170 to go
