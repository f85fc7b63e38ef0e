"""Random weights that depend only on their names, and that keep activations in range."""

from __future__ import annotations

import math
import zlib

import numpy as np
import onnx_ir as ir

BIAS_STD = 0.1
CENTRING = 0.5
"""The part of its mean that a filter behind a ReLU loses.

ReLU outputs are positive. Plain random filters keep their common mean and average the differences
away: after fifty layers all inputs give nearly the same output, and no test detects a wrong kernel.
Filters of mean zero make rounding errors grow until no comparison holds. Half of the mean keeps
both effects small.
"""


def filter_std(fan_in: int, centring: float) -> float:
    """Scale of weights that keeps the variance of the values before the ReLUs.

    He et al. 2015, arXiv:1502.01852, for filters that lose the part `centring` of their mean.
    """
    # a = relu(unit normal): E[a^2] = 1/2, E[a]^2 = 1/(2 pi); (1 - centring)^2 of that stays
    passed = 1 - (1 - (1 - centring) ** 2) / math.pi
    return math.sqrt(2 / passed / fan_in)


def random_tensor(
    name: str, shape: tuple[int, ...], std: float, centring: float = 0, mean: float = 0
) -> ir.TensorProtocol:
    """Uniform float32 numbers that depend only on the arguments.

    Each filter (index of the first axis) loses the part `centring` of its own mean.
    """
    values = np.random.default_rng(zlib.crc32(name.encode())).random(shape, dtype=np.float32)
    filters = values.reshape(shape[0], -1)
    filter_means = filters.mean(axis=1, keepdims=True, dtype=np.float64)
    filters -= (0.5 + centring * (filter_means - 0.5)).astype(np.float32)
    filters *= np.float32(std * math.sqrt(12))  # numbers uniform in [0, 1) have variance 1/12
    if mean:
        filters += np.float32(mean)
    return ir.tensor(values, name=name)
