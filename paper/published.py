"""The numbers that the paper prints, in percent. Its figures carry none in the source."""

from __future__ import annotations

#: Table I: where the parameters are, in percent, with batch norm as four values per channel.
PARAMETERS = {
    "resnet20": {"first conv": 0.16, "batch norm": 1.01, "dense": 0.24, "other convs": 98.60},
    "resnet56": {"first conv": 0.05, "batch norm": 0.95, "dense": 0.08, "other convs": 98.93},
}

DENSE = {"resnet20": 90.7, "resnet56": 92.2}

#: Tables II and IV: accuracy by structure, network and Hamiltonian.
HAMILTONIANS = {
    "weight": {
        "resnet20": {"binary": 86.6, "sign": 85.7, "square": 87.5, "abs": 86.9},
        "resnet56": {"binary": 89.1, "sign": 87.7, "square": 89.8, "abs": 89.2},
    },
    "kernel": {
        "resnet20": {"binary": 83.5, "sign": 82.0, "quadratic": 84.8},
        "resnet56": {"binary": 87.7, "sign": 86.5, "quadratic": 88.2},
    },
    "filter": {
        "resnet20": {"binary": 82.3, "sign": 79.7, "quadratic": 83.5},
        "resnet56": {"binary": 87.0, "sign": 86.3, "quadratic": 87.5},
    },
}

#: Table III: accuracy by network, method and sparsity.
RANDOM = {
    "resnet20": {
        "random-mask": {0.5: 89.3, 0.75: 87.2, 0.9: 83.2, 0.95: 79.8},
        "reinit": {0.5: 88.6, 0.75: 86.3, 0.9: 83.4, 0.95: 79.4},
        "gibbs": {0.5: 89.9, 0.75: 89.0, 0.9: 87.5, 0.95: 85.2},
    },
    "resnet56": {
        "random-mask": {0.5: 91.2, 0.75: 90.0, 0.9: 87.3, 0.95: 84.6},
        "reinit": {0.5: 90.3, 0.75: 89.1, 0.9: 86.7, 0.95: 84.5},
        "gibbs": {0.5: 91.2, 0.75: 90.8, 0.9: 89.8, 0.95: 88.5},
    },
}

#: Text to Figure 4: points lost against the dense network at a sparsity of 0.95, stretched (by how much is not said).
STRETCHED_LOSS = {"resnet20": 0.90, "resnet56": 0.45}
