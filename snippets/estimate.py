"""Mean and spread over seeds: the only way a sampled number is printed."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

SEEDS = range(10)
"""The seeds of the pages; a test of a sampled claim uses others."""
FEWEST = 8


@dataclass(frozen=True)
class Estimate:
    """One number, measured once for each seed.

    Attributes:
        values: At least 8 values, one a seed.

    Raises:
        ValueError: Fewer than 8 values.
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse too few seeds."""
        if len(self.values) < FEWEST:
            raise ValueError(
                f"{len(self.values)} seeds; an estimate needs {FEWEST}"
            )

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        """Sample standard deviation over the seeds, not of the mean."""
        return statistics.stdev(self.values)

    def __format__(self, spec: str) -> str:
        """`f"{estimate:.2f}"` is "1.84 ± 0.09", with a real minus sign."""
        text = f"{self.mean:{spec}} ± {self.spread:{spec}}"
        return text.replace("-", "−")


def over_seeds(
    measure: Callable[[int], float], seeds: Iterable[int] = SEEDS
) -> Estimate:
    """Measure once for each seed.

    Args:
        measure: Takes a seed, returns one number.
        seeds: At least 8.
    """
    return Estimate(tuple(float(measure(seed)) for seed in seeds))


def each_over_seeds(
    measure: Callable[[int], Sequence[float]], seeds: Iterable[int] = SEEDS
) -> list[Estimate]:
    """Measure several numbers at once for each seed.

    Args:
        measure: Takes a seed, returns K numbers, always in one order.
        seeds: At least 8.

    Returns:
        K estimates, in that order.

    Raises:
        ValueError: Two seeds gave a different count of numbers.
    """
    runs = [[float(x) for x in measure(seed)] for seed in seeds]
    return [Estimate(column) for column in zip(*runs, strict=True)]
