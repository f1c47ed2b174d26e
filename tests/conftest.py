"""Settings of all tests."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("gibbsprune", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("gibbsprune")

torch.set_num_threads(1)  # tests run side by side: more threads would only wait for each other


@pytest.fixture(scope="module")
def one_thread():
    """Small images gain nothing from several threads, and on a busy machine lose much."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
