"""Settings of all tests."""

import torch
from hypothesis import settings

settings.register_profile("gibbsprune", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("gibbsprune")

torch.set_num_threads(1)  # tests run side by side: more threads would only wait for each other
