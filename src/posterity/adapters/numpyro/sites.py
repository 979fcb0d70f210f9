"""Latent sites of a NumPyro model, and the sets that their values lie in."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from posterity.adapters.checks import library as installed
from posterity.errors import UsageError
from posterity.families.supports import (
    Continuous,
    PositiveDefiniteMatrices,
    PositiveNumbers,
    RealNumbers,
    Simplex,
    UnitInterval,
)
from posterity.families.unconstrained import Supports


def latent_sites(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are drawn and not observed."""
    return {
        name: site
        for name, site in trace.items()
        if site["type"] == "sample" and not site["is_observed"]
    }


def supports_of(trace: Mapping[str, Any]) -> Supports:
    """Of the latent sites; a UsageError if there is none, or one of another kind."""
    latent = latent_sites(trace)
    if not latent:
        raise UsageError(
            found="a model without latent sites",
            expected="one at least, whose posterior is sought",
            fix="Pass the data as the model takes them, and let the rest be sampled.",
        )
    return Supports({name: support_of(name, site) for name, site in latent.items()})


def support_of(name: str, site: Mapping[str, Any]) -> Continuous:
    """Of one site; a UsageError if it is of another kind."""
    constraints = library().distributions.constraints
    constraint, shape = site["fn"].support, tuple(np.shape(site["value"]))
    while hasattr(constraint, "base_constraint"):
        constraint = constraint.base_constraint
    for known, kind in (
        (constraints.real, RealNumbers),
        (constraints.positive, PositiveNumbers),
        (constraints.nonnegative, PositiveNumbers),
        (constraints.unit_interval, UnitInterval),
        (constraints.simplex, Simplex),
        (constraints.positive_definite, PositiveDefiniteMatrices),
    ):
        if type(constraint) is type(known) or _equal(constraint, known):
            return kind(shape)
    if constraint.is_discrete:
        fix = "Sum it out of the model: numpyro.distributions.MixtureSameFamily, or by hand."
    else:
        fix = "Write it as a function of sites that are: low + (high - low) * Beta(1, 1), say."
    raise UsageError(
        found=f"site {name!r} on {constraint!r}",
        expected="real or positive numbers, those between zero and one, a simplex, or positive "
        "definite matrices",
        fix=fix,
    )


def _equal(constraint: Any, known: Any) -> bool:
    """NumPyro compares bounds; traced ones, which depend on other sites, are none of ours."""
    try:
        return bool(constraint == known)
    except Exception:  # of arrays of bounds there is no one truth
        return False


def coordinates_of(supports: Supports) -> list[str]:
    """A name for each unconstrained number, in their order: ``scale``, ``beta[0]``, ``m[1,2]``.

    Those of a simplex are the breaks of a stick, one fewer than its entries, and those of a matrix
    lie on one axis.
    """
    return [
        name if not shape else f"{name}[{','.join(map(str, place))}]"
        for name, support in supports.tree.items()
        for shape in (support.free_shape,)
        for place in np.ndindex(*shape)
    ]


def library() -> Any:
    """NumPyro, with what is used of it."""
    modules = ("distributions", "infer.autoguide", "infer.util")
    return installed(*(f"numpyro.{module}" for module in modules), extra="numpyro")
