"""Test bundled models, the catalog against the libraries that publish its models, and models downloaded by name.

The tests use the real libraries, with local files in place of downloads.
"""

import json
import re
import socket
import time
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import skimage.data
import timm
import torch
import transformers as hf
from hf_cases import CASES, assert_same, files_of, saved
from local_hub import local_hub
from PIL import Image
from safetensors.torch import load_file, save_model
from timm_models import shaken
from torch import nn
from torchvision import models

from vitviz.cli.main import main
from vitviz.images.decoding import decode
from vitviz.model.vit import ViT
from vitviz.training.teachers import Classifier, load_teacher
from vitviz.weights import remote, zoo
from vitviz.weights.captured_vit import CapturedViT
from vitviz.weights.catalog import CATALOG, CatalogEntry
from vitviz.weights.checks import ConvertError
from vitviz.weights.from_timm import about_timm, config_of
from vitviz.weights.from_torchvision import BUILDERS
from vitviz.weights.remote import RemoteError, read_remote_reference
from vitviz.weights.zoo import LIBRARIES, load

pytestmark = pytest.mark.usefixtures("one_thread")

EXAMPLES = Path(__file__).parents[2] / "examples"
BUNDLED, PLAIN, CASE = "dinov2-s14-imagenette", "vit-cifar10", CASES["ViT-classifier"]


@torch.no_grad()
def best(model: ViT, image: Image.Image) -> list[str]:
    """Return the labels, sorted by decreasing probability."""
    logits = model(torch.from_numpy(model.pretrained.preprocess(image).pixels)[None])[0]
    return [model.pretrained.labels[int(index)] for index in logits.argsort(descending=True)]


def test_bundled_models_are_small_and_recognize_photographs() -> None:
    assert (zoo.CHECKPOINTS / BUNDLED / "model.safetensors").stat().st_size <= 46e6
    bundled, plain = load(BUNDLED), load(PLAIN)
    config = plain.config
    assert (config.image_size, config.patch_size, config.prefix, config.registers) == ((32, 32), 4, (), 0)
    assert count(plain) <= 6e6
    for name, model in ((BUNDLED, bundled), (PLAIN, plain)):
        assert name in zoo.bundled()
        card = (zoo.CHECKPOINTS / name / "README.md").read_text(encoding="utf-8")
        assert all(label in card for label in model.pretrained.labels)
        assert len(model.pretrained.labels) == model.config.classes == 10
    assert len(bundled.pretrained.class_ids) == 10
    horse = np.repeat(np.uint8(255) * skimage.data.horse()[..., None], 3, axis=2)  # a silhouette
    assert best(plain, decode(horse))[0] == "horse"
    assert best(plain, decode(skimage.data.chelsea()))[1] == "cat"  # the most probable class is dog
    for name, label in (("church", "church"), ("dog", "English springer")):
        assert best(bundled, decode(EXAMPLES / f"{name}.jpg"))[0] == label
    for photo in (skimage.data.chelsea(), skimage.data.rocket()[:, 200:400]):  # two different shapes
        height, width = bundled.pretrained.preprocess(decode(photo)).geometry.input
        assert 200 <= (height // 14) * (width // 14) <= 300


# --- the catalog, without downloads


def each_of(library: str) -> pytest.MarkDecorator:
    entries = [entry for entry in CATALOG if entry.source.startswith(f"{library}:")]
    return pytest.mark.parametrize("entry", entries, ids=name_of)


def name_of(entry: CatalogEntry) -> str:
    return entry.source.partition(":")[2]


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@each_of("timm")
def test_catalog_agrees_with_timm(entry: CatalogEntry) -> None:
    name = name_of(entry)
    cfg = timm.get_pretrained_cfg(name)
    assert (cfg.hf_hub_id, cfg.hf_hub_filename) == (
        f"timm/{name}",
        None,
    )  # the weights can be downloaded from the expected repository
    assert cfg.num_classes == entry.classes
    assert cfg.license.replace("-license", " license") == entry.licence.lower()
    with torch.device("meta"):
        built = timm.create_model(name, num_classes=cfg.num_classes)
    assert count(built) == entry.parameters
    if "swin" in name:  # it runs as it is
        assert built.patch_embed.img_size == (entry.input_size, entry.input_size)
        return
    config, _ = config_of(built)
    assert (config.classes, len(about_timm(built.pretrained_cfg, config).labels)) == (entry.classes, entry.classes)
    assert config.image_size == (entry.input_size, entry.input_size)


@each_of("torchvision")
def test_catalog_agrees_with_torchvision(entry: CatalogEntry) -> None:
    architecture, _, tag = name_of(entry).partition(".")
    weights = models.get_model_weights(architecture)[tag]
    assert weights.meta["_file_size"] * 2**20 == pytest.approx(entry.size, rel=0.001)  # torchvision's unit is MiB
    about = read_remote_reference("torchvision", name_of(entry)).about
    assert (about.preprocess.height, about.preprocess.width) == (entry.input_size, entry.input_size)
    assert len(about.labels) == entry.classes
    assert about.licence.startswith("unknown") == (entry.licence == "licence not stated")
    with torch.device("meta"):
        assert count(models.get_model(architecture)) == weights.meta["num_params"] == entry.parameters
    assert architecture in BUILDERS


@each_of("hf")
def test_catalog_agrees_with_transformers(entry: CatalogEntry) -> None:
    assert len(CATALOG) == len({entry.source for entry in CATALOG}) == len({entry.title for entry in CATALOG}) == 12
    assert {entry.source.partition(":")[0] for entry in CATALOG} == set(LIBRARIES)
    build, config = {
        "google/vit-base-patch16-224": (hf.ViTForImageClassification, hf.ViTConfig()),
        "facebook/dinov2-with-registers-small-imagenet1k-1-layer": (
            hf.Dinov2WithRegistersForImageClassification,
            hf.Dinov2WithRegistersConfig(hidden_size=384, num_attention_heads=6, image_size=518, patch_size=14),
        ),
    }[name_of(entry)]
    config.num_labels = entry.classes
    with torch.device("meta"):
        assert count(build(config)) == entry.parameters
    assert entry.input_size == 224


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every connection fail immediately."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    "source", ["hf:nobody/nothing-here", "timm:vit_tiny_patch16_224.augreg_in21k", "torchvision:vit_l_32"]
)
def test_no_network_gives_one_line_without_retries(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"it waits for {seconds} s"))
    assert main(["summary", "--model", source]) == 2
    line = capsys.readouterr().err
    assert re.search(r"cannot be reached.*vitviz models", line)
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("timm:vit_enormous", RemoteError, "vit_enormous"),
        ("timm:test_vit.no_such_tag", RemoteError, "no_such_tag"),
        ("timm:xcit_nano_12_p16_224", ConvertError, "Xcit"),
        ("torchvision:resnet50", RemoteError, "vit_b_16"),
        ("torchvision:vit_b_16.IMAGENET22K", RemoteError, "IMAGENET1K_SWAG_E2E_V1"),
        ("hf:not a name", RemoteError, "owner/name"),
    ],
)
def test_unknown_and_unsupported_models_are_refused_before_a_download(
    source: str, error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not source.startswith("hf:"):
        monkeypatch.setattr(remote, "fetch", lambda *_: pytest.fail("something was fetched"))
    with pytest.raises(error, match=words):
        load(source)


def test_model_loads_from_a_local_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real client downloads from a local server that imitates the hub."""
    repository = tmp_path / "hub" / "google" / "tiny-vit"
    theirs = saved(CASE, repository)
    (repository / "README.md").write_text("---\ntags: [vision]\nlicense: apache-2.0\n---\n# ViT\nlicense: mit\n")
    with local_hub(tmp_path / "hub", tmp_path / "cache", monkeypatch):
        remote.check_hub("google/tiny-vit")
        for ask in (remote.check_hub, remote.LIBRARIES["hf"][0]):
            with pytest.raises(RemoteError, match="google/none"):
                ask("google/none")
        ours = load("hf:google/tiny-vit")
        assert_same(CASE, theirs, ours)
        assert (ours.pretrained.name, ours.pretrained.licence) == ("google/tiny-vit", "apache-2.0")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(RemoteError, match="cannot be reached"):
            remote.check_hub("google/tiny-vit")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(RemoteError, match="cannot be reached"):  # the server is closed
        remote.check_hub("google/tiny-vit")


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("safe", [True, False])
def test_cached_model_needs_no_network(safe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs may have filled Hugging Face's cache only partly."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    place = tmp_path / "models--google--tiny-vit"
    folder = place / "snapshots" / "abc"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("abc")
    theirs = saved(CASE, folder)
    processor = (folder / "preprocessor_config.json").rename(tmp_path / "processor.json")
    if not safe:  # old repositories have a PyTorch file
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    with pytest.raises(RemoteError, match="is not downloaded"):
        load("hf:google/tiny-vit")  # the processor is missing, and the hub may have it
    processor.rename(folder / "preprocessor_config.json")
    assert_same(CASE, theirs, load("hf:google/tiny-vit"))
    torch.save(files_of(CASE)[0], tmp_path / "mine.pt")
    assert_same(CASE, theirs, load(tmp_path / "mine.pt", like="hf:google/tiny-vit"))


@pytest.mark.usefixtures("no_network")
def test_folders_and_hub_models_are_compared_with_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(CASE, tmp_path)
    monkeypatch.setattr(remote, "hub_folder", lambda _: tmp_path)
    for source in ("hf:google/tiny-vit", tmp_path):
        assert not any("not compared" in text for text in load(source).pretrained.assumed)
    kind = getattr(hf, json.loads((tmp_path / "config.json").read_text("utf-8"))["architectures"][0])
    own = kind.from_pretrained

    def patched(*args: Any, **options: Any) -> Any:
        model, loading = own(*args, **options)
        linear = next(part for part in model.modules() if isinstance(part, nn.Linear))
        linear.register_forward_hook(lambda _part, _inputs, output: output * 1.01)
        return model, loading

    monkeypatch.setattr(kind, "from_pretrained", patched)
    for source, name in (("hf:google/tiny-vit", "google/tiny-vit"), (tmp_path, tmp_path.name)):
        with pytest.warns(UserWarning, match="differs in the attention of block 0"):
            model = load(source)
        assert isinstance(model, CapturedViT)
        assert model.pretrained.name == name
    monkeypatch.setattr(kind, "from_pretrained", lambda *_args, **_options: int("no model"))
    assert "not compared with those of transformers" in load("hf:google/tiny-vit").pretrained.assumed[-1]


@torch.no_grad()
def test_models_and_classifiers_of_timm_and_torchvision_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any classifier may be a teacher. Here, torchvision's Vision Transformer has one block instead of twelve."""

    def small(name: str, **settings: Any) -> nn.Module:
        assert (name, settings) == ("vit_b_32", {"image_size": 224})
        sizes = {"patch_size": 32, "num_layers": 1, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 307}
        return models.VisionTransformer(**sizes, **settings)

    def give(url: str, weights_only: bool = False, check_hash: bool = False, **_: object) -> dict:
        assert (weights_only, check_hash) == (True, True)
        return theirs.state_dict()

    fetched: list[tuple] = []
    monkeypatch.setattr(remote, "fetch", lambda *what: fetched.append(what) or tmp_path)
    monkeypatch.setattr(remote, "reachable", lambda _: True)
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", give)
    tiny, squeezed = timm.create_model("vit_tiny_patch16_224"), models.squeezenet1_1()
    for read, source, theirs, size in (
        (load, "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k", shaken(tiny), 224),
        (load_teacher, "timm:test_resnet", timm.create_model("test_resnet").eval(), 160),
        (load_teacher, "torchvision:squeezenet1_1", squeezed.eval(), 224),
        (load, "torchvision:vit_b_32.IMAGENET1K_V1", shaken(small("vit_b_32", image_size=224)), 224),
    ):
        save_model(theirs, str(tmp_path / "model.safetensors"))
        if isinstance(theirs, models.VisionTransformer):
            monkeypatch.setattr(models, "get_model", small)
            torch.save(theirs.state_dict(), tmp_path / "mine.pt")
            like = load(tmp_path / "mine.pt", like=source)
            assert like.pretrained.labels[0] == "tench"
            assert torch.equal(like.norm.weight, theirs.encoder.ln.weight)
        ours = read(source)
        assert isinstance(ours, ViT if read is load else Classifier)
        network, about = ours if isinstance(ours, ViT) else ours.network, ours.pretrained
        images = torch.randn(1, 3, size, size)
        torch.testing.assert_close(network(images), theirs(images), atol=1e-4, rtol=1e-4)
        assert (about.preprocess.height, len(about.labels)) == (size, 1000)
        assert about.labels[0].startswith("tench")
        assert about.preprocess.mean[0] == (0.5 if source.startswith("timm:") else 0.485)  # mean of the weights
    weights = ("model.safetensors",)
    assert fetched[0] == ("timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", weights, weights)
    assert isinstance(load_teacher("vit-cifar10"), ViT)
    with pytest.raises(RemoteError, match="list_models"):
        load_teacher("torchvision:deeplabv3_resnet50")


@pytest.mark.parametrize("words", ["", "407 Proxy Authentication Required\nmore"])
def test_download_errors_are_reported(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class ProxyError(Exception):
        """Error that is neither OSError nor ValueError, as in HTTP clients."""

    def fail(*_: object, local_files_only: bool = False, **__: object) -> None:
        raise huggingface_hub.errors.LocalEntryNotFoundError("none") if local_files_only else ProxyError(words)

    monkeypatch.setattr(remote, "reachable", lambda _: True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", fail)
    first = words.partition("\n")[0] or "ProxyError"
    for source, expected in (
        ("hf:somebody/something", first),
        ("torchvision:vit_b_32.IMAGENET1K_V1", f"vit_b_32.*{first}"),
    ):
        with pytest.raises(RemoteError, match=expected):
            load(source)
