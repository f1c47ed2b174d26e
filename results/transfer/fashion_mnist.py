"""Fashion-MNIST as the .npz that gibbsprune takes, from the four files of its authors (Debian: dataset-fashion-mnist).

python results/transfer/fashion_mnist.py /usr/share/datasets/fashion-mnist results/transfer/fashion_mnist.npz
"""

import gzip
import sys
from pathlib import Path

import numpy as np

CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def read(folder: Path, part: str, kind: str, header: int) -> np.ndarray:
    """The bytes behind the header of an IDX file, packed or not."""
    file = next(folder.glob(f"{part}-{kind}-ubyte*"))
    content = file.read_bytes()
    return np.frombuffer(gzip.decompress(content) if file.suffix == ".gz" else content, np.uint8, offset=header)


def main(folder: Path, target: Path) -> None:
    parts = {"train": "train", "test": "t10k"}
    arrays = {}
    for name, part in parts.items():
        arrays[f"x_{name}"] = read(folder, part, "images-idx3", 16).reshape(-1, 28, 28, 1)
        arrays[f"y_{name}"] = read(folder, part, "labels-idx1", 8).astype(np.int64)
    np.savez_compressed(target, class_names=np.array(CLASSES), **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
