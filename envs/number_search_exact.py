"""Exact success probabilities of number search, by dynamic programming in rational numbers.

Throughout, n is how many integers still fit the replies (they are always an interval, and only its length matters), k is
how many guesses are left, and the secret is uniform.
"""

from fractions import Fraction
from functools import cache


@cache
def _best(n: int, k: int) -> tuple[int, int]:
    """(secrets found, minus guesses spent on all n secrets) of the best deterministic policy, compared in this order.

    best(n, k) = max over g of  (1, -n) + best(g-1, k-1) + best(n-g, k-1),   and a wasted turn gives (0, -n) + best(n, k-1).
    """
    if n == 0 or k == 0:
        return 0, 0
    found, spent = _best(n, k - 1)
    options = [(found, spent - n)]
    for g in range(1, n + 1):
        below, above = _best(g - 1, k - 1), _best(n - g, k - 1)
        options.append((1 + below[0] + above[0], below[1] + above[1] - n))
    return max(options)


def optimal_success(n: int, k: int) -> Fraction:
    """The highest success probability of any policy, deterministic or not: `min(n, 2^k - 1) / n`."""
    return Fraction(_best(n, k)[0], n)


def optimal_mean_guesses(n: int, k: int) -> Fraction:
    """Fewest guesses on average among the policies of optimal success; an episode that fails counts k."""
    return Fraction(-_best(n, k)[1], n)


def first_guess_success(n: int, k: int) -> list[Fraction]:
    """Success probability of each first guess 1..n, followed by optimal play; shape (n,)."""
    return [Fraction(1 + _best(g - 1, k - 1)[0] + _best(n - g, k - 1)[0], n) for g in range(1, n + 1)]


@cache
def _plausible_found(n: int, k: int) -> Fraction:
    """Expected secrets found, of n: F(n, k) = 1/n sum_g [1 + F(g-1, k-1) + F(n-g, k-1)] = 1 + 2/n sum_{m<n} F(m, k-1)."""
    if n == 0 or k == 0:
        return Fraction(0)
    return 1 + Fraction(2, n) * sum((_plausible_found(m, k - 1) for m in range(n)), Fraction(0))


def plausible_success(n: int, k: int) -> Fraction:
    """Success probability of guessing uniformly among the integers that fit all replies."""
    return _plausible_found(n, k) / n


@cache
def _plausible_found_between(below: int, above: int, k: int) -> Fraction:
    """The same for one secret with `below` fitting integers under it and `above` over it.

    S(b, a, k) = (1 + sum_{i<b} S(i, a, k-1) + sum_{i<a} S(b, i, k-1)) / (b + a + 1)
    """
    if k == 0:
        return Fraction(0)
    under = sum((_plausible_found_between(i, above, k - 1) for i in range(below)), Fraction(0))
    over = sum((_plausible_found_between(below, i, k - 1) for i in range(above)), Fraction(0))
    return (1 + under + over) / (below + above + 1)


def plausible_success_by_secret(n: int, k: int) -> list[Fraction]:
    """Success probability of the plausible player on each secret 1..n; shape (n,); its mean is `plausible_success`."""
    return [_plausible_found_between(secret - 1, n - secret, k) for secret in range(1, n + 1)]


def uniform_success(n: int, k: int, *, repeats: bool) -> Fraction:
    """Success probability of guessing 1..n blindly: `1 - (1 - 1/n)^k` with repeats, `min(k, n) / n` without."""
    return 1 - Fraction(n - 1, n) ** k if repeats else Fraction(min(k, n), n)
