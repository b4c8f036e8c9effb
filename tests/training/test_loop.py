"""Test the training loop on tiny models: whether they learn, and the effect of each setting."""

import csv
import math
from collections.abc import Sequence
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
from vitviz.training.loop import Outcome
from vitviz.training.optim import warmup_then

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """Return the folder and the outcome of a training run of six epochs."""
    out = tmp_path_factory.mktemp("plain") / "out"
    return out, cases.train(out, cases.recipe(epochs=6))


def test_training_reduces_the_loss_and_writes_curves(plain: tuple[Path, Outcome]) -> None:
    out, outcome = plain
    assert len(outcome.losses) == 6 * 6
    assert float(outcome.losses[-6:].mean()) < 0.5 * float(outcome.losses[0]) < 0.6 * math.log(3)
    assert outcome.accuracy.top1 > 0.8
    with (out / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3, 4, 5, 6]
    for number, (row, epoch) in enumerate(zip(rows, outcome.epochs, strict=True)):
        assert float(row["loss"]) == pytest.approx(float(outcome.losses[6 * number : 6 * number + 6].mean()), rel=1e-4)
        assert float(row["top1"]) == pytest.approx(epoch.top1, rel=1e-4)
        assert int(row["step"]) == 6 * (number + 1)
    assert any("4 of 52" in note for note in outcome.notes)
    assert not outcome.model.training
    assert all(parameter.requires_grad for parameter in outcome.model.parameters())


def test_tensorboard_events_are_valid(plain: tuple[Path, Outcome]) -> None:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    (path,) = (plain[0] / "events").iterdir()
    data, at, values = path.read_bytes(), 0, {}
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        assert int.from_bytes(data[at + 8 : at + 12], "little") == masked_crc32c(data[at : at + 8])
        event = Event.FromString(data[at + 12 : at + 12 + length])
        values |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        at += 12 + length + 4
    for row in plain[1].epochs:
        assert values["epoch/top1", row.step] == pytest.approx(row.top1)
        assert values["epoch/loss", row.step] == pytest.approx(row.loss)


def test_bfloat16_training_keeps_weights_in_float32(tmp_path: Path, plain: tuple[Path, Outcome]) -> None:
    half = cases.train(tmp_path / "half", cases.recipe(epochs=6, precision="bfloat16"))
    assert not torch.equal(half.losses, plain[1].losses)
    torch.testing.assert_close(half.losses, plain[1].losses, atol=0.15, rtol=0)
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.float32}
    with pytest.raises(TrainingError, match="Expected a GPU"):
        cases.train(tmp_path / "fp16", cases.recipe(precision="float16"))


def test_training_matches_plain_adamw(tmp_path: Path) -> None:
    data = cases.data(train=8, val=5)
    recipe = cases.recipe(epochs=7, batch=8, warmup=2.0, ema=0.0, clip=0.05, weight_decay=0.3)
    outcome = cases.run(tmp_path, cases.model(data), data, recipe)
    vit, losses = cases.model(data), []
    images = cases.normalized(data.train)
    groups = [{"params": [], "weight_decay": 0.0}, {"params": [], "weight_decay": 0.3}]
    for name, parameter in vit.named_parameters():
        groups[parameter.ndim > 1 and not name.endswith(("token", "embed"))]["params"].append(parameter)
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
    for name, weight in vit.state_dict().items():
        if name.endswith("qkv.bias"):
            continue  # the keys' bias has no effect: Adam amplifies the rounding errors in its gradient
        torch.testing.assert_close(outcome.model.state_dict()[name], weight, atol=2e-4, rtol=1e-3, msg=name)
    assert [row.lr for row in outcome.epochs] == pytest.approx(rates)


def test_accumulated_batches_match_whole_batches(tmp_path: Path) -> None:
    settings = {"smoothing": 0.1, "epochs": 2}
    expected = cases.train(tmp_path / "whole", cases.recipe(**settings))
    accumulated = cases.train(tmp_path / "parts", cases.recipe(**settings, accumulate=4))
    torch.testing.assert_close(accumulated.losses, expected.losses, atol=1e-5, rtol=1e-5)
    assert accumulated.epochs[-1].accuracy == expected.epochs[-1].accuracy


def test_the_running_mean_is_validated_and_saved(tmp_path: Path) -> None:
    data = cases.data()
    vit = cases.model(data)
    states: list[dict[str, Tensor]] = []

    def save_last(rows: Sequence[Epoch]) -> None:
        if len(rows) == 3:
            states.append(cases.weights(vit))

    undo = cases.at_step(0, lambda: states.append(cases.weights(vit)))
    outcome = cases.run(tmp_path, vit, data, cases.recipe(ema=0.7), on_epoch=save_last)
    undo()
    assert len(states) == 19  # before each of 18 steps, and after the last one
    mean = {name: weight.double() for name, weight in states[1].items()}
    for number, state in enumerate(states[2:], 1):
        decay = min(0.7, (1 + number) / (10 + number))
        mean = {name: decay * weight + (1 - decay) * state[name].double() for name, weight in mean.items()}
    for name, weight in outcome.model.named_parameters():
        torch.testing.assert_close(weight.detach().double(), mean[name], atol=1e-5, rtol=1e-4, msg=name)
    logits = outcome.model(cases.normalized(data.val)).detach()
    assert outcome.accuracy.predicted.tolist() == logits.argmax(1).tolist()
    assert outcome.accuracy.top1 == pytest.approx(float((logits.argmax(1) == data.val.classes).float().mean()))
    assert outcome.accuracy.loss == pytest.approx(float(F.cross_entropy(logits, data.val.classes)), rel=1e-4)
    assert outcome.accuracy.top5 == 1.0


@pytest.mark.parametrize(("last", "flip"), [(0, False), (2, True), (2, False)])
def test_frozen_weights_do_not_change(tmp_path: Path, last: int, flip: bool) -> None:
    data = cases.data()
    vit = cases.model(data, pooling="cls+mean")
    tiny.randomise(vit, 0)
    before = cases.weights(vit)
    recipe = cases.recipe(unfreeze_last=last, flip=flip, epochs=6, head_lr=0.03)
    outcome = cases.run(tmp_path, vit, data, recipe)
    trained = ("head.", *(f"blocks.{index}." for index in range(3 - last, 3)), *(["norm."] if last else []))
    for name, weight in outcome.model.state_dict().items():
        assert weight.equal(before[name]) != name.startswith(trained), name
    assert (tmp_path / "cache").exists() == (not flip)
    assert float(outcome.losses[-6:].mean()) < float(outcome.losses[:3].mean())


def teacher() -> ViT:
    """Return a model that has the classes in a different order, and one more class."""
    vit = tiny.model(3, grid=(4, 4), patch=3, classes=4)
    preprocess = cases.data().preprocess((0.1, 0.2, 0.3), (0.5,) * 3)
    vit.pretrained = Pretrained(name="teacher", preprocess=preprocess, labels=("church", "dog", "ox", "golf ball"))
    return vit


@pytest.mark.parametrize(("kind", "flip"), [("soft", False), ("hard", True)])
def test_distillation_trains_the_distillation_tokens_classifier(tmp_path: Path, kind: str, flip: bool) -> None:
    data, recipe = cases.data(), cases.recipe(epochs=8, distill=kind, alpha=1.0, flip=flip, ema=0.0)
    vit = cases.model(data, distillation_token=True)
    outcome = cases.run(tmp_path, vit, data, recipe, teacher=teacher())
    assert not outcome.model.head.weight.any()  # with alpha 1, only the distillation classifier is trained
    assert outcome.model.head_dist.weight.any()
    first, last = (float(part.mean()) for part in (outcome.losses[:6], outcome.losses[-6:]))
    assert last < 0.8 * first


def test_non_finite_numbers_stop_training_and_keep_the_last_good_state(tmp_path: Path) -> None:
    data = cases.data()
    vit = cases.model(data)
    undo = cases.at_step(8, lambda: vit.head.bias.register_hook(lambda grad: grad * math.nan))
    with pytest.raises(TrainingError, match="finite"):
        cases.run(tmp_path / "good", vit, data, cases.recipe(), save_every=0)
    undo()
    assert cases.step_of(tmp_path / "good") == 7
    assert cases.train(tmp_path / "good", resume=True).losses.equal(cases.train(tmp_path / "other").losses)
    vit = cases.model(data)
    with torch.no_grad():
        vit.blocks[1].mlp.fc1.weight[0, 0] = math.nan
    with pytest.raises(TrainingError, match=r"step 1 of 6 in epoch 1.*--lr"):
        cases.run(tmp_path / "bad", vit, data, cases.recipe(), save_every=0)
    assert cases.step_of(tmp_path / "bad") == 0


def test_mismatched_models_data_and_teachers_are_refused(tmp_path: Path) -> None:
    data = cases.data()
    valid = cases.model(data)
    preprocess, config = valid.pretrained.preprocess, valid.config
    crop = replace(preprocess, mode="crop", resize=cases.SIDE)
    for message, vit, settings, options in [
        ("classifier", ViT(config), {}, {}),
        ("at most all 52", valid, {"batch": 64}, {}),
        ("their order", ViT(config, Pretrained(name="", preprocess=preprocess, labels=("a", "b", "c"))), {}, {}),
        ("mode='squash'.*mode='crop'", ViT(config, Pretrained(name="", preprocess=crop, labels=data.labels)), {}, {}),
        ("Expected a teacher", valid, {}, {"teacher": teacher()}),
        ("Expected a teacher", valid, {"distill": "soft"}, {}),
    ]:
        with pytest.raises(TrainingError, match=message):
            cases.run(tmp_path, vit, data, cases.recipe(**settings), **options)


def test_dropouts_follow_the_recipe_and_the_callers_state_is_kept(tmp_path: Path) -> None:
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
    cases.run(tmp_path, vit, data, recipe)
    assert torch.rand(3).equal(expected)
    assert torch.get_num_threads() == 1
    assert vit.config.dropout == 0.2
    assert tokens == [9] * 14 + [17] * 4  # half of 16 patches and CLS; all patches in the last fifth of 18 steps


def test_log_counts_steps_and_estimates_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = Epoch(**{field.name: 1.0 for field in fields(Epoch)})
    assert "top-5" not in row.describe(2, classes=5)
    assert "top-5 100 %" in row.describe(2, classes=6)
    now = [1000.0]
    monkeypatch.setattr(log.time, "monotonic", lambda: now[0])
    training_log = Log(tmp_path, 2, 200, 10, 0, progress=True)
    training_log.begin(0, 100, 0)
    for number in (10, 20, 30):
        now[0] += 12.0
        training_log.steps(number, 10, 1.5, 0.001, 640.0)
    line = str(training_log._bar)
    training_log.close()
    assert line.startswith("epoch 1/2")
    assert "30/100" in line
    assert "03:24 left" in line  # 36 s for 30 of 200 steps
