"""Create model folders, and server endpoints that offer these models."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tiny
import torch
from image_files import saved
from PIL import Image

from vitviz.images.preprocess import Preprocess
from vitviz.model.registers import plant_neurons
from vitviz.model.vit import Pretrained
from vitviz.server.endpoints import Endpoints
from vitviz.server.gpu import ask_view
from vitviz.server.jobs import Job, current
from vitviz.server.menu import Menu
from vitviz.server.models import bytes_of
from vitviz.server.scenes import OPEN, OpenScene
from vitviz.settings import Settings
from vitviz.view import View
from vitviz.web.examples import Example
from vitviz.weights.checkpoint import save

SIZE = bytes_of(tiny.model())
SPOTS = ((0, 3), (0, 7), (1, 5))  # planted neurons: block and index
HEIGHT, WIDTH = (side * tiny.PATCH for side in tiny.GRID)


def folder(
    path: Path,
    seed: int = 0,
    about: dict[str, Any] | None = None,
    mode: str = "crop",
    bias: tuple[float, ...] = (),
    half: bool = False,
    spots: Image.Image | None = None,
    **changes: object,
) -> str:
    """Save a tiny model as a folder, named after it, with `about` in its record.

    `bias` is added to its outputs; with `half`, its weights fit half precision. In the photograph `spots`, the neurons
    `SPOTS` give patches an outlying norm: two patches in each block.
    """
    model = tiny.model(seed, **changes)
    if bias:
        model.head.bias.data += torch.tensor(bias)
    multiple = {"multiple": tiny.PATCH} if mode == "native" else {}
    record: dict[str, Any] = {
        "name": f"Tiny {path.name}",
        "preprocess": Preprocess(mode=mode, height=HEIGHT, width=WIDTH, **multiple),
        "labels": tuple(f"thing {i}" for i in range(model.config.classes)),
        "licence": "MIT (tests); nothing else",
    }
    model.pretrained = Pretrained(**record | (about or {}))
    if spots is not None:
        pixels = torch.from_numpy(model.pretrained.preprocess(spots).pixels)[None]
        for block in sorted({block for block, _ in SPOTS}):
            model, _ = plant_neurons(model, pixels, block, [index for of, index in SPOTS if of == block], seed=block)
    save(model.half().float() if half else model, path)
    return str(path)


def photograph(seed: int = 0, width: int = 90, height: int = 60) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    return saved(Image.fromarray(pixels), "PNG")


def new_endpoints(place: Path, sources: tuple[str, ...], memory: float = 10.0, **allowed: object) -> Endpoints:
    """Return the server's endpoints, with memory for `memory` models and one example, "Noise"."""
    place.mkdir(exist_ok=True)
    example = place / "noise.png"
    example.write_bytes(photograph(1000))
    settings = Settings(models=sources, memory=round(memory * SIZE), **{"secret": b"of all test servers", **allowed})
    return Endpoints(Menu(settings, bundled=[]), [Example(example, "Noise", "It shows nothing", ("thing 3",))])


def ask(endpoints: Endpoints, name: str, **arguments: Any) -> Any:
    return endpoints.question(name, arguments).compute()


def cached(endpoints: Endpoints, scene: str) -> OpenScene | None:
    """Return an open scene, if the cache still holds it."""
    return endpoints.cache.get((scene, OPEN))


def view_of(endpoints: Endpoints, scene: str) -> View:
    return cached(endpoints, scene).view


def forget_scenes(endpoints: Endpoints) -> None:
    """Evict all scenes, but no answers, as if other photographs had needed the memory."""
    endpoints.cache.discard(lambda value: isinstance(value, OpenScene))


@contextmanager
def visiting(address: str) -> Iterator[Job]:
    job = Job(address)
    token = current.set(job)
    try:
        yield job
    finally:
        current.reset(token)


def ask_without_end(view: View, question: str, **options: Any) -> Any:
    """Call `ask_view`; Kernel SHAP never ends, and stops only when its question is cancelled."""
    while question == "explain" and options["method"].name == "kernel_shap":
        torch.zeros(100).sum()
        time.sleep(0.001)
    return ask_view(view, question, **options)
