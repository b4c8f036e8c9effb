"""Test models in memory and folders of fine-tuned models: adapters, wrappers, classifiers, labels, preprocessing.

Each model gives its library's logits, lists assumptions, and does not inherit the published weights' name or licence.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import test_from_torchvision
import timm
import torch
import transformers as hf
from hf_cases import CASES, CLASSES, MAJOR, saved
from image_files import random_rgb
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.data import create_transform, resolve_model_data_config
from timm.models.vision_transformer import VisionTransformer
from timm_models import shaken, written
from torch import Tensor, nn
from torchvision.models import ViT_B_16_Weights

import vitviz
from vitviz.web.scene import Scene
from vitviz.weights.checkpoint import load_folder, save
from vitviz.weights.checks import CheckpointError, ConvertError
from vitviz.weights.objects import convert_object

pytestmark = pytest.mark.usefixtures("one_thread")

CASE = CASES["ViT-classifier"]
PHOTO = Image.fromarray(random_rgb(90, 70))
LABELS = [f"thing {index}" for index in range(CLASSES)]


def timm_model(name: str = "vit_tiny_patch16_224", **changes: Any) -> Any:
    sizes = {"embed_dim": 60, "depth": 2, "num_heads": 5, "img_size": 48}
    return shaken(timm.create_model(name, **sizes | changes))


def about(source: Any, **options: Any) -> vitviz.Pretrained:
    """Load a model, unless it is loaded, and return its `pretrained`."""
    model = source if isinstance(source, vitviz.ViT) else vitviz.load(source, **options)
    assert model.pretrained is not None
    return model.pretrained


def mean_height_mode(source: Any, **options: Any) -> tuple[float, int, str]:
    """Return the mean of the first channel, the height and the mode of a model's preprocessing."""
    preprocess = about(source, **options).preprocess
    return preprocess.mean[0], preprocess.height, preprocess.mode


def assert_same(ours: vitviz.ViT, theirs: Any, side: int = 44) -> None:
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(3))
    expected = theirs(images)
    logits = expected if isinstance(expected, Tensor) else expected.logits
    torch.testing.assert_close(ours(images), logits, rtol=0, atol=1e-4)


def adapted(model: Any, head: bool = True, **options: Any) -> Any:
    saved = ["classifier"] if head else None
    targets = ["q_proj", "v_proj"] if MAJOR > 4 else ["query", "value"]
    settings = peft.LoraConfig(r=2, target_modules=targets, modules_to_save=saved, **options)
    return peft.get_peft_model(model, settings)


@torch.no_grad()
@pytest.mark.parametrize("head", [True, False])
def test_adapters_are_merged_into_a_copy(head: bool) -> None:
    """The adapters' weights are random, so merging them changes the logits."""
    theirs = shaken(adapted(CASE.build(), head, lora_alpha=3))
    before = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    ours = vitviz.load(theirs)
    assert theirs.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in theirs.state_dict().items())
    assert_same(ours, theirs)
    images = torch.randn(2, 3, 44, 44)
    assert not torch.allclose(CASE.build()(images).logits, ours(images), atol=1e-2)


@torch.no_grad()
def test_adapters_that_are_off_or_in_half_precision_compute_the_same() -> None:
    theirs = shaken(adapted(CASE.build(), head=False))
    with theirs.disable_adapter():
        assert_same(vitviz.load(theirs), theirs)
    layers = [part for part in theirs.modules() if hasattr(part, "lora_A")]
    layers[0].enable_adapters(False)
    with pytest.raises(ConvertError, match="differs in the attention of block 0"):  # some are on, some off
        convert_object(theirs)
    with pytest.warns(UserWarning, match="runs as it is"):
        assert_same(vitviz.load(theirs), theirs)
    layers[0].enable_adapters(True)
    images = torch.randn(2, 3, 44, 44)
    half = theirs.bfloat16()
    torch.testing.assert_close(vitviz.load(half)(images), half.float()(images).logits, rtol=0, atol=1e-4)


@torch.no_grad()
def test_folder_of_adapters_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CASE.build().save_pretrained(tmp_path / "base")
    folder = tmp_path / "mine"
    theirs = adapted(hf.ViTForImageClassification.from_pretrained(tmp_path / "base")).eval()
    for parameter in theirs.parameters():  # only adapters are saved
        parameter.add_(torch.randn_like(parameter) * (0.2 if parameter.requires_grad else 0))
    theirs.save_pretrained(folder)
    ours = vitviz.load(folder)
    assert_same(ours, theirs)
    assert (about(ours).name, about(ours).licence) == ("mine", "unknown")
    assert about(ours).source == "adapters of mine, merged into base"
    assert [words.partition(":")[0] for words in about(ours).assumed] == ["preprocessing", "labels"]
    for place, side in ((tmp_path / "base", 48), (folder, 40)):  # the folder's own processor has priority
        hf.ViTImageProcessor(size={"height": side, "width": side}).save_pretrained(place)
        assert about(folder, labels=LABELS).preprocess.height == side

    def assert_refused(words: str) -> None:
        with pytest.raises(ValueError, match=words):
            vitviz.load(folder)

    settings = folder / "adapter_config.json"
    original = json.loads(settings.read_text())
    for change, words in (
        ({"base_model_name_or_path": None}, "Expected the name of the base model"),
        ({"base_model_name_or_path": "nobody/nothing"}, "cannot be reached"),
        ({"target_modules": ["elsewhere"]}, "Expected adapters of an image model"),
        ({"peft_type": "NEW"}, "Expected adapters of an image model"),
    ):
        settings.write_text(json.dumps(original | change))
        assert_refused(words)
    settings.write_text(json.dumps(original))
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "peft", None)
        assert_refused(r"Expected the packages peft and transformers .* peft.*pip install peft")
    (folder / "adapter_model.safetensors").unlink()
    assert_refused("adapter_model")


@torch.no_grad()
def test_wrappers_are_removed_and_our_models_copied(tmp_path: Path) -> None:
    theirs = timm_model()
    ours = vitviz.load(theirs)
    assert_same(ours, theirs, 48)
    save(ours, tmp_path)
    for source in (theirs, nn.DataParallel(theirs), torch.compile(theirs), ours, tmp_path):
        state = vitviz.Explorer(source).model.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in ours.state_dict().items())
    again = vitviz.load(ours, labels=LABELS[:2] * 500)
    assert about(again).labels != about(ours).labels
    again.norm.weight.fill_(7.0)
    assert not torch.equal(again.norm.weight, ours.norm.weight)


class Wrapper(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class OwnModel(hf.PreTrainedModel):
    config_class = hf.ViTConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vit = CASES["ViT"].build()


@pytest.mark.parametrize(
    ("wrapper", "path"),
    [
        (Wrapper(net=Wrapper(encoder=test_from_torchvision.tiny())), "model.net.encoder"),
        (Wrapper(encoder=CASE.build()), "model.encoder"),
        (nn.Sequential(timm_model(), nn.Linear(1000, 3)), "model[0]"),
        (OwnModel(CASE.build().config), "model.vit"),
    ],
    ids=["torchvision", "transformers", "sequence", "own class of transformers"],
)
def test_error_names_the_attribute_of_a_wrapper_to_load(wrapper: Any, path: str) -> None:
    with pytest.raises(ConvertError) as refused:
        vitviz.load(wrapper)
    assert f"Load the model inside, without what is around it: vitviz.load({path})." in str(refused.value)
    assert vitviz.load(eval(path, {"model": wrapper})).config.depth > 1


@torch.no_grad()
@pytest.mark.parametrize("library", ["timm", "torchvision", "sequence"])
def test_advice_for_a_backbone_and_its_classifier_keeps_the_classifier(library: str) -> None:
    if library == "torchvision":
        backbone, width = test_from_torchvision.tiny(), 35
        backbone.heads = nn.Identity()
    else:
        backbone, width = timm_model(num_classes=0), 60
    parts = {"backbone": backbone, "fc": nn.Linear(width, 3)}
    model: Any = nn.Sequential(*parts.values()) if library == "sequence" else Wrapper(**parts)
    with pytest.raises(ConvertError, match="keep it: ") as refused:
        vitviz.load(model)
    assign, load = str(refused.value).partition("keep it: ")[2].rstrip(".").split("; ")
    exec(assign, {"model": model})
    side = backbone.image_size if library == "torchvision" else 48
    images = torch.randn(1, 3, side, side)
    ours = eval(load, {"model": model, "vitviz": vitviz})
    backbone.head = backbone.heads = nn.Identity()
    torch.testing.assert_close(ours(images), parts["fc"](backbone(images)), rtol=0, atol=1e-4)
    with pytest.raises(ConvertError, match=r"Put model.encoder and its classifier model.fc into the class of transf"):
        vitviz.load(Wrapper(encoder=CASES["ViT"].build(), fc=nn.Linear(35, 3)))


class LoRA(nn.Module):
    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner, self.down = inner, nn.Linear(inner.in_features, inner.out_features)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) + self.down(x)
        return out


def test_replaced_parts_and_quantised_models_are_refused_with_the_reason() -> None:
    for model, name in ((timm_model(), "blocks.1.attn.qkv"), (timm_model(), "blocks.0.mlp.fc1")):
        at, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(at), attribute, LoRA(model.get_submodule(name)))
        with pytest.raises(ConvertError, match=r"Merge added parts into the weights|unexpected tensors"):
            convert_object(model)
    theirs = test_from_torchvision.tiny()
    theirs.conv_proj = nn.Sequential(theirs.conv_proj)
    with pytest.raises(ConvertError, match="Merge added parts into the weights"):
        convert_object(theirs)
    quantised = torch.ao.quantization.quantize_dynamic(timm_model(), {nn.Linear})
    with pytest.raises(ConvertError, match=r"a quantised part, blocks\.0\.attn\.qkv of torch\.ao"):
        convert_object(quantised)


@torch.no_grad()
def test_averages_of_weights_and_subclasses_load() -> None:
    class Mine(VisionTransformer):
        """Subclass that computes the same."""

    theirs = timm_model()
    for average in (torch.optim.swa_utils.AveragedModel(theirs), timm.utils.ModelEmaV3(theirs)):
        assert_same(vitviz.load(average), theirs, 48)
    own = shaken(Mine(img_size=48, embed_dim=60, depth=2, num_heads=5, num_classes=3))
    assert_same(vitviz.load(own), own, 48)


@torch.no_grad()
@pytest.mark.parametrize("channels", [1, 4])
def test_torchvision_model_of_other_channels_loads(channels: int) -> None:
    theirs = test_from_torchvision.tiny()
    theirs.conv_proj = nn.Conv2d(channels, 35, 3, 3)
    ours = vitviz.load(theirs)
    images = torch.randn(1, channels, *ours.config.image_size)
    torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-4)


@torch.no_grad()
def test_folder_of_timm_has_its_labels_and_preprocessing(tmp_path: Path) -> None:
    theirs = timm_model(num_classes=3, embed_dim=192, num_heads=3)
    theirs.pretrained_cfg = {**theirs.pretrained_cfg, "mean": (0.7,) * 3, "crop_pct": 1.0}
    names = ["normal", "benign", "malignant"]
    timm.models.save_for_hf(theirs, tmp_path, model_config={"label_names": names}, safe_serialization=True)
    for source in (tmp_path, tmp_path / "model.safetensors"):
        ours = vitviz.load(source)
        assert_same(ours, theirs, 48)
        assert (about(ours).labels, about(ours).preprocess.mean, about(ours).assumed) == (tuple(names), (0.7,) * 3, ())
    settings = json.loads((tmp_path / "config.json").read_text())
    older = settings | settings.pop("pretrained_cfg") | {"labels": names, "label_names": None}
    older.pop("mean")
    (tmp_path / "config.json").write_text(json.dumps(older))
    assert about(tmp_path).labels == tuple(names)
    assert about(tmp_path).assumed[0].startswith("preprocessing:")
    for change, words in (
        ({"architecture": "vit_nothing"}, "which timm cannot build"),
        ({"architecture": "vit_base_patch32_224"}, "Expected the tensors of vit_base_patch32_224"),
        ({"model_args": {"patch_size": 0}}, "which timm cannot build"),
        ({"model_args": {"checkpoint_path": "/etc/passwd"}}, None),
    ):
        (tmp_path / "config.json").write_text(json.dumps(settings | older | change))
        if words is None:
            assert_same(vitviz.load(tmp_path), theirs, 48)
            continue
        with pytest.raises(ConvertError, match=words):
            vitviz.load(tmp_path)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod."])
def test_folder_of_a_wrapped_model_loads(tmp_path: Path, prefix: str) -> None:
    theirs = saved(CASE, tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({prefix + name: tensor for name, tensor in load_file(path).items()}, path)
    assert_same(vitviz.load(tmp_path), theirs, 44)


def test_unknown_and_unusable_objects_are_refused(tmp_path: Path) -> None:
    class Mine(hf.ViTForImageClassification):
        """Subclass that may compute something else."""

    distilled = timm_model("deit_tiny_distilled_patch16_224")
    distilled.head = nn.Linear(60, 3)
    for step in (500, 1500, 1000):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for wrong, words in (
        (
            nn.Linear(2, 3),
            "Expected a Vision Transformer of timm, torchvision, transformers, peft.*Save its state dict",
        ),
        (Wrapper(student=timm_model(), teacher=timm_model()), "Save its state dict"),
        (Mine(CASE.config(**CASE.settings)), "a class of transformers, got .*Mine"),
        (timm.create_model("resnet10t"), "ResNet"),
        (distilled, "several: head of 3 classes, head_dist of 1000 classes"),
        (adapted(CASE.build()).base_model.model, "adapters merged"),
        (timm_model().to("meta"), "Expected weights in memory"),
        (timm_model().to(torch.float8_e5m2), "Expected weights in memory"),
        (tmp_path, r"such as the last: .*checkpoint-1500"),
    ):
        convert = vitviz.load if wrong is tmp_path else convert_object
        with pytest.raises(CheckpointError if wrong is tmp_path else ConvertError, match=words):
            convert(wrong)
    with pytest.raises(CheckpointError, match="neither like nor heads"):
        vitviz.load(timm_model(), heads=5)


# --- assumptions


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224.augreg_in21k_ft_in1k", "vit_small_patch14_dinov2.lvd142m"])
def test_object_does_not_inherit_name_or_licence_of_published_weights(name: str) -> None:
    theirs = timm_model(name, img_size=3 * int(name.partition("patch")[2][:2]))
    assert theirs.pretrained_cfg["license"]
    pretrained = about(theirs)
    assert pretrained.licence == "unknown"
    assert name.partition(".")[2] not in f"{pretrained.name} {pretrained.source}"
    assert "http" not in pretrained.source
    assert pretrained.preprocess.mean == tuple(theirs.pretrained_cfg["mean"])
    assert any(words.startswith("labels:") for words in pretrained.assumed) == bool(pretrained.labels)


def test_imagenet_labels_are_assumed_for_1000_classes_only() -> None:
    whole = about(test_from_torchvision.tiny(num_classes=1000))
    assert whole.labels[0] == "tench"
    assert [words.partition(":")[0] for words in whole.assumed] == ["preprocessing", "labels"]
    assert about(test_from_torchvision.tiny()).labels[:2] == ("class 0", "class 1")


@pytest.mark.parametrize(
    ("name", "mean", "size", "mode"),
    [
        ("ViT-classifier", 0.5, 44, "squash"),
        ("DeiT-classifier", 0.485, 44, "crop"),
        ("DINOv2-classifier", 0.485, 224, "crop"),
        ("DINOv3", 0.485, 44, "squash"),
        ("CLIP-whole", 0.48145466, 44, "crop"),
        ("SigLIP-classifier", 0.5, 44, "squash"),
    ],
)
def test_folder_without_a_processor_gets_usual_preprocessing(
    name: str, mean: float, size: int, mode: str, tmp_path: Path
) -> None:
    theirs = CASES[name].build()
    theirs.save_pretrained(tmp_path)
    pretrained = about(tmp_path)
    assert mean_height_mode(tmp_path) == (mean, size, mode)
    assert f"preprocessing: {pretrained.preprocess.describe()}" in pretrained.assumed
    assert pretrained.preprocess == about(theirs).preprocess
    assert any(words.startswith("labels: LABEL_0") for words in pretrained.assumed) == bool(pretrained.labels)


def test_assumptions_are_shown_on_the_page_and_saved(tmp_path: Path) -> None:
    ours = vitviz.load(CASE.build())
    scene = Scene(vitviz.Explorer(ours).open(PHOTO), note="An example.")
    assert about(ours).assumed
    assert all(words in scene.caveat for words in ("An example.", *about(ours).assumed))
    save(ours, tmp_path)
    assert load_folder(tmp_path).pretrained == ours.pretrained
    complete = vitviz.load(tmp_path, labels=LABELS, preprocess="half")
    assert about(complete).assumed == ()
    assert Scene(vitviz.Explorer(complete).open(PHOTO)).caveat == ""
    save(complete, tmp_path)
    assert "assumed" not in json.loads((tmp_path / "config.json").read_text())


def test_labels_are_read_from_every_documented_form(tmp_path: Path) -> None:
    theirs = test_from_torchvision.tiny()
    named = {str(index): name for index, name in reversed(list(enumerate(LABELS)))}
    contents = {"names.txt": "\n".join(LABELS) + "\n", "list.json": json.dumps(LABELS)}
    for name, text in (contents | {"config.json": json.dumps({"id2label": named})}).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert about(theirs, labels=tmp_path / name).labels == tuple(LABELS)
    for labels in (LABELS, tuple(LABELS), dict(enumerate(LABELS)), named, str(tmp_path / "names.txt")):
        assert about(theirs, labels=labels).labels == tuple(LABELS)
    for model, wrong, words in (
        (theirs, LABELS[:-1], "13 labels.*got 12"),
        (theirs, ["a", "", *LABELS[2:]], "Expected the names of the classes"),
        (theirs, tmp_path / "nothing.txt", "nothing.txt"),
        (theirs, 3, "Expected labels of load to be"),
        (theirs, {0: "a", 2: "b"}, "id2label with the classes 0 to 1"),
        (timm_model(num_classes=0), LABELS, "Expected 0 labels"),
    ):
        with pytest.raises(CheckpointError, match=words):
            vitviz.load(model, labels=wrong)
    torch.save(theirs.state_dict(), tmp_path / "mine.pt")
    pretrained = about(tmp_path / "mine.pt", heads=5, labels=LABELS, preprocess="half")
    assert (pretrained.labels, pretrained.preprocess.mean) == (tuple(LABELS), (0.5, 0.5, 0.5))
    assert not any("preprocessing" in words for words in pretrained.assumed)
    assert any("norm epsilon" in words for words in pretrained.assumed)
    assert about("vit-cifar10", labels=list("abcdefghij")).labels == tuple("abcdefghij")


def test_preprocessing_is_read_from_every_documented_form(tmp_path: Path) -> None:
    theirs = test_from_torchvision.tiny(image_size=48)
    processor = hf.ViTImageProcessor(size={"height": 48, "width": 48}, image_mean=[0.1] * 3)
    processor.save_pretrained(tmp_path)
    data = resolve_model_data_config(timm_model())
    own = vitviz.Preprocess(height=33, width=33, mode="pad")
    save(vitviz.load(theirs, preprocess=own, labels=LABELS), tmp_path / "ours")
    for preprocess, mean, size, mode in (
        (own, 0.485, 33, "pad"),
        (tmp_path / "ours" / "config.json", 0.485, 33, "pad"),
        (processor, 0.1, 48, "squash"),
        (tmp_path / "preprocessor_config.json", 0.1, 48, "squash"),
        (data, data["mean"][0], 48, "crop"),
        (timm_model().pretrained_cfg, 0.5, 48, "crop"),
        (ViT_B_16_Weights.IMAGENET1K_V1.transforms(crop_size=48, resize_size=60), 0.485, 48, "crop"),
        ("clip", 0.48145466, 48, "crop"),
        ("half", 0.5, 48, "squash"),
        ("imagenet", 0.485, 48, "crop"),
    ):
        assert mean_height_mode(theirs, preprocess=preprocess) == (mean, size, mode)
        assert not any("preprocessing" in words for words in about(theirs, preprocess=preprocess).assumed)
    for wrong, words in (
        (3, "vitviz.Preprocess"),
        ("caffe", "caffe"),
        ({"image_mean": [0.5]}, "Expected all Preprocessing settings"),
        (vitviz.Preprocess(height=32, width=32), "in multiples of"),
    ):
        with pytest.raises(CheckpointError, match=words):
            vitviz.load(theirs, preprocess=wrong)


@pytest.mark.parametrize(
    "cfg", [{"crop_mode": "border", "crop_pct": 0.9}, {"interpolation": "random"}, {"mean": None, "crop_pct": None}]
)
def test_preprocess_argument_replaces_unsupported_preprocessing(cfg: dict[str, Any]) -> None:
    theirs = timm_model(num_classes=3)
    theirs.pretrained_cfg.update(cfg)
    with pytest.raises(ConvertError, match=r"preprocess=\.\.\."):
        vitviz.load(theirs)
    own = vitviz.Preprocess(height=48, width=48, mode="pad")
    pretrained = about(theirs, preprocess=own)
    assert (pretrained.preprocess, pretrained.labels) == (own, ("class 0", "class 1", "class 2"))
    assert "pretrained_cfg" not in pretrained.source


SIDES = (192, 320)


@torch.no_grad()
def test_rectangular_input_matches_timm() -> None:
    theirs = timm_model(img_size=SIDES, num_classes=3)
    explorer = vitviz.Explorer(vitviz.load(theirs))
    config = resolve_model_data_config(theirs, use_test_size=True) | {"input_size": (3, *SIDES)}
    transform: Any = create_transform(**config)
    for size in ((400, 300), (300, 400), (640, 360), (900, 250), (213, 355)):
        photo = Image.fromarray(random_rgb(*size))
        view, expected = explorer.open(photo), transform(photo)
        torch.testing.assert_close(view.images[0], expected, rtol=0, atol=1e-6)
        probabilities = theirs(expected[None]).softmax(1)[0]
        predicted = dict(view.predictions(3))
        assert [predicted[label] for label in view.labels] == pytest.approx(probabilities.tolist(), abs=1e-5)


def test_usual_preprocessing_keeps_a_rectangular_input(tmp_path: Path) -> None:
    theirs = timm_model(img_size=SIDES, num_classes=3)
    theirs.pretrained_cfg = None
    for words in ("imagenet", "clip", "half", None):
        view = vitviz.Explorer(vitviz.load(theirs, preprocess=words)).open(PHOTO)
        assert view.size == SIDES
        assert view.trace.tokens.shape[1] == 1 + 12 * 20
    theirs = CASE.build(image_size=[44, 76])
    theirs.save_pretrained(tmp_path)
    for source in (theirs, tmp_path):
        assert (about(source).preprocess.height, about(source).preprocess.width) == (44, 76)


# --- classifiers that fine-tuning replaced

# Name -> model, attribute of its classifier, side of its images in pixels, input width of the classifier.
MODELS: dict[str, tuple[Callable[[], Any], str, int, int]] = {
    "timm": (timm_model, "head", 48, 60),
    "torchvision": (test_from_torchvision.tiny, "heads", 33, 35),
    "transformers": (CASE.build, "classifier", 44, 35),
    "transformers, class token and mean": (CASES["DINOv2-classifier"].build, "classifier", 44, 70),
}
HEADS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda width: nn.Linear(width, 3),
    "without a bias": lambda width: nn.Linear(width, 3, bias=False),
    "dropout": lambda width: nn.Sequential(nn.Dropout(), nn.Linear(width, 3)),
    "nested": lambda width: nn.Sequential(nn.Identity(), nn.Sequential(nn.Linear(width, 3), nn.Dropout())),
}


def replaced(name: str, head: Callable[[int], nn.Module]) -> Any:
    build, attribute, _, width = MODELS[name]
    model = build()
    setattr(model, attribute, head(width))
    return shaken(model).eval()


@torch.no_grad()
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", MODELS)
def test_replaced_classifier_determines_the_classes(name: str, head: str, tmp_path: Path) -> None:
    """Files and folders load too; a transformers folder has the settings of the old classifier."""
    theirs = replaced(name, HEADS[head])
    models = [vitviz.load(theirs)]
    if head in ("linear", "dropout") and name in ("timm", "torchvision"):
        paths = [written(theirs.state_dict(), tmp_path, suffix) for suffix in (".pth", ".safetensors")]
        models += [vitviz.load(path, heads=5) for path in paths]
    elif head in ("linear", "dropout"):
        theirs.save_pretrained(tmp_path)
        models.append(vitviz.load(tmp_path))
    for ours in models:
        assert_same(ours, theirs, MODELS[name][2])
        labels = about(ours).labels
        assert labels in (("class 0", "class 1", "class 2"), ("LABEL_0", "LABEL_1", "LABEL_2"))
        assert any(words.startswith(f"labels: {labels[0]}, ") for words in about(ours).assumed)
        view = vitviz.Explorer(ours).open(PHOTO, size=MODELS[name][2])
        assert {label for label, _ in view.predictions()} == {*labels}
        assert view.describe()
    assert not any(words.startswith("labels") for words in about(theirs, labels=("ant", "bee", "cat")).assumed)
    none = vitviz.load(replaced(name, lambda _width: nn.Identity()))
    assert (none.config.classes, len(about(none).labels)) == (0, 0)


@pytest.mark.parametrize("name", ["timm", "torchvision", "transformers"])
def test_classifier_with_more_than_a_linear_layer_is_not_converted(name: str, tmp_path: Path) -> None:
    attribute = MODELS[name][1]

    def hidden(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, 7), nn.ReLU(), nn.Linear(7, 3))

    for head, words in (
        (hidden, rf"the hidden layer {attribute}\.0\."),
        (lambda width: nn.Sequential(nn.Linear(width, 3), nn.Sigmoid()), rf"{attribute}\.1, which is Sigmoid"),
        (lambda width: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3)), rf"{attribute}\.0, which is LayerNorm"),
        (lambda width: nn.Bilinear(width, 2, 3), f"{attribute}, which is Bilinear"),
    ):
        theirs = replaced(name, head)
        with pytest.raises(ConvertError, match=words):
            convert_object(theirs)
        if head is hidden:
            with pytest.warns(UserWarning, match=f"captured. .*{words}"):
                assert_same(vitviz.load(theirs), theirs, MODELS[name][2])
    if name != "transformers":
        path = written(replaced(name, hidden).state_dict(), tmp_path, ".pth")
        with pytest.raises(ConvertError, match=rf"the hidden layer or norm '{attribute}\.0\.weight'"):
            vitviz.load(path, heads=5)
