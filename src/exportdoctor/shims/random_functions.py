"""Which functions of torch draw random numbers, by their names."""

from __future__ import annotations

import re

_RANDOM = re.compile(
    r"rand|dropout|bernoulli|nomial|normal(?!ize)|poisson|exponential|uniform|cauchy|geometric|gumbel|fractional_max_pool"
    r"|dirichlet|standard_gamma|rrelu|orthogonal_?$|lobpcg|lowrank"
)
"""`nomial` is that of binomial and multinomial."""


def has_random_name(name: str) -> bool:
    """Whether a function or method of this name gives other values each time, from a generator of random numbers."""
    return _RANDOM.search(name) is not None
