"""Models of other libraries by name. The libraries are real; what would come over the network is made here."""

import re
import socket
import time
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
from hf_cases import CASES, assert_same, saved
from local_hub import local_hub
from safetensors.torch import load_file, save_model
from timm_models import shaken
from torch import nn
from torchvision import models

from vitviz.cli.main import main
from vitviz.model.vit import ViT
from vitviz.training.teachers import Classifier, load_teacher
from vitviz.weights import remote
from vitviz.weights.checks import ConvertError
from vitviz.weights.remote import RemoteError
from vitviz.weights.zoo import load

pytestmark = pytest.mark.usefixtures("one_thread")

BUNDLED, CASE = "dinov2-s14-imagenette", CASES["ViT-classifier"]


@pytest.fixture
def shut(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network: every attempt to connect fails at once, as a closed one does."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("shut")
@pytest.mark.parametrize(
    "source", ["hf:nobody/nothing-here", "timm:vit_tiny_patch16_224.augreg_in21k", "torchvision:vit_l_32"]
)
def test_without_a_network_there_is_one_line_and_no_retry(
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
        ("timm:swin_tiny_patch4_window7_224", ConvertError, "(?i)swin"),
        ("torchvision:resnet50", RemoteError, "vit_b_16"),
        ("torchvision:vit_b_16.IMAGENET22K", RemoteError, "IMAGENET1K_SWAG_E2E_V1"),
        ("hf:not a name", RemoteError, "owner/name"),
        ("keras:vit", ValueError, BUNDLED),
    ],
)
def test_what_does_not_exist_or_cannot_be_shown_is_refused_before_anything_is_fetched(
    source: str, error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not source.startswith("hf:"):
        monkeypatch.setattr(remote, "fetch", lambda *_: pytest.fail("something was fetched"))
    with pytest.raises(error, match=words):
        load(source)


def test_a_model_from_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real client, from a folder on this machine that is served as the hub serves."""
    repository = tmp_path / "hub" / "google" / "tiny-vit"
    theirs = saved(CASE, repository)
    (repository / "README.md").write_text("---\ntags: [vision]\nlicense: apache-2.0\n---\n# ViT\nlicense: mit\n")
    with local_hub(tmp_path / "hub", tmp_path / "cache", monkeypatch):
        remote.check_hub("google/tiny-vit")
        for ask in (remote.check_hub, remote.LIBRARIES["hf"]):
            with pytest.raises(RemoteError, match="google/none"):
                ask("google/none")
        ours = load("hf:google/tiny-vit")
        assert_same(CASE, theirs, ours)
        assert (ours.pretrained.name, ours.pretrained.licence) == ("google/tiny-vit", "apache-2.0")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(RemoteError, match="cannot be reached"):
            remote.check_hub("google/tiny-vit")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(RemoteError, match="cannot be reached"):  # nobody answers any more
        remote.check_hub("google/tiny-vit")


@pytest.mark.usefixtures("shut")
@pytest.mark.parametrize("safe", [True, False])
def test_what_is_in_the_cache_needs_no_network(safe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of Hugging Face's, as other programs fill it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    place = tmp_path / "models--google--tiny-vit"
    folder = place / "snapshots" / "abc"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("abc")
    theirs = saved(CASE, folder)
    processor = (folder / "preprocessor_config.json").rename(tmp_path / "processor.json")
    if not safe:  # an old repository has its tensors in a file of torch's
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    with pytest.raises(RemoteError, match="in this machine's cache, got none"):
        load("hf:google/tiny-vit")  # how to feed it is missing: the network may know
    processor.rename(folder / "preprocessor_config.json")
    assert_same(CASE, theirs, load("hf:google/tiny-vit"))


# --- what would be fetched is made here


@torch.no_grad()
def test_models_and_classifiers_of_timm_and_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any classifier may be a teacher. Of torchvision's Vision Transformer there is one block of its twelve."""

    def small(name: str, **settings: Any) -> nn.Module:
        assert (name, settings) == ("vit_b_32", {"image_size": 224})
        sizes = {"patch_size": 32, "num_layers": 1, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 307}
        return models.VisionTransformer(**sizes, **settings)

    def give(url: str, weights_only: bool = False, check_hash: bool = False, **_: object) -> dict:
        assert (weights_only, check_hash) == (True, True)
        return theirs.state_dict()

    asked: list[tuple] = []
    monkeypatch.setattr(remote, "fetch", lambda *what: asked.append(what) or tmp_path)
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
        ours = read(source)
        assert isinstance(ours, ViT if read is load else Classifier)
        network, about = ours if isinstance(ours, ViT) else ours.network, ours.pretrained
        images = torch.randn(1, 3, size, size)
        torch.testing.assert_close(network(images), theirs(images), atol=1e-4, rtol=1e-4)
        assert (about.preprocess.height, len(about.labels)) == (size, 1000)
        assert about.labels[0].startswith("tench")
        assert about.preprocess.mean[0] == (0.5 if source.startswith("timm:") else 0.485)  # the weights' own
    weights = ("model.safetensors",)
    assert asked[0] == ("timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", weights, weights)
    assert isinstance(load_teacher("vit-cifar10"), ViT)
    with pytest.raises(RemoteError, match="list_models"):
        load_teacher("torchvision:deeplabv3_resnet50")


@pytest.mark.parametrize("words", ["", "407 Proxy Authentication Required\nmore"])
def test_whatever_fails_on_the_way_is_said(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class ProxyError(Exception):
        """As HTTP clients have them: no OSError and no ValueError."""

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
