"""Train the captioner's decoder on the image tokens that features.py computed.

    python scripts/checkpoints/captioner/train.py --work WORK

The same command resumes an interrupted training: WORK/state.pt is written every `SAVED` steps, all random choices
depend only on the seed and the step, and the training continues with the parts of the features that were there at its
start. To train anew, for instance with all parts, move WORK/state.pt away; `--steps` counts for a new training only.

The decoder starts as a comparison with the mean token of each noun (`start_from_means`): before the first step, the
nearest noun is right for most photographs, and training adds captions and attention to one region at a time.

Three things tie a noun to its own region. The places in a caption come in random order. Regions of mosaics are
exchanged for regions of other mosaics with the same box (`EXCHANGED`), so that what the backbone spread over the
picture misleads. Some regions are hidden, and the caption does not mention them (`HIDDEN`).
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from captions import vocabulary, write_caption
from features import PART, part_path, read_plan
from layouts import WHOLE, Box, Picture, Region
from safetensors.torch import load_file
from torch import Tensor, nn

from vitviz.language.captioner import Tokenizer
from vitviz.language.decoder import Decoder, DecoderConfig, generate

EXCHANGED = 0.5  # share of the regions of mosaics
HIDDEN = 0.25  # share of the mosaics
THINNED = 0.25  # share of pictures without some of their image tokens
EMBEDDED, ADDED = (
    0.6,
    0.2,
)  # length of a noun's embedding, and scale of the tokens that the last block adds, at the start
SAVED, SHOWN, CHECKED = 100, 50, 500  # steps between two states, lines, and checks on dev


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a training run."""

    steps: int = 3000
    batch: int = 32
    rate: float = 1e-3
    weight_decay: float = 0.05
    warmup: int = 150
    noise: float = 0.1  # standard deviation, of features whose variance is about 1
    seed: int = 20261128


class Material:
    """Pictures with their image tokens (n, 64, K), and an index of their regions by box."""

    def __init__(self, pictures: Sequence[Picture], features: Tensor) -> None:
        self.pictures, self.features = pictures, features
        self.donors: dict[Box, list[tuple[int, Region]]] = {}
        for index, picture in enumerate(pictures):
            for region in picture.regions:
                self.donors.setdefault(region.box, []).append((index, region))

    def __len__(self) -> int:
        return len(self.pictures)


def load_features(work: Path, parts: int | None = None) -> tuple[dict[str, Material], int]:
    """Return the material of each split, from the first `parts` parts, or all that are there, and their number."""
    plan = read_plan(work / "plan.jsonl")
    if parts is None:
        parts = next(index for index in range(len(plan)) if not part_path(work, index).exists())
    features = torch.cat([load_file(part_path(work, index))["tokens"] for index in range(parts)])
    plan = plan[: parts * PART]
    splits: dict[str, Material] = {}
    for split in ("train", "dev", "test"):
        chosen = [index for index, picture in enumerate(plan) if picture.split == split]
        splits[split] = Material([plan[index] for index in chosen], features[chosen])
    return splits, parts


def tokens_of(box: Box, side: int) -> tuple[slice, slice]:
    """Return the rows and columns of image tokens in a box, of `side` rows and columns."""
    left, top, right, bottom = (edge * side // 2 for edge in box)
    return slice(top, bottom), slice(left, right)


# ---- batches


@dataclass(frozen=True, eq=False)
class Batch:
    """Image tokens (B, n, K), which of them are visible (B, n), words (B, T + 1), and which of these are nouns."""

    features: Tensor
    visible: Tensor
    words: Tensor
    nouns: Tensor


def sample(
    data: Material, index: int, rng: random.Random, settings: Settings
) -> tuple[Tensor, Tensor, list[Region], list[int]]:
    """Return a training picture's tokens (S, S, K) and their visibility (S, S), its regions, and the hidden ones."""
    side = round(data.features.shape[1] ** 0.5)
    grid = data.features[index].float().unflatten(0, (side, side)).clone()  # (S, S, K)
    visible = torch.ones(side, side, dtype=torch.bool)
    regions = list(data.pictures[index].regions)
    hidden: list[int] = []
    for i, region in enumerate(regions):
        if region.box == WHOLE or rng.random() >= EXCHANGED:
            continue
        donor, new = rng.choice(data.donors[region.box])
        others = (other.photo.nouns for j, other in enumerate(regions) if j != i)
        if all({*new.photo.nouns}.isdisjoint(nouns) for nouns in others):
            place = tokens_of(region.box, side)
            grid[place] = data.features[donor].float().unflatten(0, (side, side))[place]
            regions[i] = new
    if len(regions) > 1 and rng.random() < HIDDEN:
        hidden = rng.sample(range(len(regions)), rng.randint(1, len(regions) - 1))
        for i in hidden:
            visible[tokens_of(regions[i].box, side)] = False
    if rng.random() < THINNED:
        visible &= torch.rand(side, side) >= rng.uniform(0, 0.6)
    return grid + settings.noise * torch.randn_like(grid), visible, regions, hidden


def make_batch(data: Material, tokenizer: Tokenizer, settings: Settings, step: int) -> Batch:
    """Return the batch of a step. It depends on the settings and the step only."""
    rng = random.Random(f"{settings.seed} batch {step}")
    torch.manual_seed(rng.getrandbits(62))  # for thinning, noise and dropout
    first = step * settings.batch
    indices = [_shuffled(data, settings, i // len(data))[i % len(data)] for i in range(first, first + settings.batch)]
    samples = [sample(data, index, rng, settings) for index in indices]
    captions = [write_caption(regions, rng, hidden) for _, _, regions, hidden in samples]
    words, nouns = pad(tokenizer, [caption.words for caption in captions], [caption.regions for caption in captions])
    features = torch.stack([grid.flatten(0, 1) for grid, _, _, _ in samples])
    return Batch(features, torch.stack([visible.flatten() for _, visible, _, _ in samples]), words, nouns)


_orders: dict[tuple[int, int, int], list[int]] = {}


def _shuffled(data: Material, settings: Settings, epoch: int) -> list[int]:
    """Return the order of the pictures in an epoch."""
    key = (settings.seed, epoch, len(data))
    if key not in _orders:
        _orders.clear()
        _orders[key] = random.Random(f"{settings.seed} epoch {epoch}").sample(range(len(data)), len(data))
    return _orders[key]


def pad(
    tokenizer: Tokenizer, captions: Sequence[Sequence[str]], regions: Sequence[Sequence[int | None]]
) -> tuple[Tensor, Tensor]:
    """Return captions as numbers from start to end, padded, and which of these are nouns: 2 x (B, T + 1)."""
    length = max(map(len, captions)) + 2
    words = torch.full((len(captions), length), tokenizer.PAD)
    nouns = torch.zeros(len(captions), length, dtype=torch.bool)
    for row, (caption, places) in enumerate(zip(captions, regions, strict=True)):
        numbers = [tokenizer.START, *tokenizer.encode(caption), tokenizer.END]
        words[row, : len(numbers)] = torch.tensor(numbers)
        nouns[row, 1 : len(places) + 1] = torch.tensor([place is not None for place in places])
    return words, nouns


# ---- training


@dataclass(eq=False)
class Run:
    """A training run: model, optimizer and the number of steps done."""

    model: Decoder
    optimizer: torch.optim.Optimizer
    settings: Settings
    parts: int
    step: int = 0

    def save(self, path: Path) -> None:
        """Write the state, which replaces the old one when it is complete."""
        state = {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step,
            "parts": self.parts, "settings": asdict(self.settings), "config": asdict(self.model.config),
        }  # fmt: skip
        unfinished = path.with_suffix(".unfinished")
        torch.save(state, unfinished)
        unfinished.rename(path)


def new_run(config: DecoderConfig, settings: Settings, parts: int) -> Run:
    """Return a run at its start."""
    torch.manual_seed(settings.seed)
    model = Decoder(config)
    matrices = [p for name, p in model.named_parameters() if name.endswith("weight") and p.ndim == 2]
    others = [p for name, p in model.named_parameters() if not (name.endswith("weight") and p.ndim == 2)]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return Run(model, torch.optim.AdamW(groups, lr=settings.rate, betas=(0.9, 0.98)), settings, parts)


def resume(path: Path) -> Run:
    """Return the run whose state `Run.save` wrote."""
    state = torch.load(path, weights_only=True)
    run = new_run(DecoderConfig(**state["config"]), Settings(**state["settings"]), state["parts"])
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.step = state["step"]
    return run


def rate_at(step: int, settings: Settings) -> float:
    """Return the learning rate of a step: linear warm-up, then a cosine to zero."""
    warm = min(1.0, (step + 1) / settings.warmup)
    done = torch.tensor(torch.pi * step / settings.steps)
    return float(settings.rate * warm * (1 + done.cos()) / 2)


def train_step(run: Run, batch: Batch) -> tuple[float, float]:
    """Do one step, and return its loss and the share of noun words that were the most probable ones."""
    run.model.train()
    for group in run.optimizer.param_groups:
        group["lr"] = rate_at(run.step, run.settings)
    wanted, nouns = batch.words[:, 1:], batch.nouns[:, 1:]
    with torch.autocast("cpu", torch.bfloat16):
        logits = run.model(batch.features, batch.words[:, :-1], batch.visible).float()
    loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=Tokenizer.PAD)
    run.optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    run.optimizer.step()
    run.step += 1
    return loss.item(), (logits.argmax(-1) == wanted)[nouns].float().mean().item()


def noun_means(data: Material, tokenizer: Tokenizer) -> tuple[list[int], Tensor]:
    """Return the numbers of nouns' words (m,), and the mean image token where each is shown, without the mean of all.

    A word of several nouns gets the mean of these.
    """
    side = round(data.features.shape[1] ** 0.5)
    sums: dict[int, list[Tensor]] = {}
    for picture, features in zip(data.pictures, data.features, strict=True):
        grid = features.float().unflatten(0, (side, side))
        for region in picture.regions:
            mean = grid[tokens_of(region.box, side)].mean((0, 1))  # (K,)
            for number in tokenizer.encode(region.noun.split()):
                sums.setdefault(number, []).append(mean)
    means = torch.stack([torch.stack(values).mean(0) for values in sums.values()])
    return [*sums], means - means.mean(0)


@torch.no_grad()
def start_from_means(model: Decoder, numbers: list[int], means: Tensor) -> None:
    """Let the untrained decoder compare image tokens with the mean tokens of nouns, which shortens the training.

    The embedding of a noun's word becomes its mean token, and the last block adds the tokens that it attends to.
    """
    nn.init.eye_(model.image.weight)
    model.embed.weight[numbers] = EMBEDDED * F.normalize(means)
    last = model.blocks[-1]
    nn.init.eye_(last.qkv.weight[2 * model.config.width :])
    nn.init.eye_(last.proj.weight)
    last.proj.weight *= ADDED


@torch.inference_mode()
def captions_of(
    model: Decoder, tokenizer: Tokenizer, features: Tensor, start: Sequence[str] = (), length: int | None = None
) -> list[list[str]]:
    """Return the most probable caption of each picture, word by word, after `start`: (m, n, K) -> m lists of words.

    Args:
        length: the number of words at most, by default until the end.
    """
    numbers = [tokenizer.START, *tokenizer.encode(start)]
    return [
        tokenizer.decode(words[len(start) :])
        for part in features.split(128)
        for words in generate(model.eval(), part.float(), numbers, tokenizer.END, length)
    ]


def right_nouns(
    pictures: Sequence[Picture], captions: Sequence[Sequence[str]], tokenizer: Tokenizer
) -> tuple[float, float]:
    """Return for which share of photographs the first noun is right, and which share of nouns in mosaics is right."""
    single, mosaic = [], []
    for picture, words in zip(pictures, captions, strict=True):
        nouns = [noun for noun, _, _ in tokenizer.find_nouns(words)]
        right = {noun for region in picture.regions for noun in region.photo.nouns}
        if picture.boxes == (WHOLE,):
            single.append(nouns[:1] != [] and nouns[0] in right)
        else:
            mosaic += [noun in right for noun in nouns]
    return sum(single) / max(1, len(single)), sum(mosaic) / max(1, len(mosaic))


def tokenizer_of(work: Path) -> Tokenizer:
    """Return the tokenizer of the captions of the training pictures."""
    plan = read_plan(work / "plan.jsonl")
    nouns = sorted({region.noun for picture in plan if picture.split == "train" for region in picture.regions})
    return Tokenizer(vocabulary(nouns), nouns)


def main() -> None:
    """Train, or continue a training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder that features.py wrote")
    parser.add_argument("--steps", type=int, default=Settings.steps, help="number of steps of a new training")
    parser.add_argument("--threads", type=int, default=2, help="number of PyTorch's threads")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    path = args.work / "state.pt"
    run = resume(path) if path.exists() else None
    splits, parts = load_features(args.work, run.parts if run else None)
    data, dev = splits["train"], splits["dev"]
    tokenizer = tokenizer_of(args.work)
    if run is None:
        config = DecoderConfig(vocabulary=len(tokenizer), features=data.features.shape[2])
        run = new_run(config, replace(Settings(), steps=args.steps), parts)
        start_from_means(run.model, *noun_means(data, tokenizer))
    count = sum(parameter.numel() for parameter in run.model.parameters())
    print(f"{count:,} parameters, {len(data):,} pictures, from step {run.step} of {run.settings.steps}", flush=True)
    start, seen = time.perf_counter(), []
    while run.step < run.settings.steps:
        seen.append(train_step(run, make_batch(data, tokenizer, run.settings, run.step)))
        if run.step % SHOWN == 0:
            loss, nouns = (sum(values) / len(seen) for values in zip(*seen, strict=True))
            seconds = (time.perf_counter() - start) / len(seen)
            print(
                f"step {run.step}: loss {loss:.3f}, noun words {100 * nouns:.1f} %, {seconds:.2f} s a step", flush=True
            )
        if run.step % SAVED == 0 or run.step == run.settings.steps:
            run.save(path)
        if run.step % CHECKED == 0:
            single, mosaic = right_nouns(dev.pictures, captions_of(run.model, tokenizer, dev.features), tokenizer)
            print(
                f"  dev: noun right on {100 * single:.1f} % of photographs; {100 * mosaic:.1f} % of nouns in mosaics",
                flush=True,
            )
        if run.step % SHOWN == 0:
            start, seen = time.perf_counter(), []


if __name__ == "__main__":
    main()
