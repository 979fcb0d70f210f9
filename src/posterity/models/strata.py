"""Regressions in which each site has its own copy of some coefficients."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from posterity.errors import StructureError
from posterity.families.names import names_of, some

AT = "@"
"""The text between the name of a site's own coefficient and the site's name."""


@dataclasses.dataclass(frozen=True)
class Strata:
    """Coefficients of which some exist once for each site: ``age@north``, ``age@south``.

    Attributes:
        names: names of the coefficients of one site.
        own: indices of those that each site has for itself.
        sites: names of the sites.
        named: whether the prior has these names, instead of numbers.
    """

    names: tuple[str, ...]
    own: frozenset[int]
    sites: tuple[str, ...]
    named: bool = True

    @classmethod
    def of(
        cls, prior: Any, own: Sequence[int | str], sites: Sequence[str], classes: int | None = None
    ) -> "Strata":
        """Make the strata of a Gaussian prior, by the names or numbers of coefficients.

        For a multinomial model of ``classes`` they are columns. Each class but the first has a
        coefficient per column, named as ``mild:age``. Raises a StructureError if the prior is no
        single Gaussian or lacks one of the coefficients.
        """
        plain = getattr(prior, "gaussian", False) and not prior.batch_shape
        size = prior.own_size if plain else 0
        known = names_of(prior).get("", ())
        names = known or tuple(map(str, range(size)))
        width = size if classes is None else size // (classes - 1)
        columns = names[:width]
        if classes is not None and all(":" in name for name in columns):
            columns = tuple(name.partition(":")[2] for name in columns)
        places = {columns.index(one) if one in columns else one for one in own}
        if not places <= {*range(width)}:
            raise StructureError(
                found=f"own={list(own)} and a prior {prior!r}",
                expected=f"one Gaussian, and its coefficients among {some(columns)}, or numbers",
            )
        every = (place for place in range(size) if place % width in places)
        return cls(names, frozenset(every), tuple(sorted(sites)), bool(known))

    @property
    def listed(self) -> str:
        """The coefficients that each site has for itself, as text for people."""
        return ", ".join(self.names[place] for place in sorted(self.own))

    @functools.cached_property
    def coefficients(self) -> tuple[tuple[int, str], ...]:
        """The index in ``names`` of each coefficient, and its site, empty if it is shared."""
        return tuple(
            (place, site)
            for place in range(len(self.names))
            for site in (self.sites if place in self.own else ("",))
        )

    def prior(self, before: Any) -> Any:
        """Return a Gaussian prior of these coefficients.

        Conditional on the shared ones, the sites' own are independent, each as in ``before``.
        """
        index = np.array([place for place, _ in self.coefficients])
        owner = np.array([site for _, site in self.coefficients])
        shared = [place for place in range(len(self.names)) if place not in self.own]
        diagonal = before.diagonal
        covariance = np.diag(before.marginal_variance) if diagonal else before.covariance
        within = covariance[:, shared]
        between = within @ np.linalg.solve(covariance[np.ix_(shared, shared)], within.T)
        apart = (owner[:, None] != owner) & (owner[:, None] != "") & (owner != "")
        pairs = np.ix_(index, index)
        wide = np.where(apart, between[pairs], covariance[pairs])
        second = np.diagonal(wide).copy() if diagonal else wide
        law = type(before).from_standard(np.asarray(before.mean)[index], second)
        ends = (AT + site if site else "" for _, site in self.coefficients)
        return law.named([self.names[k] + e for k, e in zip(index, ends, strict=True)])

    def inputs(self, x: Any, site: str) -> np.ndarray:
        """Return the columns (n, coefficients) of one site's records, zero for other sites'.

        Raises a StructureError if ``x`` has another number of columns.
        """
        x = np.asarray(x)
        if x.ndim != 2 or x.shape[1] != len(self.names):
            raise StructureError(
                found=f"inputs of shape {x.shape} at site {site!r}",
                expected=f"records (n, columns), with columns {some(self.names)}",
            )
        index = np.array([place for place, _ in self.coefficients])
        return x[:, index] * np.array([owner in ("", site) for _, owner in self.coefficients])
