"""The verb: posteriors of several sites in, one posterior out."""

import dataclasses
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.tree import leaves
from posterity.arrays.typing import Int
from posterity.artifact import load
from posterity.checks import check_proper
from posterity.errors import StructureError, UsageError
from posterity.families import ExponentialFamily, Mixture, Plate, Product, at_rest
from posterity.fusion.blocks import Aligned, Block, align_plate, at, fuse_block
from posterity.fusion.geometry import Divergence, DivergenceName
from posterity.fusion.matching import Matching, MatchingName
from posterity.fusion.rules import Rule, RuleName
from posterity.ledger import Ledger

Posterior = ExponentialFamily | Mixture | Ledger | str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Fusion:
    """What :func:`fuse` found.

    Attributes:
        posterior: the fused posterior, of the sites' family.
        ledger: with ``rule="product"``, the same as prior plus one aligned factor a site, so
            that a site can be taken out again; else None.
        plates: for each plate (by the path of its block, ``""`` for the whole posterior) the
            matching, its cost and the trace of the objective.
        rule: how matched components became one.
        divergence: the side on which KL was taken.
    """

    posterior: ExponentialFamily
    ledger: Ledger | None
    plates: dict[str, Aligned]
    rule: Rule
    divergence: Divergence

    @property
    def plate(self) -> Aligned:
        """The only plate.

        Raises:
            UsageError: if there are several, or none.
        """
        if len(self.plates) != 1:
            raise UsageError(
                found=f"{len(self.plates)} plates {sorted(self.plates)}",
                expected="one plate",
                fix="Look at .plates[name] instead.",
            )
        return next(iter(self.plates.values()))

    @property
    def matching(self) -> dict[str, Int[np.ndarray, " k"]]:
        """For each site, the fused component of each local one; -1 if it held no data."""
        return self.plate.matching

    @property
    def components(self) -> int:
        """Number of fused components."""
        return self.plate.components

    @property
    def cost(self) -> float:
        """Summed divergence of matched components to their centroid, in nats."""
        return self.plate.cost

    @property
    def trace(self) -> list[float]:
        """The objective of the matching after each accepted change; it never rises."""
        return self.plate.trace


def fuse(
    posteriors: Sequence[Posterior] | Mapping[str, Posterior] | Posterior,
    *,
    components: int | None = None,
    rule: Rule | RuleName | str = "barycenter",
    divergence: Divergence | DivergenceName | str = "reverse",
    matching: Matching | MatchingName | str = "evidence",
    prior: ExponentialFamily | None = None,
    weights: Mapping[str, float] | None = None,
) -> Fusion:
    """Merge posteriors of separate data into one, finding which components correspond.

    Args:
        posteriors: families, ledgers (see :meth:`Ledger.of_site`) or paths of files that hold
            one, at least two; a mapping names the sites, else a ledger names its own, a file
            goes by its stem and the rest are numbered. Plates are matched; a plate that has
            mixing weights and a known prior leaves out components that hold less than one
            observation.
        components: number of fused components of each plate; None finds it. For
            ``matching="kl-fusion"`` an upper bound, as in the paper.
        rule: ``"barycenter"``, the summed-KL mean of matched components, or ``"product"``, the
            prior once plus every site's contribution, which in conjugate models is the
            posterior of the pooled data.
        divergence: ``"reverse"`` for ``KL(global || local)``, ``"forward"`` for
            ``KL(local || global)``.
        matching: ``"evidence"`` (default), ``"hungarian"``, ``"kl-fusion"``, ``"identity"``; see
            :class:`Matching`.
        prior: what sites that are not ledgers started from; a plate's prior has members that
            are all alike, in any number, and equal weights.
        weights: for the barycentre, a positive weight for each site; equal if None.

    Returns:
        A :class:`Fusion`. It does not depend on the order of sites or of components.

    Raises:
        UsageError: fewer than two sites, two of one name, data of one site twice under
            ``product``, or arguments that contradict each other.
        StructureError: sites of different families, blocks or dimensions, or priors that differ.
        ParameterError: NaN, infinite or improper parameters, by site and block.
        ArtifactError: a file that cannot be read.

    Source: claici2020; the choice of the number of components is ours (docs/decisions.md).

    >>> from posterity.families import DiagonalGaussian, Plate
    >>> def site(*means):
    ...     means = np.array(means)[:, None]
    ...     return Plate(DiagonalGaussian.from_standard(means, np.full(means.shape, 0.01)))
    >>> fused = fuse({"a": site(0.0, 5.0), "b": site(5.1, 9.0), "c": site(9.1, 0.1, 5.2)})
    >>> fused.components
    3
    """
    by: Rule = _choice(Rule, rule, "rule")
    side: Divergence = _choice(Divergence, divergence, "divergence")
    how: Matching = _choice(Matching, matching, "matching")
    sites = _read(posteriors)
    _check_structure({name: site.posterior for name, site in sites.items()})
    _check_prior(prior, next(iter(sites.values())).posterior)
    prior = None if prior is None else at_rest(prior)
    if by is Rule.PRODUCT:
        _check_product(sites, prior, weights)
    block = Block(
        names=list(sites),
        posteriors=[site.posterior for site in sites.values()],
        priors=[prior if site.prior is None else site.prior for site in sites.values()],
        weights=_site_weights(list(sites), weights),
    )
    plates = {
        path: align_plate(plate, path, how, side, components) for path, plate in _plates(block)
    }
    if components is not None and not plates:
        raise UsageError(
            found=f"components={components} for {block.posteriors[0]!r}",
            expected="components only where there is a Plate",
            fix="Leave components out.",
        )
    posterior, ledger = fuse_block(block, plates, by, side)
    check_proper(posterior, "the fused posterior")
    return Fusion(posterior, ledger, plates, by, side)


# --- what comes in -------------------------------------------------------------------------------


def _choice(kind: Any, value: Any, argument: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise UsageError(
            found=f"{argument}={value!r}",
            expected=f"one of {[member.value for member in kind]}",
            fix=f"Choose one of these for {argument}.",
        ) from None


class Site(NamedTuple):
    """A posterior, its prior if known, and the ledger's names of those who contributed."""

    posterior: ExponentialFamily
    prior: ExponentialFamily | None
    contributors: tuple[str, ...]


def _read(
    posteriors: Sequence[Posterior] | Mapping[str, Posterior] | Posterior,
) -> dict[str, Site]:
    """What is known of each site, by its name, sorted."""
    if isinstance(posteriors, str | os.PathLike | ExponentialFamily | Mixture | Ledger):
        posteriors = [posteriors]
    named = posteriors.items() if isinstance(posteriors, Mapping) else _unnamed(posteriors)
    found: dict[str, Site] = {}
    for name, value in named:
        value, fallback = _open(value)
        name = name if name is not None else fallback or f"site-{len(found):04d}"
        if name in found:
            raise UsageError(
                found=f"two posteriors of site {name!r}",
                expected="each site once",
                fix="Leave one out, or pass a mapping that names each site differently.",
            )
        found[name] = _site(name, value)
    if len(found) < 2:
        raise UsageError(
            found=f"{len(found)} site" + ("s" if not found else ""),
            expected="at least two sites to fuse",
            fix="Pass the posteriors of all sites together.",
        )
    return dict(sorted(found.items()))


def _unnamed(posteriors: Sequence[Posterior]) -> list[tuple[str | None, Posterior]]:
    return [(None, posterior) for posterior in posteriors]


def _open(value: Posterior) -> tuple[Any, str | None]:
    """The object behind a path, and the name it brings."""
    stem = None
    if isinstance(value, str | os.PathLike):
        value, stem = load(value), Path(value).stem  # type: ignore[assignment]
    if isinstance(value, Ledger) and value.sites:
        return value, "+".join(value.sites)
    return value, stem


def _site(name: str, value: Any) -> Site:
    place = f"site {name!r}"
    if isinstance(value, Ledger):
        return Site(value.posterior, value.prior, value.sites)
    if isinstance(value, Mixture) or not isinstance(value, ExponentialFamily):
        raise StructureError(
            found=f"a {type(value).__name__} in {place}",
            expected="an exponential family, a Ledger, or the path of a file with one",
            fix="Wrap components without labels as posterity.Plate(members, weights).",
        )
    check_proper(value, place)
    return Site(at_rest(value), None, ())


def _check_structure(posteriors: Mapping[str, ExponentialFamily]) -> None:
    (first, expected), *rest = posteriors.items()
    _check_single(first, expected)
    for name, posterior in rest:
        if posterior.outline(plates=False) != expected.outline(plates=False):
            raise StructureError(
                found=f"{posterior!r} at site {name!r}",
                expected=f"the family, blocks and dimensions of site {first!r}: "
                f"{expected!r} (plates may differ in size)",
                fix="Fit the same model at every site.",
            )


def _check_prior(prior: ExponentialFamily | None, posterior: ExponentialFamily) -> None:
    if prior is not None and prior.outline(plates=False) != posterior.outline(plates=False):
        raise StructureError(
            found=f"prior {prior!r}",
            expected=f"the family, blocks and dimensions of the posteriors: {posterior!r} "
            "(plates may differ in size)",
            fix="Give the prior that the posteriors were fitted with; wrap that of one component "
            "as posterity.Plate(stack([member])).",
        )
    if prior is not None:
        check_proper(prior, "the prior")


def _check_single(name: str, posterior: ExponentialFamily) -> None:
    if posterior.batch_shape:
        raise StructureError(
            found=f"a batch of shape {posterior.batch_shape} at site {name!r}",
            expected="one posterior a site",
            fix="If the batch is of exchangeable components, wrap it: posterity.Plate(batch).",
        )


def _check_product(
    sites: Mapping[str, Site],
    prior: ExponentialFamily | None,
    weights: Mapping[str, float] | None,
) -> None:
    if weights is not None:
        raise UsageError(
            found="weights with rule='product'",
            expected="weights for rule='barycenter' only",
            fix="Leave weights out: a product counts every observation once.",
        )
    bare = [name for name, site in sites.items() if site.prior is None]
    if prior is None and bare:
        raise UsageError(
            found=f"no prior for {bare[:3]}" + (" and others" if len(bare) > 3 else ""),
            expected="the prior of every site for rule='product', which counts it once",
            fix="Save ledgers made by Ledger.of_site(site, prior=..., posterior=...), or pass "
            "prior=.",
        )
    owner: dict[str | bytes, str] = {}
    for name, site in sites.items():
        # A ledger says whose data it holds; of a bare posterior only the content can tell.
        for key in site.contributors or (_content(site.posterior),):
            if (twin := owner.setdefault(key, name)) != name:
                raise _counted_twice(key, twin, name)
    _warn_of_twins(sites)


def _warn_of_twins(sites: Mapping[str, Site]) -> None:
    """Sites of different names may well agree to the last bit, if data are counts; or be copies."""
    seen: dict[bytes, str] = {}
    for name, site in sites.items():
        if (twin := seen.setdefault(_content(site.posterior), name)) != name:
            warnings.warn(
                f"sites {twin!r} and {name!r} hold the same posterior to the last bit: if one is a "
                "copy of the other, its data count twice",
                stacklevel=4,
            )


def _content(posterior: ExponentialFamily) -> bytes:
    return b"".join(np.asarray(leaf).tobytes() for leaf in leaves(posterior))


def _counted_twice(key: str | bytes, first: str, second: str) -> UsageError:
    what = f"data of site {key!r}" if isinstance(key, str) else "the same posterior"
    return UsageError(
        found=f"{what} in both {first!r} and {second!r}",
        expected="each site's data once: a product would count them twice",
        fix="Merge ledgers that share a site with | first; leave a copy out.",
    )


def _site_weights(names: list[str], weights: Mapping[str, float] | None) -> np.ndarray:
    if weights is None:
        return np.ones(len(names))
    if set(weights) != set(names) or not all(0 < w < np.inf for w in weights.values()):
        raise UsageError(
            found=f"weights {dict(weights)}",
            expected=f"a positive weight for each of {names}",
            fix="Name every site once, with a finite positive weight.",
        )
    return np.array([weights[name] for name in names], dtype=float)


def _plates(block: Block, path: str = "") -> list[tuple[str, Block]]:
    """Plates anywhere in the posterior, by path."""
    first = block.posteriors[0]
    if isinstance(first, Plate):
        return [(path, block)]
    if not isinstance(first, Product):
        return []
    inner = ((at(path, name), block.child(name)) for name in first.blocks)
    return [found for name, child in inner for found in _plates(child, name)]
