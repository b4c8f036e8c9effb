"""Ten famous models, as data: what a menu can say of them before anything is downloaded.

Where the facts come from; a test holds what it can to the installed libraries, offline:

- Architecture and `parameters`: the libraries themselves. torchvision states them with its weights (`meta`), timm and
  transformers by building the model. All ten are published in float32: a file holds four bytes for each parameter.
- `licence`: timm's `pretrained_cfg` (DeiT, DINO, DINOv2, DINOv3, MAE, SigLIP and the fine-tuned CLIP, each as its
  authors or its fine-tuner published it); for google/vit-base-patch16-224 its model card. torchvision states none for
  these weights, so neither do we.
- `side`: the input that the weights' own preprocessing makes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Famous:
    """A published model.

    Args:
        source: what `vitviz.load` takes.
        title: what people call it.
        known_for: in a few words.
        parameters: how many the published file holds.
        licence: of the weights: SPDX where there is one, else the licence's own name.
        side: the model's own input, side x side pixels.
    """

    source: str
    title: str
    known_for: str
    parameters: int
    licence: str
    side: int

    @property
    def size(self) -> int:
        """Bytes to download."""
        return 4 * self.parameters


FAMOUS: tuple[Famous, ...] = (
    Famous(
        source="hf:google/vit-base-patch16-224",
        title="ViT-B/16 (Google)",
        known_for="the first Vision Transformer, trained on 14 million labelled photographs",
        parameters=86_567_656,
        licence="Apache-2.0",
        side=224,
    ),
    Famous(
        source="torchvision:vit_b_16.IMAGENET1K_V1",
        title="ViT-B/16 (torchvision)",
        known_for="the same design, trained on ImageNet's 1.3 million photographs alone",
        parameters=86_567_656,
        licence="licence not stated",
        side=224,
    ),
    Famous(
        source="timm:deit_small_distilled_patch16_224.fb_in1k",
        title="DeiT-S/16 distilled",
        known_for="learned from a convolutional network through a token of its own",
        parameters=22_436_432,
        licence="Apache-2.0",
        side=224,
    ),
    Famous(
        source="timm:deit3_small_patch16_224.fb_in1k",
        title="DeiT III S/16",
        known_for="what a better recipe makes of the plain design",
        parameters=22_059_496,
        licence="Apache-2.0",
        side=224,
    ),
    Famous(
        source="timm:vit_small_patch16_224.dino",
        title="DINO S/16",
        known_for="trained without labels; its heads cut objects out by themselves",
        parameters=21_665_664,
        licence="Apache-2.0",
        side=224,
    ),
    Famous(
        source="timm:vit_small_patch14_reg4_dinov2.lvd142m",
        title="DINOv2 S/14 with registers",
        known_for="registers keep empty background free of stray attention",
        parameters=22_057_344,
        licence="Apache-2.0",
        side=518,
    ),
    Famous(
        source="timm:vit_small_patch16_dinov3.lvd1689m",
        title="DINOv3 S/16",
        known_for="rotary positions: made for photographs of any size",
        parameters=21_586_944,
        licence="DINOv3 License",
        side=256,
    ),
    Famous(
        source="timm:vit_base_patch16_224.mae",
        title="MAE B/16",
        known_for="learned by filling in three quarters of the patches",
        parameters=85_798_656,
        licence="CC-BY-NC-4.0",
        side=224,
    ),
    Famous(
        source="timm:vit_base_patch32_clip_224.openai_ft_in1k",
        title="CLIP B/32, fine-tuned",
        known_for="learned from captions, then from ImageNet; few and large patches",
        parameters=88_225_000,
        licence="Apache-2.0",
        side=224,
    ),
    Famous(
        source="timm:vit_base_patch16_siglip_224.webli",
        title="SigLIP B/16",
        known_for="learned from captions; no class token, it pools by attention",
        parameters=92_884_224,
        licence="Apache-2.0",
        side=224,
    ),
)
"""In the order of a menu: the classics, then self-supervised ones, then those trained with captions."""
