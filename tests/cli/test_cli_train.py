"""`vitviz train` from end to end on a folder of noise, and what its options become."""

from __future__ import annotations

import csv
import dataclasses
import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitviz
from vitviz.cli.main import main
from vitviz.cli.train import train as command
from vitviz.cli.train_options import ALL, Options, asked_recipe, extended, given_options, spelled
from vitviz.evaluation.accuracy import validate
from vitviz.formatting import percent
from vitviz.server.menu import Menu
from vitviz.server.settings import Settings
from vitviz.training import TrainingError
from vitviz.training.interrupts import Stopped
from vitviz.training.loop import Trainer
from vitviz.training.recipes import RECIPES, Recipe

SIZES = ["--dim", "16", "--depth", "2", "--heads", "2", "--patch", "4", "--image-size", "16"]


@pytest.fixture(scope="module", autouse=True)
def one_thread_for_all() -> Iterator[None]:
    """Sums come out the same in every training, and threads do not wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of coloured noise, 16 x 16."""
    root, rng = tmp_path_factory.mktemp("data") / "noise", np.random.default_rng(0)
    for side, count in (("train", 12), ("val", 5)):
        for channel, name in enumerate(("red", "green", "blue")):
            (root / side / name).mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 120, (16, 16, 3), np.uint8)
                pixels[..., channel] += 100
                Image.fromarray(pixels).save(root / side / name / f"{index}.png")
    return root


def train(photos: Path, out: Path, *more: str) -> int:
    return main(["train", "--data", str(photos), "--out", str(out), "--device", "cpu", *more])


@pytest.fixture(scope="module")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model from nothing, after two epochs."""
    out = tmp_path_factory.mktemp("models") / "noisy"
    options = ["--epochs", "2", "--batch", "6", "--lr", "0.01", "--ema", "0.5", "--flip", "--licence", "MIT"]
    assert train(photos, out, *SIZES, *options) == 0
    return out


def changed(before: Path, after: Path) -> set[str]:
    """Return the names of the tensors that differ between two models of the same names."""
    old, new = (load_file(folder / "model.safetensors") for folder in (before, after))
    assert set(old) == set(new)
    return {name for name in new if not torch.equal(new[name], old[name])}


# ---- from end to end


def test_a_training_leaves_a_model_that_everything_takes(
    trained: Path, photos: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    left = {path.name for path in trained.iterdir()}
    assert {"config.json", "model.safetensors", "README.md", "sheet.png", "confusion.png", "curves.png"} <= left
    assert {"curves.csv", "state", "train.json"} <= left
    model = vitviz.load(trained)
    assert (model.config.width, model.config.depth, model.config.patch_size) == (16, 2, 4)
    assert model.pretrained.labels == ("blue", "green", "red")
    assert (model.pretrained.name, model.pretrained.licence) == ("noisy", "MIT")
    found = validate(model, photos / "val")
    card = (trained / "README.md").read_text(encoding="utf-8")
    assert f"**top-1 {percent(found.top1, 4)}**" in card
    for label, count, share, _ in found.per_class:
        assert f"| {label} | {count} | {percent(share, 4)} |" in card
    menu = Menu(Settings(models=(str(trained),)), bundled=[])
    assert menu.default == str(trained)
    assert "noisy" in menu.groups[0][1][0].describe()
    assert main(["validate", "--data", str(photos), "--model", str(trained), "--device", "cpu"]) == 0
    assert percent(found.top1, 4) in capsys.readouterr().out
    assert main(["predict", str(photos / "val"), "--model", str(trained), "-o", str(tmp_path), "--device", "cpu"]) == 0
    assert len(list(tmp_path.rglob("*.png"))) == 15 + 1


def test_resuming_needs_the_folder_alone_and_the_card_s_command_trains_the_same_model(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = trained / "model.safetensors"
    before, card = weights.read_bytes(), (trained / "README.md").read_text(encoding="utf-8")
    weights.unlink()
    assert main(["train", "--resume", "--out", str(trained)]) == 0
    assert weights.read_bytes() == before
    again = (trained / "README.md").read_text(encoding="utf-8")
    assert again.split("```")[1] == card.split("```")[1]  # the command is whole, not that of the resuming
    capsys.readouterr()
    assert main(["train", "--resume", "--out", str(trained), "--lr", "0.02"]) == 2
    assert "lr" in capsys.readouterr().err
    assert main(["train", "--resume", "--out", str(trained)]) == 0  # what was refused is not kept
    words = shlex.split(card.split("```sh\n")[1].split("```")[0].replace("\\\n", " "))
    words[words.index(str(trained))] = str(tmp_path / "noisy")
    assert words.pop(0) == "vitviz"
    assert main([*words, "--device", "cpu"]) == 0
    assert not changed(trained, tmp_path / "noisy")


def test_a_finished_model_is_never_trained_over(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def left(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    done, mine = tmp_path / "done", tmp_path / "mine"
    shutil.copytree(trained, done, ignore=shutil.ignore_patterns("state"))
    mine.mkdir()
    (mine / "README.md").write_text("mine", encoding="utf-8")
    for out, options, named in (
        (done, ["--resume"], "finished"),
        (trained, ["--data", str(photos), *SIZES], "--resume"),
        (mine, ["--data", str(photos), *SIZES], "README.md"),
    ):
        before = left(out)
        assert main(["train", "--out", str(out), "--device", "cpu", *options]) == 2
        assert named in capsys.readouterr().err
        assert left(out) == before


def test_a_frozen_backbone_stays_and_the_head_is_new(trained: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    options = ["--from", str(trained), "--freeze", "backbone", "--epochs", "1", "--batch", "6", "--feed-as-source"]
    assert train(photos, out, *options) == 0
    assert changed(trained, out) == {"head.weight", "head.bias"}
    card = (out / "README.md").read_text(encoding="utf-8")
    assert f"started from `{trained}`" in card
    assert "preprocessed in the source's way" in card
    assert vitviz.load(out).pretrained.licence == "MIT"  # the source's weights keep theirs
    assert not (out / "before-after.png").exists()  # nothing of it has moved


def test_fine_tuning_and_distilling_show_before_and_after(trained: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    options = ["--from", str(trained), "--unfreeze-last", "1", "--teacher", str(trained), "--distill", "hard"]
    assert train(photos, out, *options, "--epochs", "1", "--batch", "6") == 0
    moved = changed(trained, out)
    assert "blocks.1.attn.qkv.weight" in moved
    assert not [name for name in moved if name.startswith("blocks.0.")]
    assert Image.open(out / "before-after.png").size > (400, 300)
    assert "| distill | hard |" in (out / "README.md").read_text(encoding="utf-8")


def test_ctrl_c_exits_with_130(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(self: Trainer) -> None:
        raise Stopped("Stopped in epoch 1; go on with --resume.")

    monkeypatch.setattr(Trainer, "run", stop)
    assert train(photos, tmp_path / "out", *SIZES) == 130
    assert "go on with --resume" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "train.json").read_text(encoding="utf-8"))["width"] == 16


def test_a_finished_training_is_extended_with_its_head(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "longer"
    command = ["train", "--extend", "1", "--from", str(trained), "--lr", "1e-12", "--out", str(out), "--device", "cpu"]
    assert main(command) == 0
    old, new = load_file(trained / "model.safetensors"), load_file(out / "model.safetensors")
    assert all(torch.allclose(old[name], new[name], atol=1e-6) for name in old)  # its head, too
    card = (out / "README.md").read_text(encoding="utf-8")
    assert all(f"| {setting} |" in card for setting in ("epochs | 1", "batch | 6", "flip | yes", "ema | 0.5"))
    assert f"--from {trained} --extend 1" in " ".join(card.replace("\\", "").split())
    again = extended({"extend": 2, "source": str(out), "out": "y"})
    assert (again["epochs"], again["batch"], again["lr"], again["source"]) == (2, 6, 1e-12, str(out))


def test_a_plain_folder_trains_with_what_was_allowed(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, out = tmp_path / "plain", tmp_path / "out"
    shutil.copytree(photos / "train", plain)
    shutil.copy(plain / "red" / "0.png", plain / "blue" / "red.png")
    options = ["--val-share", "0.25", "--seed", "7", "--epochs", "1", "--batch", "6", "--optimizer", "adam"]
    options += [
        "--activation",
        "gelu_tanh",
        "--schedule",
        "linear",
        "--attention-dropout",
        "0.25",
        "--positions",
        "sincos1d",
    ]
    assert train(plain, out, *SIZES, *options) == 2
    assert "blue/red.png and red/0.png" in capsys.readouterr().err
    assert train(plain, out, *SIZES, *options, "--allow-duplicates") == 0
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "0.25 of each class was drawn for validation by seed 7" in card
    assert "1 photographs are in two classes" in card
    assert all(f"| {row} |" in card for row in ("optimizer | adam", "schedule | linear", "attention_dropout | 0.25"))
    config = vitviz.load(out).config
    assert (config.positions, config.activation) == ("sincos1d", "gelu_tanh")
    capsys.readouterr()
    assert main(["train", "--extend", "1", "--from", str(out), "--out", str(tmp_path / "x"), "--seed", "8"]) == 2
    assert "--seed" in capsys.readouterr().err


def test_python_trains_with_one_call(photos: Path) -> None:
    sizes = {"image_size": (16, 16), "patch_size": 4, "width": 16, "depth": 1, "heads": 2}
    recipe = Recipe(epochs=1, batch=6, warmup=0.0)
    model = vitviz.ViT(vitviz.ViTConfig(**sizes, classes=3))
    first = vitviz.train(model, photos, recipe, device="cpu", progress=False)
    assert first.model is model
    assert first.accuracy.images == 15
    assert model.pretrained.labels == ("blue", "green", "red")
    assert vitviz.Explorer(model).open(photos / "val" / "red" / "0.png").predictions(1)
    held = {name: one.clone() for name, one in model.state_dict().items()}
    second = vitviz.train(model, photos, dataclasses.replace(recipe, lr=1e-12), device="cpu", progress=False)
    assert second.model is not model
    assert all(torch.allclose(one, held[name], atol=1e-6) for name, one in second.model.state_dict().items())
    with pytest.raises(TrainingError, match="classes"):
        vitviz.train(vitviz.ViT(vitviz.ViTConfig(**sizes, classes=4)), photos, recipe, device="cpu")
    with pytest.raises(TrainingError, match="fashion-mnist"):
        vitviz.train(model, photos, "no such recipe")


# ---- options


def parse(*options: str) -> Options:
    return given_options(command.make_context("train", ["--data", "x", "--out", "y", *options]).params)


FIELDS = [field.name for field in dataclasses.fields(Recipe) if field.name != "name"]
NEEDS = {"unfreeze_last": "--from", **dict.fromkeys(("distill", "alpha", "temperature"), "--teacher")}


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_a_recipe_has_an_option(field: str) -> None:
    (option,) = (one for one in ALL if one.name == field)
    values: tuple[Any, ...] = (0.25, 0.75)[: option.nargs]
    if option.is_flag:
        values = ()
    elif isinstance(option.type, click.Choice):
        values = option.type.choices[-1:]
    elif option.type is click.INT:
        values = (8,)  # also a divisor of the batch
    needed = [NEEDS[field], "z"] if field in NEEDS else []
    found = getattr(asked_recipe(parse(option.opts[0], *map(str, values), *needed)), field)
    assert found != getattr(Recipe(), field)
    assert (found if isinstance(found, tuple) else (found,)) == (values or (True,))


def test_a_named_recipe_is_taken_as_it_is() -> None:
    for name, known in RECIPES.items():
        begins = [] if known.recipe.unfreeze_last is None else ["--from", "z"]
        assert asked_recipe(parse("--recipe", name, *begins)) == known.recipe
        changed = asked_recipe(parse("--recipe", name, "--seed", "5", *begins))
        assert changed.seed == 5
        assert dataclasses.replace(changed, seed=0, name=name) == known.recipe
        assert changed.name != name  # what a recipe reached is not what another reaches


def test_what_is_not_given_is_gentle_with_learnt_weights() -> None:
    assert asked_recipe(parse()) == Recipe()
    assert asked_recipe(parse("--from", "z")) == RECIPES["finetune"].recipe
    assert asked_recipe(parse("--from", "z", "--freeze", "backbone")) == RECIPES["head"].recipe
    assert asked_recipe(parse("--from", "z", "--freeze", "none")).unfreeze_last is None
    assert asked_recipe(parse("--teacher", "z")).distill == "soft"
    tiny = RECIPES["tiny-cifar10"].recipe
    assert asked_recipe(parse("--recipe", tiny.name, "--epochs", str(tiny.epochs // 2))).warmup == tiny.warmup / 2
    bare = asked_recipe(parse("--recipe", "vit-cifar10", "--no-augment", "--flip"))
    assert bare == dataclasses.replace(
        RECIPES["vit-cifar10"].recipe, name="vit-cifar10, changed", crop_padding=0, policy="none"
    )


@pytest.mark.parametrize(
    "options",
    [
        "--alpha 0.5", "--freeze backbone", "--from z --freeze backbone --unfreeze-last 2", "--erase 2",
        "--recipe head", "--recipe finetune", "--extend 2", "--schedule constant --final-lr 0.5",
        "--optimizer sgd --betas 0 0.9", f"--seed {2**63}",
    ],
)  # fmt: skip
def test_options_that_make_no_sense_together_are_refused(options: str) -> None:
    with pytest.raises(TrainingError):
        asked_recipe(parse(*options.split()))


def test_a_spelled_command_is_read_as_the_same() -> None:
    options = ["--recipe", "vit-cifar10", "--no-flip", "--betas", "0.9", "0.95", "--name", "it's mine", "--compile"]
    args = parse(*options, "--image-size", "32", "48", "--skip-broken", "--resume", "--device", "cpu")
    said = shlex.split(spelled(args).replace("\\\n", " "))
    again = given_options(command.make_context("train", said[2:]).params)
    left_out = {"resume", "device"}
    first, second = ({k: v for k, v in one.items() if k not in left_out} for one in (args, again))
    assert first == second


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("", "--data"),
        ("--resume", "train.json"),
        ("--data PHOTOS", "--preset"),
        ("--data nowhere --preset tiny", "nowhere"),
        ("--data PHOTOS --preset tiny --from z", "--preset"),
        ("--data PHOTOS --preset tiny --image-size 1 2 3", "--image-size"),
        ("--data PHOTOS --dim 10 --depth 1 --heads 3", "heads"),
        ("--data PHOTOS --from nothing", "nothing"),
        ("--data PHOTOS SIZES --device abacus", "abacus"),
        ("--data PHOTOS SIZES --batch 1000", "1000"),
    ],
)
def test_bad_input_is_refused_and_leaves_no_model(
    options: str, named: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = options.replace("SIZES", " ".join(SIZES)).replace("PHOTOS", str(photos)).split()
    assert main(["train", "--out", str(tmp_path / "out"), *given]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vitviz: ")
    assert named in error
    assert "Traceback" not in error
    assert not (tmp_path / "out" / "config.json").exists()


def test_validate_writes_a_confusion_matrix(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["validate", "--data", str(photos), "--model", str(trained), "--device", "cpu", "--confusion"]
    assert [main([*options, str(tmp_path / name)]) for name in ("c.csv", "c.png", "c.txt")] == [0, 0, 2]
    assert "--confusion" in capsys.readouterr().err
    with (tmp_path / "c.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    labels, counts = validate(vitviz.load(trained), photos).confusion()
    assert header[1:] == [row[0] for row in rows] == list(labels)
    assert np.array_equal(np.array([row[1:] for row in rows], int), counts)
    assert Image.open(tmp_path / "c.png").size > (300, 300)


def test_validate_compares_sizes_in_one_table_and_figure(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["validate", "--data", str(photos), "--model", str(trained), "--device", "cpu", "--size"]
    assert main([*options, "24", "16", "--figure", str(tmp_path / "sizes.png")]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if " x " in line][-2:]
    model = vitviz.load(trained)
    for row, size in zip(rows, (16, 24), strict=True):
        found = validate(model, photos, size=size)
        assert row[:4] == [str(size), "x", str(size), str((size // 4) ** 2)]
        assert row[4:6] == percent(found.top1, 4).split()
    assert Image.open(tmp_path / "sizes.png").size > (800, 400)
    assert main([*options, "24"]) == 0  # of one size what is written of each
    assert percent(found.top1, 4) in capsys.readouterr().out
    for wrong in (["16", "--figure", "x.png"], ["16", "24", "--confusion", "c.csv"], ["16", "2"]):
        assert main([*options, *wrong]) == 2
        assert "Expected" in capsys.readouterr().err
