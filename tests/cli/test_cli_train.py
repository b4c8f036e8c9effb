"""Test `vitviz train` from end to end on a folder of noise images, and the recipes that its options give."""

import csv
import dataclasses
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from data_files import file_size_limit
from PIL import Image
from safetensors.torch import load_file

import vitviz
from vitviz.cli.main import main
from vitviz.draw.figures.page import PRINT_DPI
from vitviz.evaluation.accuracy import validate
from vitviz.formatting import percent
from vitviz.server.menu import Menu
from vitviz.settings import Settings
from vitviz.training import TrainingError
from vitviz.training.command import train as command
from vitviz.training.interrupts import Stopped
from vitviz.training.loop import Trainer
from vitviz.training.options import ALL, Options, build_recipe, extended_options, format_command, given_options
from vitviz.training.recipes import RECIPES, Recipe
from vitviz.training.state import find_state

pytestmark = pytest.mark.usefixtures("one_thread")  # makes training runs reproducible
SIZES = ["--dim", "16", "--depth", "2", "--heads", "2", "--patch", "4", "--image-size", "16"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with three classes of coloured noise, 16 x 16."""
    root, rng = tmp_path_factory.mktemp("data") / "noise", np.random.default_rng(0)
    for side, count in (("train", 12), ("val", 5)):
        for channel, name in enumerate(("red", "green", "blue")):
            (root / side / name).mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 120, (16, 16, 3), np.uint8)
                pixels[..., channel] += 100
                Image.fromarray(pixels).save(root / side / name / f"{index}.png")
    return root


def train(photos: Path, out: Path, *options: object) -> int:
    return main(["train", "--data", str(photos), "--out", str(out), "--device", "cpu", *map(str, options)])


@pytest.fixture(scope="module")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model trained from scratch for two epochs."""
    out = tmp_path_factory.mktemp("models") / "noisy"
    options = ["--epochs", "2", "--batch", "6", "--lr", "0.01", "--ema", "0.5", "--flip", "--licence", "MIT"]
    assert train(photos, out, *SIZES, *options) == 0
    return out


def changed(before: Path, after: Path) -> set[str]:
    """Return the names of the tensors that differ between two models with the same tensor names."""
    old, new = (load_file(folder / "model.safetensors") for folder in (before, after))
    assert set(old) == set(new)
    return {name for name in new if not torch.equal(new[name], old[name])}


def test_train_writes_a_model_that_other_commands_load(
    trained: Path, photos: Path, shell: Callable[..., str], tmp_path: Path
) -> None:
    files = {path.name for path in trained.iterdir()}
    assert {"config.json", "model.safetensors", "README.md", "sheet.png", "confusion.png", "curves.png"} <= files
    assert {"curves.csv", "state", "train.json"} <= files
    model = vitviz.load(trained)
    assert (model.config.width, model.config.depth, model.config.patch_size) == (16, 2, 4)
    assert model.pretrained.labels == ("blue", "green", "red")
    assert (model.pretrained.name, model.pretrained.licence) == ("noisy", "MIT")
    accuracy = validate(model, photos / "val")
    card = (trained / "README.md").read_text(encoding="utf-8")
    assert f"**top-1 {percent(accuracy.top1, 4)}**" in card
    for label, count, share, _ in accuracy.per_class:
        assert f"| {label} | {count} | {percent(share, 4)} |" in card
    menu = Menu(Settings(models=(str(trained),)), bundled=[])
    assert menu.default == str(trained)
    assert "noisy" in menu.groups[0][1][0].describe()
    assert percent(accuracy.top1, 4) in shell("validate", "--data", photos, "--model", trained, "--device", "cpu")
    shell("predict", photos / "val", "--model", trained, "-o", tmp_path, "--device", "cpu")
    assert len(list(tmp_path.rglob("*.png"))) == 15 + 1


@pytest.mark.tier("all")
def test_resume_needs_only_the_folder_and_the_cards_command_reproduces_the_model(
    trained: Path, tmp_path: Path, shell: Callable[..., str]
) -> None:
    weights = trained / "model.safetensors"
    before, card = weights.read_bytes(), (trained / "README.md").read_text(encoding="utf-8")
    weights.unlink()
    shell("train", "--resume", "--out", trained)
    assert weights.read_bytes() == before
    again = (trained / "README.md").read_text(encoding="utf-8")
    assert again.split("```")[1] == card.split("```")[1]  # the original command, not --resume
    for option, value, named in (("--lr", "0.02", "lr"), ("--device", "abacus", "abacus")):
        assert named in shell("train", "--resume", "--out", trained, option, value, code=2)
    shell("train", "--resume", "--out", trained)  # refused options are not saved
    words = shlex.split(card.split("```sh\n")[1].split("```")[0].replace("\\\n", " "))
    words[words.index(str(trained))] = str(tmp_path / "noisy")
    assert words.pop(0) == "vitviz"
    shell(*words, "--device", "cpu")
    assert not changed(trained, tmp_path / "noisy")


def test_resume_without_a_state_or_its_data_says_so(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Callable[..., str]
) -> None:
    out = tmp_path / "out"
    new = ["train", "--data", "photos", "--out", out, "--device", "cpu", *SIZES, "--batch", 6, "--epochs", 1]
    assert "no state was saved yet" in shell(*new, "--resume", code=2)
    (tmp_path / "there").mkdir()
    shutil.copytree(photos, tmp_path / "there" / "photos")
    monkeypatch.chdir(tmp_path / "there")
    shell(*new)
    monkeypatch.chdir(tmp_path)
    assert f"relative to '{tmp_path / 'there'}'" in shell("train", "--resume", "--out", out, code=2)


def test_full_disk_stops_training_with_its_state_saved(
    trained: Path, tmp_path: Path, shell: Callable[..., str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(trained, out)
    for name in ("config.json", "model.safetensors", "README.md"):
        (out / name).unlink()
    state = find_state(out)
    with file_size_limit(1_000):
        told = shell("train", "--resume", "--out", out, code=2)
    assert "Expected room for" in told
    assert f"The last state is in '{state}': continue with --resume" in told
    assert find_state(out) == state
    assert not (out / "config.json").exists()


def test_finished_model_is_never_overwritten(
    trained: Path, photos: Path, tmp_path: Path, shell: Callable[..., str]
) -> None:
    def contents(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    done, mine = tmp_path / "done", tmp_path / "mine"
    shutil.copytree(trained, done, ignore=shutil.ignore_patterns("state"))
    mine.mkdir()
    (mine / "README.md").write_text("mine", encoding="utf-8")
    new = ["--data", photos, *SIZES]
    for out, options, named in ((done, ["--resume"], "finished"), (trained, new, "--resume"), (mine, new, "README.md")):
        before = contents(out)
        assert named in shell("train", "--out", out, "--device", "cpu", *options, code=2)
        assert contents(out) == before


def test_frozen_backbone_stays_and_the_head_is_new(trained: Path, photos: Path, tmp_path: Path) -> None:
    options = ["--from", trained, "--freeze", "backbone", "--epochs", 1, "--batch", 6, "--feed-as-source"]
    assert train(photos, tmp_path, *options) == 0
    assert changed(trained, tmp_path) == {"head.weight", "head.bias"}
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert f"started from `{trained}`" in card
    assert "preprocessed like the source's" in card
    assert vitviz.load(tmp_path).pretrained.licence == "MIT"  # the source's licence
    assert not (tmp_path / "before-after.png").exists()  # attention has not changed


@pytest.mark.tier("all")
def test_fine_tuning_with_a_teacher_draws_before_and_after(trained: Path, photos: Path, tmp_path: Path) -> None:
    options = ["--from", trained, "--unfreeze-last", 1, "--teacher", trained, "--distill", "hard"]
    assert train(photos, tmp_path, *options, "--epochs", 1, "--batch", 6) == 0
    moved = changed(trained, tmp_path)
    assert "blocks.1.attn.qkv.weight" in moved
    assert not [name for name in moved if name.startswith("blocks.0.")]
    assert Image.open(tmp_path / "before-after.png").size > (400, 300)
    assert "| distill | hard |" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_ctrl_c_exits_with_130(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Callable[..., str]
) -> None:
    def stop(self: Trainer) -> None:
        raise Stopped("Stopped in epoch 1; go on with --resume.")

    monkeypatch.setattr(Trainer, "run", stop)
    command = ["train", "--data", photos, "--out", tmp_path, "--device", "cpu", *SIZES]
    assert "go on with --resume" in shell(*command, code=130)
    assert json.loads((tmp_path / "train.json").read_text(encoding="utf-8"))["width"] == 16


@pytest.mark.tier("all")
def test_extend_continues_with_the_same_head(trained: Path, tmp_path: Path, shell: Callable[..., str]) -> None:
    shell("train", "--extend", 1, "--from", trained, "--lr", "1e-12", "--out", tmp_path, "--device", "cpu")
    old, new = (load_file(folder / "model.safetensors") for folder in (trained, tmp_path))
    assert all(torch.allclose(old[name], new[name], atol=1e-6) for name in old)  # including the head
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert all(f"| {setting} |" in card for setting in ("epochs | 1", "batch | 6", "flip | yes", "ema | 0.5"))
    assert f"--from {trained} --extend 1" in " ".join(card.replace("\\", "").split())
    again = extended_options({"extend": 2, "source": str(tmp_path), "out": "y"})
    assert (again["epochs"], again["batch"], again["lr"], again["source"]) == (2, 6, 1e-12, str(tmp_path))


def test_folder_without_splits_trains_with_val_share_and_duplicates(
    photos: Path, tmp_path: Path, shell: Callable[..., str]
) -> None:
    plain, out = tmp_path / "plain", tmp_path / "out"
    shutil.copytree(photos / "train", plain)
    shutil.copy(plain / "red" / "0.png", plain / "blue" / "red.png")
    command = ["train", "--data", plain, "--out", out, "--device", "cpu", *SIZES, "--val-share", 0.25, "--seed", 7]
    command += ["--epochs", 1, "--batch", 6, "--optimizer", "adam", "--activation", "gelu_tanh"]
    command += ["--schedule", "linear", "--attention-dropout", 0.25, "--positions", "sincos1d"]
    assert "blue/red.png and red/0.png" in shell(*command, code=2)
    shell(*command, "--allow-duplicates")
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "0.25 of each class was drawn for validation with seed 7" in card
    assert "1 photographs are in two classes" in card
    assert all(f"| {row} |" in card for row in ("optimizer | adam", "schedule | linear", "attention_dropout | 0.25"))
    config = vitviz.load(out).config
    assert (config.positions, config.activation) == ("sincos1d", "gelu_tanh")
    assert "--seed" in shell("train", "--extend", 1, "--from", out, "--out", tmp_path / "x", "--seed", 8, code=2)


def test_python_api_trains_in_one_call(photos: Path) -> None:
    sizes = {"image_size": (16, 16), "patch_size": 4, "width": 16, "depth": 1, "heads": 2}
    recipe, options = Recipe(epochs=1, batch=6, warmup=0.0), {"device": "cpu", "progress": False}
    model = vitviz.ViT(vitviz.ViTConfig(**sizes, classes=3))
    first = vitviz.train(model, photos, recipe, **options)
    assert first.model is model
    assert first.accuracy.images == 15
    assert model.pretrained.labels == ("blue", "green", "red")
    assert vitviz.Explorer(model).open(photos / "val" / "red" / "0.png").predictions(1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    second = vitviz.train(model, photos, dataclasses.replace(recipe, lr=1e-12), **options)
    assert second.model is not model
    assert all(torch.allclose(tensor, before[name], atol=1e-6) for name, tensor in second.model.state_dict().items())
    with pytest.raises(TrainingError, match="classes"):
        vitviz.train(vitviz.ViT(vitviz.ViTConfig(**sizes, classes=4)), photos, recipe, **options)
    with pytest.raises(TrainingError, match="fashion-mnist"):
        vitviz.train(model, photos, "no such recipe")


# ---- options


def parse(*options: str) -> Options:
    return given_options(command.make_context("train", ["--data", "x", "--out", "y", *options]).params)


FIELDS = [field.name for field in dataclasses.fields(Recipe) if field.name != "name"]
NEEDS = {"unfreeze_last": "--from", **dict.fromkeys(("distill", "alpha", "temperature"), "--teacher")}


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_a_recipe_has_an_option(field: str) -> None:
    (option,) = (option for option in ALL if option.name == field)
    values: tuple[Any, ...] = (0.25, 0.75)[: option.nargs]
    if option.is_flag:
        values = ()
    elif isinstance(option.type, click.Choice):
        values = option.type.choices[-1:]
    elif option.type is click.INT:
        values = (8,)  # a value that also divides the batch size
    needed = [NEEDS[field], "z"] if field in NEEDS else []
    value = getattr(build_recipe(parse(option.opts[0], *map(str, values), *needed)), field)
    assert value != getattr(Recipe(), field)
    assert (value if isinstance(value, tuple) else (value,)) == (values or (True,))


def test_named_recipe_is_unchanged_without_options() -> None:
    for name, known in RECIPES.items():
        begins = [] if known.recipe.unfreeze_last is None else ["--from", "z"]
        assert build_recipe(parse("--recipe", name, *begins)) == known.recipe
        changed = build_recipe(parse("--recipe", name, "--seed", "5", *begins))
        assert changed.seed == 5
        assert dataclasses.replace(changed, seed=0, name=name) == known.recipe
        assert changed.name != name  # a changed recipe does not claim the accuracy of the original


def test_default_recipe_depends_on_the_source() -> None:
    assert build_recipe(parse()) == Recipe()
    assert build_recipe(parse("--from", "z")) == RECIPES["finetune"].recipe
    assert build_recipe(parse("--from", "z", "--freeze", "backbone")) == RECIPES["head"].recipe
    assert build_recipe(parse("--from", "z", "--freeze", "none")).unfreeze_last is None
    assert build_recipe(parse("--teacher", "z")).distill == "soft"
    tiny = RECIPES["tiny-cifar10"].recipe
    assert build_recipe(parse("--recipe", tiny.name, "--epochs", str(tiny.epochs // 2))).warmup == tiny.warmup / 2
    bare = build_recipe(parse("--recipe", "vit-cifar10", "--no-augment", "--flip"))
    assert bare == dataclasses.replace(
        RECIPES["vit-cifar10"].recipe, name="vit-cifar10, changed", crop_padding=0, policy="none"
    )


@pytest.mark.parametrize(
    "options",
    [
        "--alpha 0.5", "--freeze backbone", "--like z", "--from z --freeze backbone --unfreeze-last 2", "--erase 2",
        "--recipe head", "--recipe finetune", "--extend 2", "--schedule constant --final-lr 0.5",
        "--optimizer sgd --betas 0 0.9", f"--seed {2**63}",
    ],
)  # fmt: skip
def test_contradictory_options_are_refused(options: str) -> None:
    with pytest.raises(TrainingError):
        build_recipe(parse(*options.split()))


def test_formatted_command_parses_to_the_same_options() -> None:
    options = ["--recipe", "vit-cifar10", "--no-flip", "--betas", "0.9", "0.95", "--name", "it's mine", "--compile"]
    args = parse(*options, "--image-size", "32", "48", "--skip-broken", "--resume", "--device", "cpu")
    words = shlex.split(format_command(args).replace("\\\n", " "))
    again = given_options(command.make_context("train", words[2:]).params)
    left_out = {"resume", "device"}
    first, second = (
        {name: value for name, value in options.items() if name not in left_out} for options in (args, again)
    )
    assert first == second


def test_validate_writes_a_confusion_matrix(
    trained: Path, photos: Path, tmp_path: Path, shell: Callable[..., str]
) -> None:
    command = ["validate", "--data", photos, "--model", trained, "--device", "cpu", "--confusion"]
    for name, code in (("c.csv", 0), ("c.png", 0), ("c.txt", 2)):
        assert ("--confusion" in shell(*command, tmp_path / name, code=code)) is bool(code)
    with (tmp_path / "c.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    labels, counts = validate(vitviz.load(trained), photos).confusion()
    assert header[1:] == [row[0] for row in rows] == list(labels)
    assert [[*map(int, row[1:])] for row in rows] == counts.tolist()
    assert Image.open(tmp_path / "c.png").size > (300, 300)
    shell(*command, tmp_path / "narrow.png", "--width", "2.5")
    assert Image.open(tmp_path / "narrow.png").width == 2.5 * PRINT_DPI


def test_validate_compares_sizes_in_one_table_and_figure(
    trained: Path, photos: Path, tmp_path: Path, shell: Callable[..., str]
) -> None:
    command = ["validate", "--data", photos, "--model", trained, "--device", "cpu", "--size"]
    printed = shell(*command, 24, 16, "--figure", tmp_path / "sizes.png", "--width", "column")
    rows = [line.split() for line in printed.splitlines() if " x " in line][-2:]
    model = vitviz.load(trained)
    for row, size in zip(rows, (16, 24), strict=True):
        accuracy = validate(model, photos, size=size)
        assert row[:4] == [str(size), "x", str(size), str((size // 4) ** 2)]
        assert row[4:6] == percent(accuracy.top1, 4).split()
    assert Image.open(tmp_path / "sizes.png").width == 3.25 * PRINT_DPI
    assert percent(accuracy.top1, 4) in shell(*command, 24)  # a single size gives the same accuracy
    assert shell(*command, 23, 24, 16).count("24 x 24") == 1  # 23 is rounded to 24
    for wrong in ([16, "--figure", "x.png"], [16, 24, "--confusion", "c.csv"], [16, 2]):
        assert "Expected" in shell(*command, *wrong, code=2)
