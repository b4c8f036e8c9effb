"""Write the captioner's checkpoint from the state of its training, evaluate it, and write its card.

    python scripts/checkpoints/captioner/evaluate.py --work WORK --output FOLDER
    python scripts/checkpoints/captioner/evaluate.py --work WORK --output FOLDER --wild PHOTOS

The figures are those of the weights in half precision on the test split, which no choice used. --wild evaluates the
checkpoint in FOLDER on PHOTOS/FOLDER/image, as in everyday2-wild.tar, and adds the figure to the card. Use it once, at
the end of the development.
"""

from __future__ import annotations

import argparse
import datetime as dt
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from captions import PLACES
from features import BACKBONE, MERGED, TABLES, Worker, preprocess_of
from maps import MAPS, Span, attention, removal
from layouts import QUARTERS, WHOLE, Picture, Region, find_photos, read_answers
from safetensors.torch import load_file
from torch import Tensor
from train import Material, captions_of, load_features, resume, tokenizer_of, tokens_of

import vitviz
from vitviz.language.captioner import Captioner, Tokenizer, load_folder, project, save
from vitviz.language.decoder import Decoder
from vitviz.model.correlation import spearman

LICENCE = "as the backbone's; trained on images for research use"
SOURCE = (
    f"a decoder trained by us on {BACKBONE} with captions of everyday256, everyday2, Imagenette, and mosaics of them"
)
CARD = Path(__file__).with_name("card.md")
HEADING = "## Evaluations on wild/"
DRAWS = 2000
REMOVAL = "removal of a quarter"


@dataclass(frozen=True)
class Share:
    """A share with its 95 % interval (percentile bootstrap over pictures), and the number of cases."""

    share: float
    low: float
    high: float
    cases: int

    def __str__(self) -> str:
        return f"{100 * self.share:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f} %, n = {self.cases:,})"


def share_of(hits: Sequence[Sequence[bool]]) -> Share:
    """Return the share of hits; those of one picture are drawn together."""
    pictures = [group for group in hits if group]
    if not pictures:
        return Share(float("nan"), float("nan"), float("nan"), 0)
    right, total = (
        torch.tensor(counts, dtype=torch.double) for counts in ([*map(sum, pictures)], [*map(len, pictures)])
    )
    drawn = torch.randint(len(pictures), (DRAWS, len(pictures)), generator=torch.Generator().manual_seed(0))
    shares = right[drawn].sum(1) / total[drawn].sum(1)
    low, high = shares.quantile(torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
    return Share((right.sum() / total.sum()).item(), low, high, int(total.sum()))


def nouns_of_photos(pictures: Sequence[Picture], captions: Sequence[Sequence[str]], tokenizer: Tokenizer) -> Share:
    """Return for which share of photographs the first noun of the caption is right."""
    hits = []
    for picture, words in zip(pictures, captions, strict=True):
        nouns = [noun for noun, _, _ in tokenizer.find_nouns(words)]
        hits.append([nouns[:1] != [] and nouns[0] in picture.regions[0].photo.nouns])
    return share_of(hits)


# ---- words and regions of mosaics


@dataclass(frozen=True, eq=False)
class Case:
    """A mosaic with its caption, and the right nouns in it with the regions that they name."""

    features: Tensor
    words: Tensor
    spans: list[Span]
    regions: list[Region]


def right_cases(data: Material, captions: Sequence[Sequence[str]], tokenizer: Tokenizer) -> tuple[list[Case], Share]:
    """Return the mosaics with right nouns, and the share of all nouns that are right. A repeated noun is wrong."""
    cases, hits = [], []
    for picture, features, words in zip(data.pictures, data.features, captions, strict=True):
        found: dict[str, tuple[Span, Region]] = {}
        nouns = tokenizer.find_nouns(words)
        for noun, first, last in nouns:
            region = next((region for region in picture.regions if noun in region.photo.nouns), None)
            if region is not None:
                found.setdefault(noun, ((first, last), region))
        hits.append([True] * len(found) + [False] * (len(nouns) - len(found)))
        if found:
            spans, regions = zip(*found.values(), strict=True)
            cases.append(Case(features.float(), _numbers(words, tokenizer), [*spans], [*regions]))
    return cases, share_of(hits)


def asked_cases(model: Decoder, data: Material, tokenizer: Tokenizer) -> tuple[list[list[Case]], Share]:
    """Ask for the noun at each place of each mosaic; return the right ones of each mosaic, and their share.

    The question is the beginning of a caption that names the place, such as "in the top left".
    """
    cases: list[list[Case]] = [[] for _ in data.pictures]
    hits: list[list[bool]] = [[] for _ in data.pictures]
    for box, place in PLACES.items():
        asked = [i for i, picture in enumerate(data.pictures) if box in picture.boxes]
        if not asked:
            continue
        answers = captions_of(model, tokenizer, data.features[asked], place.split(), length=4)
        for index, answer in zip(asked, answers, strict=True):
            words = [*place.split(), *answer]
            region = next(region for region in data.pictures[index].regions if region.box == box)
            [(noun, first, last)] = tokenizer.find_nouns(words)[:1] or [("", 0, 0)]
            hits[index].append(noun in region.photo.nouns)
            if hits[index][-1]:
                numbers = _numbers(words[:last], tokenizer)
                cases[index].append(Case(data.features[index].float(), numbers, [(first, last)], [region]))
    return cases, share_of(hits)


def _numbers(words: Sequence[str], tokenizer: Tokenizer) -> Tensor:
    """Return the numbers of a caption from start to end: (T + 1)."""
    return torch.tensor([tokenizer.START, *tokenizer.encode(words), tokenizer.END])


def points_by_removal(model: Decoder, cases: Sequence[Case]) -> list[list[bool]]:
    """Return for each noun of each case whether the removal of a quarter points to its region."""
    quarters = quarter_groups(model.config.image_tokens)
    return [
        points_right(removal(model, case.features, case.words, case.spans, quarters), case.regions) for case in cases
    ]


def quarter_groups(tokens: int) -> Tensor:
    """Return the image tokens of each quarter: (4, n) bool."""
    side = round(tokens**0.5)
    groups = torch.zeros(len(QUARTERS), side, side, dtype=torch.bool)
    for index, box in enumerate(QUARTERS):
        groups[index][tokens_of(box, side)] = True
    return groups.flatten(1)


def points_right(scores: Tensor, regions: Sequence[Region]) -> list[bool]:
    """Return whether the highest score (nouns, 4) is in a quarter of each noun's region."""
    return [int(best) in region.quarters for best, region in zip(scores.argmax(1), regions, strict=True)]


def by_size(hits: Sequence[Sequence[bool]], cases: Sequence[Case]) -> tuple[Share, Share]:
    """Return the shares for nouns whose region is one quarter, and for those whose region is two quarters."""

    def of_size(size: int) -> Share:
        return share_of(
            [
                [hit for hit, region in zip(group, case.regions, strict=True) if len(region.quarters) == size]
                for group, case in zip(hits, cases, strict=True)
            ]
        )

    return of_size(1), of_size(2)


def table_of_maps(captioner: Captioner, cases: Sequence[Case], best_head: tuple[int, int]) -> str:
    """Return a table: how often removal and each map point to the quarter, and rank correlations with removal."""
    model = captioner.decoder
    n = model.config.image_tokens
    quarters, single = quarter_groups(n), torch.eye(n, dtype=torch.bool)
    block, head = best_head
    methods = {**MAPS, f"attention, block {block + 1}, head {head + 1}": lambda *of: attention(*of)[block, head]}
    hits = {REMOVAL: points_by_removal(model, cases)}
    print(REMOVAL, *by_size(hits[REMOVAL], cases), flush=True)
    ranks: dict[str, list[float]] = {}
    for case in cases:
        given = (model, case.features, case.words, case.spans)
        exact = removal(*given, single)  # (nouns, n)
        hits.setdefault("removal of single tokens, summed", []).append(_pointing(exact, quarters, case))
        for name, method in methods.items():
            scores = method(*given)
            hits.setdefault(name, []).append(_pointing(scores, quarters, case))
            ranks.setdefault(name, []).extend(spearman(scores, exact).tolist())
    lines = ["| map | region is a quarter | region is two quarters | rank correlation |", "|---|---|---|---|"]
    for name, groups in hits.items():
        one, two = by_size(groups, cases)
        rank = f"{sum(ranks[name]) / len(ranks[name]):.2f}" if name in ranks else ""
        lines.append(f"| {name} | {one} | {two} | {rank} |")
    return "\n".join(lines)


def _pointing(scores: Tensor, quarters: Tensor, case: Case) -> list[bool]:
    """Return whether the quarter with the largest sum of scores (nouns, n) is right for each noun."""
    return points_right(scores @ quarters.float().T, case.regions)


def find_best_head(captioner: Captioner, cases: Sequence[Case]) -> tuple[int, int]:
    """Return the block and head whose attention points to the right quarter most often."""
    quarters = quarter_groups(captioner.decoder.config.image_tokens).float()
    count = torch.zeros(captioner.decoder.config.depth, captioner.decoder.config.heads)
    for case in cases:
        best = (attention(captioner.decoder, case.features, case.words, case.spans) @ quarters.T).argmax(-1)
        for noun, region in enumerate(case.regions):
            count += torch.isin(best[:, :, noun], torch.tensor([*region.quarters]))
    block, head = divmod(int(count.argmax()), count.shape[1])
    return block, head


# ---- the commands


def of_kind(data: Material, *, mosaics: bool) -> Material:
    """Return the photographs, or the mosaics."""
    chosen = [index for index, picture in enumerate(data.pictures) if (picture.boxes != (WHOLE,)) == mosaics]
    return Material([data.pictures[index] for index in chosen], data.features[chosen])


def write_checkpoint(work: Path, folder: Path) -> tuple[dict[str, Material], str]:
    """Write the checkpoint of a training, and return the material and a sentence about the training."""
    run = resume(work / "state.pt")
    splits, _ = load_features(work, run.parts)
    backbone = vitviz.load(BACKBONE)
    projection = load_file(work / "projection.safetensors")
    captioner = Captioner(backbone, preprocess_of(backbone), MERGED, projection, run.model, tokenizer_of(work))
    save(captioner, folder, licence=LICENCE, source=SOURCE)
    count = {kind: len(of_kind(splits["train"], mosaics=kind)) for kind in (False, True)}
    done = f"{run.step:,} of {run.settings.steps:,} steps" if run.step < run.settings.steps else f"{run.step:,} steps"
    return (
        splits,
        f"{done} of {run.settings.batch} pictures, from {count[False]:,} photographs and {count[True]:,} mosaics",
    )


def evaluate(work: Path, folder: Path) -> None:
    """Write checkpoint and card."""
    splits, trained = write_checkpoint(work, folder)
    captioner = load_folder(folder, vitviz.load(BACKBONE))
    model, tokenizer = captioner.decoder, captioner.tokenizer
    photos, mosaics = (of_kind(splits["test"], mosaics=kind) for kind in (False, True))
    dev = of_kind(splits["dev"], mosaics=True)
    photo_share = nouns_of_photos(photos.pictures, captions_of(model, tokenizer, photos.features), tokenizer)
    cases, noun_share = right_cases(mosaics, captions_of(model, tokenizer, mosaics.features), tokenizer)
    asked, asked_share = asked_cases(model, mosaics, tokenizer)
    print(f"photographs {photo_share}; mosaics {noun_share}; places {asked_share}", flush=True)
    answers = [case for group in asked for case in group]
    asked_one, asked_two = by_size(points_by_removal(model, answers), answers)
    print(f"removal, places: {asked_one}; {asked_two}", flush=True)
    dev_cases, _ = right_cases(dev, captions_of(model, tokenizer, dev.features), tokenizer)
    table = table_of_maps(captioner, cases, find_best_head(captioner, dev_cases))
    size = (folder / "model.safetensors").stat().st_size
    numbers = sum(p.numel() for p in model.parameters())
    card = string.Template(CARD.read_text(encoding="utf-8")).substitute(
        photos=photo_share, nouns=noun_share, asked=asked_share, asked_one=asked_one, asked_two=asked_two, maps=table, trained=trained, megabytes=f"{size / 1e6:.1f}",
        millions=f"{numbers / 1e6:.1f}", nouns_known=len(tokenizer.nouns), words_known=len(tokenizer.words),
        depth=model.config.depth, heads=model.config.heads, width=model.config.width,
    )  # fmt: skip
    (folder / "README.md").write_text(card, encoding="utf-8")
    print(card)


def evaluate_wild(folder: Path, photos: Path) -> None:
    """Evaluate the checkpoint on photographs of other sources, and add the figure to its card."""
    captioner = load_folder(folder, vitviz.load(BACKBONE))
    _, nouns = read_answers(TABLES)
    found = find_photos(photos.parent, [photos.name], nouns)
    pictures = [Picture("wild", (Region(photo, WHOLE),)) for photo in found]
    features = project(Worker(BACKBONE, photos.parent, None).tokens(pictures), captioner.projection)
    share = nouns_of_photos(
        pictures, captions_of(captioner.decoder, captioner.tokenizer, features), captioner.tokenizer
    )
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8").rstrip("\n")
    if HEADING not in text:
        text += f"\n\n{HEADING}\n"
    line = f"- {dt.datetime.now(dt.UTC).date().isoformat()}: noun right on {share}"
    card.write_text(f"{text}\n{line}\n", encoding="utf-8")
    print(line)


def main() -> None:
    """Evaluate on the test split, or on photographs of other sources."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of features.py and train.py")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="folder of the checkpoint")
    parser.add_argument("--wild", type=Path, metavar="PHOTOS", help="photographs of other sources; use it once")
    parser.add_argument("--threads", type=int, default=2, help="number of PyTorch's threads")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.wild:
        evaluate_wild(args.output, args.wild)
    else:
        evaluate(args.work, args.output)


if __name__ == "__main__":
    main()
