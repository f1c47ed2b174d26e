"""One thread per worker: with as many workers as cores, more threads only wait for each other."""

import os

import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
