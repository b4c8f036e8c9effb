"""Models of other libraries by name. The libraries are real; what would come over the network is made here."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
import timm
import torch
import transformers as hf
from hf_cases import CASES, assert_same
from local_hub import local_hub
from safetensors.torch import load_file, save_model

from vitviz.cli.main import main
from vitviz.model.vit import ViT
from vitviz.training.teachers import Classifier, load_teacher
from vitviz.weights import remote
from vitviz.weights.checks import ConvertError
from vitviz.weights.remote import RemoteError
from vitviz.weights.zoo import load

BUNDLED = "dinov2-s14-imagenette"


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
def test_without_a_network_it_is_said_at_once(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    began = time.monotonic()
    with pytest.raises(RemoteError, match=r"cannot be reached.*vitviz models"):
        load(source)
    assert time.monotonic() - began < 20  # no minute of retries
    assert main(["summary", "--model", source]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("words", ["", "407 Proxy Authentication Required\nmore"])
def test_whatever_fails_on_the_way_is_said(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    class ProxyError(Exception):
        """As HTTP clients have them: no OSError and no ValueError."""

    def fail(*_: object, local_files_only: bool = False, **__: object) -> None:
        raise huggingface_hub.errors.LocalEntryNotFoundError("none") if local_files_only else ProxyError(words)

    monkeypatch.setattr(remote, "reachable", lambda _: True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(RemoteError, match=words.splitlines()[0] if words else "ProxyError"):
        load("hf:somebody/something")
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", fail)
    with pytest.raises(RemoteError, match=f"vit_b_32.*{words.splitlines()[0] if words else 'ProxyError'}"):
        load("torchvision:vit_b_32.IMAGENET1K_V1")


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("timm:vit_enormous", RemoteError, "vit_enormous"),
        ("timm:swin_tiny_patch4_window7_224", ConvertError, "(?i)swin"),
        ("timm:maxvit_tiny_tf_224", ConvertError, "(?i)maxx?vit"),
        ("timm:vit_tiny_r_s16_p8_224", ConvertError, "(?i)hybrid|stem|ResNet"),
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
    case = CASES["ViT-classifier"]
    theirs = case.build()
    theirs.save_pretrained(tmp_path)
    hf.ViTImageProcessor(size={"height": 44, "width": 44}).save_pretrained(tmp_path)
    (tmp_path / "README.md").write_text("---\ntags: [vision]\nlicense: apache-2.0\n---\n# ViT\nlicense: mit\n")
    asked: list[str] = []
    monkeypatch.setattr(remote, "fetch", lambda repository, *_: asked.append(repository) or tmp_path)
    ours = load("hf:google/tiny-vit")
    assert asked == ["google/tiny-vit"]
    assert_same(case, theirs, ours, (28, 52))
    assert ours.pretrained is not None
    assert (ours.pretrained.name, ours.pretrained.licence) == ("google/tiny-vit", "apache-2.0")


def test_a_model_from_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real client, from a folder on this machine that is served as the hub serves."""
    case = CASES["ViT-classifier"]
    theirs = case.build()
    theirs.save_pretrained(tmp_path / "hub" / "google" / "tiny-vit")
    hf.ViTImageProcessor(size={"height": 44, "width": 44}).save_pretrained(tmp_path / "hub" / "google" / "tiny-vit")
    with local_hub(tmp_path / "hub", tmp_path / "cache", monkeypatch):
        remote.check_hub("google/tiny-vit")
        for ask in (remote.check_hub, remote.LIBRARIES["hf"]):
            with pytest.raises(RemoteError, match="google/none"):
                ask("google/none")
        assert_same(case, theirs, load("hf:google/tiny-vit"), (28, 52))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(RemoteError, match="cannot be reached"):
            remote.check_hub("google/tiny-vit")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(RemoteError, match="cannot be reached"):  # nobody answers any more
        remote.check_hub("google/tiny-vit")


def in_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of google/tiny-vit in a cache of Hugging Face's, as other programs fill it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    place = cache / "models--google--tiny-vit"
    folder = place / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc")
    return folder


@pytest.mark.usefixtures("shut")
@pytest.mark.parametrize("safe", [True, False])
def test_what_is_in_the_cache_needs_no_network(safe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["ViT-classifier"]
    theirs, folder = case.build(), in_the_cache(tmp_path, monkeypatch)
    theirs.save_pretrained(folder)
    if not safe:  # an old repository has its tensors in a file of torch's
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    with pytest.raises(RemoteError, match="in this machine's cache, got none"):
        load("hf:google/tiny-vit")  # how to feed it is missing: the network may know
    hf.ViTImageProcessor(size={"height": 44, "width": 44}).save_pretrained(folder)
    assert_same(case, theirs, load("hf:google/tiny-vit"), (28, 52))


def test_a_model_from_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    theirs = timm.create_model("vit_tiny_patch16_224").eval()
    with torch.no_grad():
        theirs.head.weight.normal_()  # timm starts with a head of zeros
    save_model(theirs, str(tmp_path / "model.safetensors"))
    asked: list[str] = []
    monkeypatch.setattr(remote, "fetch", lambda repository, *_: asked.append(repository) or tmp_path)
    ours = load("timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    assert asked == ["timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"]
    images = torch.randn(2, 3, 224, 224)
    torch.testing.assert_close(ours(images), theirs(images), atol=1e-4, rtol=1e-4)
    assert ours.pretrained is not None
    assert len(ours.pretrained.labels) == 1000
    assert ours.pretrained.preprocess.mean == (0.5, 0.5, 0.5)  # this one's own, not ImageNet's


def test_a_model_from_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.models import vit_b_32

    torch.manual_seed(0)
    theirs = vit_b_32().eval()
    with torch.no_grad():
        theirs.heads.head.weight.normal_()
    asked: list[dict] = []

    def give(url: str, **options: object) -> dict:
        asked.append(options)
        return theirs.state_dict()

    monkeypatch.setattr(remote, "reachable", lambda _: True)
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", give)
    ours = load("torchvision:vit_b_32.IMAGENET1K_V1")
    assert asked[0]["weights_only"] is True
    assert asked[0]["check_hash"] is True
    images = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(ours(images), theirs(images), atol=1e-4, rtol=1e-4)
    assert ours.pretrained is not None
    assert ours.pretrained.labels[0] == "tench"


def test_a_teacher_may_be_any_classifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.models import squeezenet1_1

    torch.manual_seed(0)
    squeezed, tested = squeezenet1_1().eval(), timm.create_model("test_resnet").eval()
    save_model(tested, str(tmp_path / "model.safetensors"))
    monkeypatch.setattr(remote, "fetch", lambda *_: tmp_path)
    monkeypatch.setattr(remote, "reachable", lambda _: True)
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", lambda *_, **__: squeezed.state_dict())
    for source, theirs, size in (("torchvision:squeezenet1_1", squeezed, 224), ("timm:test_resnet", tested, 160)):
        ours = load_teacher(source)
        assert isinstance(ours, Classifier)
        images = torch.randn(1, 3, size, size)
        torch.testing.assert_close(ours.network(images), theirs(images))
        assert (ours.pretrained.preprocess.height, len(ours.pretrained.labels)) == (size, 1000)
        assert ours.pretrained.labels[0].startswith("tench")
    assert isinstance(load_teacher("vit-cifar10"), ViT)
    with pytest.raises(RemoteError, match="list_models"):
        load_teacher("torchvision:deeplabv3_resnet50")
