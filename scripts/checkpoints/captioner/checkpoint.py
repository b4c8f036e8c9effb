"""Write the captioner's checkpoint, and read it: config.json and model.safetensors in half precision."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from captions import Tokenizer
from decoder import Decoder, DecoderConfig
from features import MERGED, project
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitviz.images.preprocess import Preprocess

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Captioner:
    """A decoder with all that it needs: the name of its backbone, its preprocessing, projection and words."""

    backbone: str
    preprocess: Preprocess
    projection: dict[str, Tensor]
    decoder: Decoder
    tokenizer: Tokenizer

    def project(self, tokens: Tensor) -> Tensor:
        """Project merged tokens of the backbone: (B, n, F) -> (B, n, K)."""
        return project(tokens, self.projection)


def save(captioner: Captioner, folder: Path) -> None:
    """Write a captioner in half precision."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {f"decoder.{name}": tensor for name, tensor in captioner.decoder.state_dict().items()}
    state |= {f"projection.{name}": tensor for name, tensor in captioner.projection.items()}
    save_file({name: tensor.half().contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    config = {
        "format": FORMAT,
        "backbone": captioner.backbone,
        "preprocess": captioner.preprocess.to_dict(),
        "merged": MERGED,
        "decoder": asdict(captioner.decoder.config),
        "words": captioner.tokenizer.words,
        "nouns": captioner.tokenizer.nouns,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load(folder: Path) -> Captioner:
    """Read what `save` wrote; the weights become float32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    state = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    decoder = Decoder(DecoderConfig(**config["decoder"])).eval()
    decoder.load_state_dict(_part(state, "decoder."))
    tokenizer = Tokenizer(config["words"], config["nouns"])
    preprocess = Preprocess.from_dict(config["preprocess"])
    return Captioner(config["backbone"], preprocess, _part(state, "projection."), decoder, tokenizer)


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors below a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
