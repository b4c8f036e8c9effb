"""Compare the words of a vision-language model with its own generation of 20 tokens, in CPU seconds and memory.

    python benchmarks/words.py own      # the model's own generation
    python benchmarks/words.py words    # as in vitviz.words: the same with the attention of each token
    python benchmarks/words.py eager    # transformers' output_attentions, with eager attention
    python benchmarks/words.py effects  # Words.effects of an answer of 20 tokens, without its generation
    python benchmarks/words.py maps     # GAE and gradient x input of its tokens

The model has SmolVLM-256M's configuration, random weights, and a photograph of five tiles: 320 image tokens. One
process measures one of them, because the peak of memory is the process's.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

from vitviz.images.torchvision_import import import_torchvision
from vitviz.language.answers import answered
from vitviz.language.feeding import FedAnswer
from vitviz.language.words import BATCH

TILES, PER_TILE, TOKENS, IMAGE, THREADS = 5, 64, 20, 49190, 1
VISION = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "patch_size": 16, "image_size": 512,
}  # fmt: skip
TEXT = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49280, "max_position_embeddings": 8192,
}  # fmt: skip


def main() -> None:
    import_torchvision()  # before transformers, which imports it
    import transformers

    kind = sys.argv[1]
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    config = transformers.SmolVLMConfig(
        vision_config=VISION, text_config=TEXT, scale_factor=4, image_token_id=IMAGE, pad_token_id=2
    )
    config._attn_implementation = "eager" if kind == "eager" else "sdpa"
    model = transformers.SmolVLMForConditionalGeneration(config).eval()
    model.generation_config.eos_token_id = None  # always 20 tokens
    image = torch.full((1, PER_TILE * TILES), IMAGE)
    ids = torch.cat([image, torch.randint(100, 40_000, (1, 30))], dim=1)
    pixels = torch.randn(1, TILES, 3, VISION["image_size"], VISION["image_size"])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}
    places = torch.arange(PER_TILE * TILES)
    written = torch.randint(100, 40_000, (TOKENS,)).tolist()
    fed = FedAnswer(model, inputs, places, written, lambda _photo: inputs, lambda _frame: None)
    start = time.process_time()
    if kind == "words":
        answered(model, inputs, places, None, TOKENS)
    elif kind == "effects":
        for hidden in torch.eye(len(places), dtype=torch.bool).split(BATCH):
            fed.log_probabilities(~hidden)
    elif kind == "maps":
        fed.gae([[token] for token in range(TOKENS)])
        fed.gradient_input([[token] for token in range(TOKENS)])
    else:
        options = {"output_attentions": True, "return_dict_in_generate": True} if kind == "eager" else {}
        with torch.no_grad():
            model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False, num_beams=1, **options)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{kind}: {seconds:.1f} CPU seconds, {peak:,.0f} MB at the peak")


if __name__ == "__main__":
    main()
