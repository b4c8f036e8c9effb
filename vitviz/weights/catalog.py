"""List published models with the facts that a menu shows before a download.

Sources of the facts, which a test compares with the installed libraries:

- Architecture, `classes` and `parameters`: the `meta` of torchvision's weights; for timm and transformers, the built
  model. All files are in float32, with four bytes per parameter.
- `licence`: timm's `pretrained_cfg`; for google/vit-base-patch16-224 its model card. torchvision states none for these
  weights.
- `input_size`: the size that the weights' own preprocessing produces.
"""

from dataclasses import dataclass

from vitviz.resources import PUBLISHED


@dataclass(frozen=True)
class CatalogEntry:
    """A published model.

    Args:
        source: name for `vitviz.load`.
        title: display name.
        parameters: number of parameters in the published file.
        known_for: distinguishing features of the model.
        input_size: height and width of the model's own input in pixels.
        licence: licence of the weights: an SPDX identifier if there is one, else the licence's own name.
        classes: number of classes; 0 without a classifier.
    """

    source: str
    title: str
    parameters: int
    known_for: str
    input_size: int = 224
    licence: str = "Apache-2.0"
    classes: int = 0

    @property
    def size(self) -> int:
        """Return the number of bytes to download."""
        return 4 * self.parameters


CATALOG: tuple[CatalogEntry, ...] = (
    CatalogEntry(
        "hf:google/vit-base-patch16-224", "ViT-B/16 (Google)", 86_567_656,
        known_for="the first Vision Transformer, trained on 14 million labelled photographs", classes=1000,
    ),
    CatalogEntry(
        "torchvision:vit_b_16.IMAGENET1K_V1", "ViT-B/16 (torchvision)", 86_567_656, licence="licence not stated",
        known_for="the same design, trained on ImageNet's 1.3 million photographs alone", classes=1000,
    ),
    CatalogEntry(
        "timm:deit_small_distilled_patch16_224.fb_in1k", "DeiT-S/16 distilled", 22_436_432,
        known_for="distilled from a convolutional network through an additional token", classes=1000,
    ),
    CatalogEntry(
        "timm:deit3_small_patch16_224.fb_in1k", "DeiT III S/16", 22_059_496,
        known_for="the plain design with a better training recipe", classes=1000,
    ),
    CatalogEntry(
        "timm:swin_tiny_patch4_window7_224.ms_in1k", "Swin-T", 28_288_354, licence="MIT",
        known_for="patches attend only within windows, and merge into larger ones from stage to stage", classes=1000,
    ),
    CatalogEntry(
        PUBLISHED, "DINOv2 S/14 with registers, 1,000 classes", 22_827_112,
        known_for="registers keep empty background free of stray attention; a linear classifier for ImageNet",
        classes=1000,
    ),
    CatalogEntry(
        "timm:vit_small_patch16_224.dino", "DINO S/16", 21_665_664,
        known_for="trained without labels; its attention heads outline objects",
    ),
    CatalogEntry(
        "timm:vit_small_patch14_reg4_dinov2.lvd142m", "DINOv2 S/14 with registers", 22_057_344,
        known_for="registers keep empty background free of stray attention", input_size=518,
    ),
    CatalogEntry(
        "timm:vit_small_patch16_dinov3.lvd1689m", "DINOv3 S/16", 21_586_944, licence="DINOv3 License",
        known_for="rotary positions: made for photographs of any size", input_size=256,
    ),
    CatalogEntry(
        "timm:vit_base_patch16_224.mae", "MAE B/16", 85_798_656, licence="CC-BY-NC-4.0",
        known_for="trained to fill in three quarters of the patches",
    ),
    CatalogEntry(
        "timm:vit_base_patch32_clip_224.openai_ft_in1k", "CLIP B/32, fine-tuned", 88_225_000,
        known_for="trained on captions, then on ImageNet; few and large patches", classes=1000,
    ),
    CatalogEntry(
        "timm:vit_base_patch16_siglip_224.webli", "SigLIP B/16", 92_884_224,
        known_for="trained on captions; no class token, attention pooling",
    ),
)  # fmt: skip
"""Models in menu order: supervised, self-supervised, trained with captions."""
