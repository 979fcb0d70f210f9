"""Mixing weights of a plate, as counts: what a relabelling carries along.

A Dirichlet's concentrations and the sticks of a Dirichlet process (blei2006) are both linear in
the expected number of observations of each component, and only these can be matched: which
stick comes first means nothing across sites.
"""

import numpy as np
from jaxtyping import Float

from posterity.errors import StructureError
from posterity.families import Beta, Dirichlet

Array = np.ndarray
Weights = Dirichlet | Beta


def counts(weights: Weights, prior: Weights | None) -> Float[Array, " k"]:
    """Expected observations of each component.

    Without a prior, a Dirichlet's are all of ``α``; the first parameter of a process's sticks
    is one in any prior.
    """
    if isinstance(weights, Beta):
        return np.asarray(weights.a) - 1
    return np.asarray(weights.concentration) - (0.0 if prior is None else _each(prior))


def total_concentration(weights: Weights, prior: Weights | None, site: str) -> float:
    """The prior's concentration over all components together, zero if it is not known.

    Raises:
        StructureError: the prior tells components apart, which plates cannot.
    """
    if isinstance(weights, Beta):
        # Nothing comes after the last stick, so it shows the prior's second parameter.
        total = float(weights.b[-1])
        ones = np.ones(1) if prior is None else np.asarray(prior.a)  # pyright: ignore
        rest = np.full(1, total) if prior is None else np.asarray(prior.b)  # pyright: ignore
        _check_exchangeable(bool((ones == 1).all() and np.allclose(rest, total)), prior, site)
        return total
    if prior is None:
        return 0.0
    alpha = np.asarray(prior.concentration)  # pyright: ignore
    _check_exchangeable(bool(np.allclose(alpha, alpha[0], rtol=1e-12, atol=0.0)), prior, site)
    return _each(prior) * weights.concentration.shape[-1]


def check_equal(totals: list[float], names: list[str]) -> None:
    """Refuse sites whose priors over mixing weights differ in total concentration."""
    for total, name in zip(totals, names, strict=True):
        if not np.isclose(total, totals[0], rtol=1e-9, atol=0.0):
            raise StructureError(
                found=f"prior concentrations {totals[0]:g} at {names[0]!r} and {total:g} at "
                f"{name!r}, over all components together",
                expected="one prior, counted once",
                fix="Give all sites one total (each component's is the total over their number), "
                "or use rule='barycenter'.",
            )


def _each(prior: Weights) -> float:
    """A Dirichlet prior's concentration at each component: plates of any size share it."""
    return float(prior.concentration[..., 0])  # pyright: ignore


def _check_exchangeable(fair: bool, prior: Weights | None, site: str) -> None:
    if not fair:
        raise StructureError(
            found=f"a prior over mixing weights that tells components apart at site {site!r}: "
            f"{prior}",
            expected="equal concentrations, or sticks with a = 1 and one b",
            fix="Use an exchangeable prior: labels mean nothing in a Plate.",
        )


def prior_weights(like: Weights, concentration: float, size: int) -> Weights:
    """The exchangeable prior over ``size`` components with this total concentration."""
    if isinstance(like, Beta):
        return Beta.from_standard(np.ones(size), np.full(size, concentration))
    return Dirichlet.from_standard(np.full(size, concentration / size))


def contribution(like: Weights, counted: Float[Array, " k"]) -> Weights:
    """What these counts add to the natural parameters of a prior; linear in the counts."""
    if isinstance(like, Beta):
        later = np.concatenate([np.cumsum(counted[::-1])[::-1][1:], [0.0]])
        return Beta(counted, later)
    return Dirichlet(counted)
