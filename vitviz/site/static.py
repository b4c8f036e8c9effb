"""Write a static site: the app's page, with models that run in the visitor's browser."""

from __future__ import annotations

import copy
import gzip
import hashlib
import json
import math
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock

from vitviz import __version__, rooms
from vitviz.analysis.head_statistics import STATISTICS
from vitviz.analysis.pairs import BLOCK, DESCRIPTOR
from vitviz.attribution.inputs import Case
from vitviz.attribution.registry import METHODS, default_methods
from vitviz.attribution.target_specs import SPELLINGS
from vitviz.explorer import Explorer
from vitviz.export import SPACE_CARD
from vitviz.extras import check_installed
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import ViT
from vitviz.phrases import Phrase, with_phrases
from vitviz.resources import cache_folder
from vitviz.site.formulas import missing_statistics
from vitviz.site.onnx import StaticError, check_exportable, parts, save_graphs
from vitviz.site.runtime import check_runtime, place_in_cache, runtime_files
from vitviz.view import View
from vitviz.web import bundle
from vitviz.web.choices import choices, in_browser
from vitviz.web.examples import Example, examples
from vitviz.web.first_view import first_view
from vitviz.web.payload import block_bytes, caption_bytes, descriptor_bytes, rollout_bytes
from vitviz.web.questions import QUESTIONS
from vitviz.web.responses import constants
from vitviz.web.scene import Scene, listed, picture_of, rolls_out, saved_frame
from vitviz.weights import zoo
from vitviz.weights.text_tower import classify_texts
from vitviz.writing import replacing

TRACED = (
    *("site/onnx.py", "site/formulas.py", "outputs.py", "model/*.py", "attribution/*.py"),
    "analysis/*.py",
)  # modules whose source code determines the graphs
TRIAL = 8  # patches per side of the browser's test picture
# With these two headers, a page can use several threads.
SPACE = f"""---
{SPACE_CARD}sdk: static
custom_headers:
  cross-origin-embedder-policy: require-corp
  cross-origin-opener-policy: same-origin
  cross-origin-resource-policy: cross-origin
---

Written by `vitviz export --static --space`. Photographs stay in the visitor's browser.
"""
LFS = ("bin", "wasm", "onnx", "jpg", "png", "webp")
LARGE = "".join(f"*.{kind} filter=lfs diff=lfs merge=lfs -text\n" for kind in LFS)
MARK = "service.js"  # every site contains this file
SITE_IS = "const SITE = "  # its first line lists the site's files
Runtime = dict[str, dict[str, Any]]  # address, size and checksum of the files of the runtime


@dataclass(eq=False)
class Site:
    """The folder of a static site while it is written.

    Args:
        folder: path of the site.
        files: relative paths of all written files.
    """

    folder: Path
    files: list[str] = field(default_factory=list)

    def write(self, path: str, data: bytes | str, *, hashed: bool = True) -> dict[str, Any]:
        """Write a file, by default with its checksum in the name; return address, size and checksum."""
        content = data.encode() if isinstance(data, str) else data
        crc = zlib.crc32(content)
        if hashed:
            stem, _, suffix = path.rpartition(".")
            path = f"{stem}.{crc:08x}.{suffix}"
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        self.files.append(path)
        return {"url": path, "bytes": len(content), "crc": crc}


def write_site(
    folder: Path,
    sources: Sequence[str] = (),
    *,
    methods: Sequence[str] = (),
    photographs: Sequence[Example] | None = None,
    space: bool = False,
    lang: str = "en",
    texts: Path | None = None,
    classes: Sequence[str] = (),
    tell: Callable[[str], None] = print,
) -> Site:
    """Write the folder of a static site for any file server.

    Args:
        folder: a new or empty folder, or an earlier site, which is replaced when the new one is complete.
        sources: sources for `vitviz.load`; the page opens with the first. By default bundled models for photographs.
        methods: attribution methods on the page; all that run in a browser by default.
        photographs: examples; by default the bundled examples.
        space: also write the files of a static Hugging Face Space: front matter, headers for threads, LFS attributes.
        lang: initial language of the lecture, one of `vitviz.web.languages.LANGUAGES`.
        texts: folder with a lecturer's own texts, see `vitviz.lecture.texts`.
        classes: texts that are the classes (CLIP), see `vitviz.View.texts`; the text tower reads them now.
        tell: called with a line for each step.

    Raises:
        ConvertError: for `classes`, if a model has no text tower.
        LectureError: for invalid texts.
        MissingExtraError: if a package or program of the extra `static` is missing.
        StaticError: if the folder contains other files, a model or method is not supported in the browser, or the
            runtime is not available.
    """
    known = in_browser(METHODS)
    methods = methods or known
    if unknown := [name for name in methods if name not in known]:
        why = METHODS[unknown[0]].not_in_browser if unknown[0] in METHODS else "it does not exist"
        raise StaticError(
            f"Expected methods that run in a browser ({', '.join(known)}), got {unknown[0]}: {why}. Leave it out."
        )
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / MARK).exists())):
        raise StaticError(f"Expected a new or empty folder for the site, got {folder}. Name another one.")
    check_installed("static", "onnx_ir", "onnxscript")
    check_runtime()
    has_lecture = texts is not None or rooms.has("lecture")
    lecture = rooms.load("lecture", "texts").lecture_given(lang, texts) if has_lecture else None
    sources = list(sources) or [name for name in (zoo.DEFAULT, *zoo.bundled()) if name.startswith("dinov2")]
    sources = list(dict.fromkeys(sources))
    photographs = list(examples() if photographs is None else photographs)
    models = {source: _load(source, classes) for source in sources}
    for model in models.values():
        check_exportable(model)
    folder.parent.mkdir(parents=True, exist_ok=True)
    earlier = _earlier_files(folder)
    with replacing(folder, folder=True) as beside:
        site = Site(beside)
        _fill(site, models, methods, photographs, lecture, lang, tell)
        if space:
            site.write("README.md", SPACE, hashed=False)
            site.write(".gitattributes", LARGE, hashed=False)
    for path in earlier - {folder / path for path in site.files}:
        path.unlink(missing_ok=True)
    return Site(folder, site.files)


def _fill(
    site: Site,
    models: dict[str, ViT],
    methods: Sequence[str],
    photographs: Sequence[Example],
    lecture: dict[str, Any] | None,
    lang: str,
    tell: Callable[[str], None],
) -> None:
    """Write the files of a site."""
    tell("Fetching the runtime")
    runtime = _write_runtime(site)
    about: dict[str, Any] = {}
    shown: dict[str, Any] = {
        example.name: {"file": _write_photograph(site, example), "scenes": {}} for example in photographs
    }
    first: dict[str, str] = {}
    for source, model in models.items():
        tell(f"Exporting {source}")
        about[source] = _write_model(site, source, model, methods)
        loaded = [*about[source]["files"].values(), *runtime.values()]
        about[source]["download"] = sum(file["bytes"] for file in loaded)
        for example in photographs:
            tell(f"Opening {example.name} with {source}")
            shown[example.name]["scenes"][source], seen = _write_scene(site, example, source, model)
            first = first or seen
    config = {
        "models": _choices(models, photographs, methods),
        "about": about,
        "examples": shown,
        "worker": site.write("worker.js", _worker(runtime, max(map(_most_patches, models.values()))))["url"],
        "saved": site.write("saved.html", saved_frame(lecture="null"))["url"],
    }
    _write_page(site, config, first, lecture, lang, runtime)


def _earlier_files(folder: Path) -> set[Path]:
    """Return the files of an earlier site in this folder, which its service worker lists."""
    if not (folder / MARK).exists():
        return set()
    first, _, _ = (folder / MARK).read_text(encoding="utf-8").partition("\n")
    files = json.loads(first.removeprefix(SITE_IS).removesuffix(";"))["files"] if first.startswith(SITE_IS) else []
    paths = {folder / path for path in files}
    return {path for path in paths if path.is_file() and path.resolve().is_relative_to(folder.resolve())}


def _load(source: str, texts: Sequence[str]) -> ViT:
    """Load a model, with texts as its classes if there are any."""
    model = zoo.load(source)
    if texts:
        model = classify_texts(model, texts)
        model.text_source = ""  # the site does not contain the text tower
    return model


def _write_runtime(site: Site) -> Runtime:
    files = runtime_files()
    _, code = files.pop("wasm")
    wasm = site.write("runtime/wasm.bin", gzip.compress(code, mtime=0))  # a fourth of the size
    return {"wasm": wasm, **{part: site.write(f"runtime/{name}", data) for part, (name, data) in files.items()}}


def _worker(runtime: Runtime, patches: int) -> str:
    """Return the worker's script, with random orders of up to this number of patches."""
    start = f"vitvizExplorer.start(self, {json.dumps(runtime)}, {json.dumps(constants(patches))});\n"
    return bundle.script("site/worker/worker.js", bundle.of_rooms("worker/room.js")) + start


def _write_photograph(site: Site, example: Example) -> str:
    return str(site.write(f"examples/{_slug(example.name)}{example.path.suffix}", example.path.read_bytes())["url"])


def _write_model(site: Site, source: str, model: ViT, methods: Sequence[str]) -> dict[str, Any]:
    """Write a model's graphs and weights, and return its description for the browser."""
    halves = copy.deepcopy(model).cpu().half().float().eval()  # use the browser's weights, which are sent in 16 bits
    config, pretrained = halves.config, halves.pretrained
    assert pretrained is not None  # check_exportable has verified this
    place = f"models/{_slug(source)}"
    graphs, contents = {}, b""
    for path in cached_graphs(halves):
        graphs[path.stem] = len(contents), path.stat().st_size
        contents += path.read_bytes()
    places, weights = {}, b""
    for part in parts(halves):
        numbers = np.concatenate([tensor.detach().half().flatten().numpy() for _, _, tensor in part.offsets()])
        packed = _pack(numbers)
        places[part.name] = len(weights), len(packed), part.count
        weights += packed
    files = {
        "graphs": site.write(f"{place}/graphs.bin", contents),
        "weights": site.write(f"{place}/weights.bin", weights),
    }
    size, larger = _larger(model)
    lecture = None
    if rooms.has("lecture"):
        shared = rooms.load("lecture", "numbers").model_bytes(halves, pretrained.preprocess)
        lecture = site.write(f"{place}/lecture.bin", shared)
    side = TRIAL * config.patch_size
    with torch.no_grad():
        logits = halves(torch.from_numpy(ramp(3 * side * side)).reshape(1, 3, side, side))[0].tolist()
    return with_phrases({
        "source": source, "title": pretrained.name, "labels": list(pretrained.labels),
        "sureAbove": pretrained.sure_above, "groupAbove": pretrained.group_above, "knownAbove": pretrained.known_above,
        "groups": pretrained.groups, "zeroShot": config.cosine, "listed": listed(model),
        "prefix": list(config.prefix), "depth": config.depth,
        "heads": config.heads, "headWidth": config.head_size, "width": config.width, "patch": config.patch_size,
        "rotary": config.rotary.base if config.positions == "rotary" else None, "pooling": config.pooling,
        "normPre": config.norms.pre,
        "reads": _reads(halves), "missing": missing_statistics(config.prefix),
        "preprocess": pretrained.preprocess.to_dict(),
        "larger": {"size": size, "preprocess": larger.to_dict()},
        "defaults": default_methods(model),
        "methods": {
            name: {"title": about.title, "signed": about.signed, "unit": about.unit, "specific": about.class_specific}
            for name, about in METHODS.items()
            if name in methods
        },
        "parts": places, "graphs": graphs, "files": files, "lecture": lecture,
        "check": {"height": side, "width": side, "logits": logits},
    })  # fmt: skip


def _pack(halves: Any) -> bytes:
    """Compress float16 numbers with gzip. The low bytes come first, because only the high bytes compress well."""
    return gzip.compress(halves.astype("<f2").view(np.uint8).reshape(-1, 2).T.tobytes(), mtime=0)


def _reads(model: ViT) -> dict[str, Any]:
    """Return the weight of each prefix token, and of all patches together, in the classifier's input."""
    images = torch.zeros(1, model.config.channels, *2 * [2 * model.config.patch_size])
    rows = Case(model, images, None, model.trace(images)).read_rows()[0].tolist()  # (N)
    prefix = len(model.config.prefix)
    return {"prefix": rows[:prefix], "patches": sum(rows[prefix:])}


def cached_graphs(model: ViT) -> list[Path]:
    """Return the files of a model's graphs, without weights, from the user's cache, creating them if necessary.

    The cache key is the config, the package versions, and the source code of the graphs.
    """
    package = Path(__file__).parents[1]
    code = [path for pattern in TRACED for path in sorted(package.glob(pattern))]
    versions = [version(name) for name in ("torch", "onnx-ir", "onnxscript")]
    facts = [model.config.to_dict(), __version__, versions, *(path.read_text(encoding="utf-8") for path in code)]
    folder = cache_folder("graphs") / hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    if not folder.exists():
        with place_in_cache(folder.parent) as place, FileLock(folder.with_suffix(".lock")):
            if not folder.exists():  # no other export was running, or it failed
                graphs = place / "graphs"
                graphs.mkdir()
                save_graphs(model, graphs)
                graphs.rename(folder)
    return sorted(folder.glob("*.onnx"))


def ramp(size: int) -> Any:
    """Return the browser's test numbers for a model: (size,), -1..1, exact in float32."""
    return ((np.arange(size) * 37 % 129) / 64 - 1).astype(np.float32)


def _write_scene(site: Site, example: Example, source: str, model: ViT) -> tuple[str, dict[str, str]]:
    """Write a model's results for an example, which the page shows before it loads the model.

    Return the folder, and the HTML that shows them before the page's script runs.
    """
    view = Explorer(model).open(example.path)
    place = f"examples/{_slug(example.name)}/{_slug(source)}"
    scene = Scene(view, image=example.name, model=source, note=example.caveat(view))
    manifest = {**scene.manifest(f"{example.name} {source}"), "badge": None, "sizes": _sizes(view)}
    for name in ("photo", "seen"):
        if picture := manifest[name]:
            suffix, data = picture_of(picture["url"])
            manifest[name] = {**picture, "url": site.write(f"{place}/{name}.{suffix}", data)["url"]}
    site.write(f"{place}/manifest.json", json.dumps(with_phrases(manifest)), hashed=False)
    for block in range(view.trace.depth):
        site.write(f"{place}/block-{block}.bin", block_bytes(view.trace, block), hashed=False)
    site.write(f"{place}/descriptors.bin", descriptor_bytes(model, view.trace, DESCRIPTOR, BLOCK), hashed=False)
    if rooms.has("lecture"):
        for name, data in rooms.load("lecture", "numbers").site_files(view).items():
            site.write(f"{place}/{name}.bin", data, hashed=False)
    if scene.caption:
        site.write(f"{place}/caption.bin", caption_bytes(scene.caption()), hashed=False)
    if rolls_out(view.trace):
        site.write(f"{place}/rollout.bin", rollout_bytes(view.trace), hashed=False)
    return place, first_view(scene, manifest["photo"]["url"])


def _larger(model: ViT) -> tuple[int, Preprocess]:
    """Return twice the model's own input size, and the preprocessing for it."""
    own = Explorer(model).preprocess
    return round(2 * own.side), own.at(round(2 * own.side), model.config.patch_size)


def _most_patches(model: ViT) -> int:
    """Return an upper bound of the patches of a photograph at the larger size.

    Rounding the sides of an elongated photograph (mode "native") adds at most a third: 1.5 rows become 2.
    """
    _, larger = _larger(model)
    return math.ceil(4 / 3 * larger.height * larger.width / model.config.patch_size**2) + 1


def _sizes(view: View) -> list[dict[str, Any]]:
    """Return the two input sizes of a static site, as `vitviz.server.sizes.Size` describes them."""
    size, larger = _larger(view.model)
    (height, width), patch = larger.input_size(*view.photo.size), view.model.config.patch_size
    counts = {None: view.trace.grid[0] * view.trace.grid[1], size: (height // patch) * (width // patch)}
    return [
        {"size": side, "factor": 2 if side else 1, "patches": patches, "seconds": None, "ahead": False}
        for side, patches in counts.items()
    ]


def _choices(models: dict[str, ViT], photographs: Sequence[Example], methods: Sequence[str]) -> dict[str, Any]:
    """Return the choices of the page, like `Endpoints.models`."""
    entries = [
        {"source": source, "words": model.pretrained.name, "tip": model.pretrained.licence}
        for source, model in models.items()
        if model.pretrained is not None
    ]
    targets = [word for word, reason in SPELLINGS.items() if not reason]
    offered = {
        "groups": [{"title": Phrase("in-this-browser", "In this browser"), "entries": entries}],
        "default": next(iter(models)),
        "more": {"typed": False, "upload": False},
        "examples": [example.describe() for example in photographs],
        **choices(methods, in_browser(STATISTICS), targets, in_browser(QUESTIONS)),
    }
    return with_phrases(offered)


def _write_page(
    site: Site,
    config: dict[str, Any],
    shown: dict[str, str],
    lecture: dict[str, Any] | None,
    lang: str,
    runtime: Runtime,
) -> None:
    """Write the page, which opens with the HTML of `shown`, and the service worker with a list of all other files."""
    first = next(iter(config["examples"].values()))["scenes"][config["models"]["default"]]
    entry = "site/page/site.js"
    script = site.write("page.js", bundle.page_script(entry))["url"]
    texts = bundle.parts(entry, lecture=lecture)
    parts = {name: site.write(f"{name}.js", text)["url"] for name, text in texts.items()}
    manifest = json.loads((site.folder / first / "manifest.json").read_text(encoding="utf-8"))
    given = {"first": manifest, "site": config, "lecture": lecture and {"lang": lecture["lang"]}, "parts": parts}
    page = bundle.index(
        style=bundle.whole_style(),
        lang=lang,
        head=bundle.preview(bundle.PREVIEW),
        template=bundle.template(**shown),
        script=script,
        given=json.dumps(given).replace("<", "\\u003c"),
    )
    site.write(bundle.PREVIEW, bundle.picture(), hashed=False)
    site.write("index.html", page, hashed=False)
    small = (*parts.values(), manifest["photo"]["url"], config["worker"])
    needed = ["./", script, *small, *(runtime[part]["url"] for part in ("module", "glue"))]
    listed = json.dumps({"files": ["./", *site.files], "first": needed})
    site.write(MARK, f"{SITE_IS}{listed};\n{bundle.script('site/page/service.js')}", hashed=False)


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.").lower()
