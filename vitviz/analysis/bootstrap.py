"""Compute bootstrap confidence intervals over images.

Shapes: n images, R bootstrap samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitviz.formatting import number

RESAMPLES = 2000
"""R, the number of bootstrap samples."""
LEVEL = 0.95
"""Confidence level of all intervals."""


@dataclass(frozen=True)
class Estimate:
    """Mean over images, with the bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{number(self.value)} ({number(self.low)} to {number(self.high)})"


def resample(count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Draw bootstrap samples of `count` images with replacement: indices, (R, n)."""
    return random.integers(count, size=(RESAMPLES, count))


def interval(samples: NDArray[np.float64]) -> tuple[float, float]:
    """Return the bounds of the percentile interval of a statistic, given its values in the bootstrap samples, (R,)."""
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(samples, (tail, 1 - tail))
    return float(low), float(high)


def bootstrap_mean(values: Sequence[float] | NDArray[np.float64], seed: int = 0) -> Estimate:
    """Return the mean of values (n,), one per image, with its confidence interval.

    The mean of no value is NaN, as are the bounds for fewer than two values.
    """
    array = np.array(values, float)
    if len(array) < 2:
        return Estimate(float(array.mean()) if len(array) else np.nan, np.nan, np.nan)
    samples = array[resample(len(array), np.random.default_rng(seed))].mean(1)
    return Estimate(float(array.mean()), *interval(samples))
