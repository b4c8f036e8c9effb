"""Make tiny random vision-language models of transformers with their processors: nothing is downloaded.

Towers have two layers and decoders three, with grouped keys. Processors cut photographs into several tiles where the
family has tiles.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers as hf
from tiny import shaken
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from vitviz.images.torchvision_import import import_torchvision

import_torchvision()  # transformers' processors import it

WORDS = [
    *("what", "is", "on", "the", "a", "red", "um", "##brel", "##la", "dog", "left", "of", "church", "."),
    *("[UNK]", "</s>"),
]
SPECIAL = {"unk_token": "[UNK]", "pad_token": "</s>", "eos_token": "</s>", "bos_token": "</s>"}
TEXT: dict[str, Any] = {
    "hidden_size": 24, "intermediate_size": 29, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 512, "vocab_size": 128,
}  # fmt: skip
TOWER: dict[str, Any] = {
    "hidden_size": 20, "intermediate_size": 23, "num_hidden_layers": 2, "num_attention_heads": 5, "patch_size": 4,
}  # fmt: skip
IDS = {"pad_token_id": 15, "eos_token_id": 15, "bos_token_id": 15}


class Case(NamedTuple):
    """A model, its processor, the placeholder of the photograph in a prompt, and options of the processor."""

    model: Any
    processor: Any
    image: str
    options: dict[str, Any] = {}


def tokenizer(*added: str, **names: str) -> Any:
    """Return a tokenizer of a word list, with tokens of a processor and their names."""
    own = Tokenizer(models.WordPiece({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    own.decoder = decoders.WordPiece()
    fast = hf.PreTrainedTokenizerFast(tokenizer_object=own, **SPECIAL, extra_special_tokens=names)
    fast.add_special_tokens({"additional_special_tokens": list(added)}, replace_extra_special_tokens=False)
    return fast


def bytes_tokenizer() -> Any:
    """Return a tokenizer whose tokens are bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    return hf.PreTrainedTokenizerFast(tokenizer_object=own)


def made(kind: Any, config: Any, processor: Any, image: str) -> Case:
    """Return a case with a random model of a configuration."""
    torch.manual_seed(7)
    config._attn_implementation = "sdpa"
    return Case(shaken(kind(config)), processor, image)


def _idefics3(name: str) -> Case:
    words = tokenizer(
        "<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>",
        *(f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)),
    )  # fmt: skip
    images = getattr(hf, f"{name}ImageProcessor")(size={"longest_edge": 42}, max_image_size={"longest_edge": 16})
    options = {"video_processor": hf.SmolVLMVideoProcessor()} if name == "SmolVLM" else {}
    processor = getattr(hf, f"{name}Processor")(images, words, image_seq_len=4, **options)
    config = getattr(hf, f"{name}Config")(
        vision_config={**TOWER, "image_size": 16}, scale_factor=2, pad_token_id=15,
        text_config={**TEXT, **IDS, "model_type": "llama"}, image_token_id=words.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    return made(getattr(hf, f"{name}ForConditionalGeneration"), config, processor, "<image>")


def smolvlm() -> Case:
    """Return a SmolVLM. Its processor needs num2words for the prompts of videos only."""
    processing = importlib.import_module("transformers.models.smolvlm.processing_smolvlm")
    processing.num2words = processing.num2words or str
    return _idefics3("SmolVLM")


def idefics3() -> Case:
    return _idefics3("Idefics3")


def llava() -> Case:
    words = tokenizer("<image>", image_token="<image>")
    images = hf.CLIPImageProcessor(size={"shortest_edge": 20}, crop_size={"height": 20, "width": 20})
    processor = hf.LlavaProcessor(
        images, words, patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    config = hf.LlavaConfig(
        vision_config={**TOWER, "image_size": 20, "model_type": "clip_vision_model"},
        text_config={**TEXT, **IDS, "model_type": "llama"}, image_token_id=words.image_token_id,
    )  # fmt: skip
    return made(hf.LlavaForConditionalGeneration, config, processor, "<image>")


def llava_next() -> Case:
    words = tokenizer("<image>", image_token="<image>")
    tiles = [[20, 40], [40, 20], [40, 40], [60, 20]]
    images = hf.LlavaNextImageProcessor(
        size={"shortest_edge": 20}, crop_size={"height": 20, "width": 20}, image_grid_pinpoints=tiles
    )
    processor = hf.LlavaNextProcessor(
        images, words, patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    config = hf.LlavaNextConfig(
        vision_config={**TOWER, "image_size": 20, "model_type": "clip_vision_model"}, image_grid_pinpoints=tiles,
        text_config={**TEXT, **IDS, "model_type": "llama"}, image_token_id=words.image_token_id,
    )  # fmt: skip
    return made(hf.LlavaNextForConditionalGeneration, config, processor, "<image>")


def _qwen(name: str, kind: str, vision: dict[str, Any]) -> Case:
    words = tokenizer("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    ids = {f"{key}_id": words.convert_tokens_to_ids(f"<|{token}|>") for key, token in QWEN.items()}
    images = hf.Qwen2VLImageProcessor(patch_size=4, size={"shortest_edge": 64, "longest_edge": 1500})
    processor = getattr(hf, f"{name}Processor")(images, words, getattr(hf, f"{kind}VideoProcessor")())
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 0]}
    config = getattr(hf, f"{name}Config")(
        vision_config={"depth": 2, "num_heads": 5, "patch_size": 4, "temporal_patch_size": 2, **vision},
        text_config={**TEXT, **IDS, "rope_parameters": rope}, **ids,
    )  # fmt: skip
    model = getattr(hf, f"{name}ForConditionalGeneration")
    return made(model, config, processor, "<|vision_start|><|image_pad|><|vision_end|>")


QWEN = {
    "image_token": "image_pad", "video_token": "video_pad",
    "vision_start_token": "vision_start", "vision_end_token": "vision_end",
}  # fmt: skip


def qwen2_vl() -> Case:
    return _qwen("Qwen2VL", "Qwen2VL", {"embed_dim": 40, "hidden_size": 24, "mlp_ratio": 2})


def qwen2_5_vl() -> Case:
    tower = {"hidden_size": 40, "intermediate_size": 23, "out_hidden_size": 24, "window_size": 16}
    return _qwen("Qwen2_5_VL", "Qwen2VL", {**tower, "fullatt_block_indexes": [1]})


def qwen3_vl() -> Case:
    tower = {"hidden_size": 40, "intermediate_size": 23, "out_hidden_size": 24, "num_position_embeddings": 49}
    return _qwen("Qwen3VL", "Qwen3VL", {**tower, "deepstack_visual_indexes": [0]})


def paligemma() -> Case:
    words = tokenizer("<image>", image_token="<image>")
    images = hf.SiglipImageProcessor(size={"height": 20, "width": 20})
    images.image_seq_length = 25
    processor = hf.PaliGemmaProcessor(images, words)
    config = hf.PaliGemmaConfig(
        vision_config={**TOWER, "image_size": 20, "model_type": "siglip_vision_model", "projection_dim": 24},
        text_config={**TEXT, **IDS, "model_type": "gemma", "vocab_size": 1200, "num_key_value_heads": 1},
        projection_dim=24, image_token_id=words.image_token_id,
    )  # fmt: skip
    return made(hf.PaliGemmaForConditionalGeneration, config, processor, "<image>")


def gemma3() -> Case:
    names = {"boi_token": "<boi>", "eoi_token": "<eoi>", "image_token": "<soft>"}
    words = tokenizer(*names.values(), **names)
    images = hf.Gemma3ImageProcessor(size={"height": 24, "width": 24})
    processor = hf.Gemma3Processor(images, words, image_seq_length=9)
    config = hf.Gemma3Config(
        vision_config={**TOWER, "image_size": 24}, mm_tokens_per_image=9,
        text_config={**TEXT, **IDS, "sliding_window": 12, "layer_types": SLIDING},
        image_token_id=words.image_token_id, boi_token_id=words.boi_token_id, eoi_token_id=words.eoi_token_id,
    )  # fmt: skip
    return made(hf.Gemma3ForConditionalGeneration, config, processor, "<boi>")


def gemma3_crops() -> Case:
    """Return Gemma 3 with pan and scan, which adds crops of an elongated photograph."""
    return gemma3()._replace(options={"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 24})


SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]


def internvl() -> Case:
    names = {
        "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }  # fmt: skip
    words = tokenizer(*names.values(), **names)
    images = hf.GotOcr2ImageProcessor(size={"height": 16, "width": 16}, max_patches=6)
    processor = hf.InternVLProcessor(images, words, hf.InternVLVideoProcessor(), image_seq_length=4)
    config = hf.InternVLConfig(
        vision_config={**TOWER, "image_size": [16, 16], "patch_size": [4, 4]},
        text_config={**TEXT, **IDS, "model_type": "llama"}, image_token_id=words.context_image_token_id,
        downsample_ratio=0.5,
    )  # fmt: skip
    return made(hf.InternVLForConditionalGeneration, config, processor, "<IMG_CONTEXT>")


# transformers' `model_type` -> its tiny case; Gemma 3 also with crops.
CASES: dict[str, Callable[[], Case]] = {
    "smolvlm": smolvlm,
    "idefics3": idefics3,
    "llava": llava,
    "llava_next": llava_next,
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "paligemma": paligemma,
    "gemma3": gemma3,
    "gemma3, crops": gemma3_crops,
    "internvl": internvl,
}
