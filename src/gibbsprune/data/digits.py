"""The embedded default: scikit-learn's 8 × 8 handwritten digits, no download."""

from __future__ import annotations

import numpy as np
import torch

from ..errors import needed
from .arrays import Arrays


def load_digits() -> Arrays:
    """1 797 grey images of ten digits, values 0..16 scaled to 0..255, split 80/20 within each class.

    The split is fixed and draws no random numbers: in the order of the file, every fifth image of each class
    is a test image.
    """
    bundle = needed("sklearn.datasets", "the data set digits", "demo").load_digits()
    images, labels = np.asarray(bundle.images), np.asarray(bundle.target, dtype=np.int64)
    x = torch.from_numpy(np.rint(images * (255 / 16)).astype(np.uint8)[..., None])
    y = torch.from_numpy(labels)
    test = torch.zeros(len(y), dtype=torch.bool)
    for digit in range(10):
        test[(y == digit).nonzero().squeeze(1)[4::5]] = True
    return Arrays("digits", x[~test], y[~test], x[test], y[test], classes=10, class_names=tuple("0123456789"))
