"""Load peft adapters (LoRA and others), merged into the weights of their base model."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from vitviz.errors import first_line
from vitviz.images.torchvision_import import import_torchvision
from vitviz.model.vit import ViT
from vitviz.weights import checks
from vitviz.weights.checks import CheckpointError, attach, read_json
from vitviz.weights.objects import about_object, convert_transformers_object, quiet_transformers
from vitviz.weights.remote import hub_folder
from vitviz.weights.transformers_folder import read_preprocessor

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def load_adapter_folder(path: str | os.PathLike[str]) -> ViT:
    """Load the base model of adapters, merge the adapters, and convert the result: float32, in eval mode.

    Adapter files do not contain class names. Preprocessing is read from the image processor in the folder, or else
    from the base model's; if neither has one, preprocessing is assumed.

    Args:
        path: a folder that `PeftModel.save_pretrained` or a `Trainer` wrote, with `adapter_config.json` and
            `adapter_model.safetensors`. Its base model is a local folder or a Hugging Face repository.

    Raises:
        CheckpointError: if peft is not installed, or the files are not adapters for an image model.
        RemoteError: if the base model is neither cached nor reachable.
    """
    folder = Path(path)
    base = read_json(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise CheckpointError(
            f"Expected the name of the base model in {ADAPTER_CONFIG}, got {base!r:.80}. Merge the adapters and save "
            "the model: merge_and_unload().save_pretrained(folder)."
        )
    libraries = _libraries(folder)
    base_folder = Path(base) if Path(base).is_dir() else hub_folder(base)
    try:
        with quiet_transformers():
            merged = _merge(folder, base_folder, *libraries)
    except Exception as error:  # errors of peft and transformers share no base class
        raise CheckpointError(
            f"Expected adapters of an image model in {str(folder)!r}, got an error: {first_line(error):.200}. Merge "
            "them yourself, and load the model."
        ) from error
    own, name = read_preprocessor(folder), folder.resolve().name
    model = convert_transformers_object(merged)
    about = about_object(merged, model.config, preprocessor=read_preprocessor(base_folder) if own is None else own)
    source = f"adapters of {name}, merged into {base_folder.name if Path(base).is_dir() else base}"
    return attach(model, replace(about, name=name, source=source))


def _libraries(folder: Path) -> tuple[Any, Any]:
    """Return peft and transformers.

    Raises:
        CheckpointError: if one of them cannot be imported.
    """
    import_torchvision()  # transformers imports torchvision, whose import may fail
    try:
        return import_module("peft"), import_module("transformers")
    except ImportError as error:
        raise CheckpointError(
            f"Expected the packages peft and transformers to merge the adapters in {str(folder)!r}, got: {error}. Run "
            "pip install peft transformers, or save the merged model: merge_and_unload().save_pretrained(folder)."
        ) from error


def _merge(folder: Path, base: Path, peft: Any, transformers: Any) -> Any:
    """Return the transformers model in `base`, with the adapters in `folder` merged."""
    path = checks.need_file(folder / ADAPTER_WEIGHTS)
    tensors = checks.read_weights(path)
    checks.check_tensors(tensors, path)
    head = next((tensor for name, tensor in tensors.items() if name.endswith("classifier.weight")), None)
    mapping = read_json(folder / ADAPTER_CONFIG).get("auto_mapping") or {}
    if head is not None:
        model = transformers.AutoModelForImageClassification.from_pretrained(
            base, num_labels=len(head), ignore_mismatched_sizes=True
        )
    elif "ForImageClassification" in str(mapping.get("base_model_class")):
        model = transformers.AutoModelForImageClassification.from_pretrained(base)
    else:
        model = transformers.AutoModel.from_pretrained(base)
    return peft.PeftModel.from_pretrained(model.float(), folder).merge_and_unload()
