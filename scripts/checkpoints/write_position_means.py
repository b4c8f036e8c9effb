"""Write the means of positions, `positions.safetensors`, into a checkpoint folder, from 100 photographs of a folder.

python scripts/checkpoints/write_position_means.py checkpoints/vit-cifar10 DEFAULT_PHOTOGRAPHS
"""

from __future__ import annotations

import argparse

from vitviz.analysis.edges import DEFAULT_PHOTOGRAPHS, position_means
from vitviz.weights.checkpoint import load_folder, save_means


def main() -> None:
    """Compute and write the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", help="folder of a checkpoint that vitviz saved")
    parser.add_argument("photographs", help="folder of photographs")
    arguments = parser.parse_args()
    model = load_folder(arguments.checkpoint)
    model.position_means = position_means(model, arguments.photographs, limit=DEFAULT_PHOTOGRAPHS)
    save_means(model, arguments.checkpoint)


if __name__ == "__main__":
    main()
