"""What comes in: posteriors, ledgers or files, by the names of their sites, and fit to be fused."""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.tree import leaves
from posterity.arrays.typing import Float
from posterity.artifact import Posterior, open_artifact
from posterity.artifact.columns import aligned, columns_of
from posterity.checks import check_proper
from posterity.errors import StructureError, UsageError
from posterity.families import Distribution, ExponentialFamily, at_rest
from posterity.fusion.rules import Rule
from posterity.ledger import Ledger

Fusible = Posterior | str | os.PathLike[str]


class Site(NamedTuple):
    """What one site brings: its posterior, and its prior where that is known.

    ``contributors`` are those whose data it holds, where a ledger names them.
    """

    posterior: ExponentialFamily
    prior: ExponentialFamily | None
    contributors: tuple[str, ...] = ()


def read_sites(
    posteriors: Sequence[Fusible] | Mapping[str, Fusible] | Fusible,
    prior: ExponentialFamily | None = None,
) -> dict[str, Site]:
    """Sites by name, sorted, all of one structure; ``prior`` is of those who bring none.

    Coefficients that files name are put in one order.
    """
    opened: dict[str, Any] = {}
    columns: dict[str, tuple[str, ...]] = {}
    for name, value in _named(posteriors):
        value, own, names = _opened(value)
        name = name if name is not None else own or f"site-{len(opened):04d}"
        if name in opened:
            raise UsageError(
                found=f"two posteriors of site {name!r}",
                expected="each site once",
                fix="Leave one out, or pass a mapping that names each site differently.",
            )
        opened[name], columns[name] = value, names
    found = {name: _site(name, value) for name, value in aligned(opened, columns)[0].items()}
    if len(found) < 2:
        raise UsageError(
            found=f"{len(found)} site" + ("s" if not found else ""),
            expected="at least two sites to fuse",
            fix="Pass the posteriors of all sites together.",
        )
    found = dict(sorted(found.items()))
    _check_structure(found, prior)
    rest = None if prior is None else at_rest(prior)
    return {n: s._replace(prior=rest) if s.prior is None else s for n, s in found.items()}


def _named(posteriors: Any) -> Iterable[tuple[str | None, Any]]:
    if isinstance(posteriors, Mapping):
        return posteriors.items()
    alone = isinstance(posteriors, str | os.PathLike | Distribution | Ledger)
    return [(None, posterior) for posterior in ([posteriors] if alone else posteriors)]


def _opened(value: Fusible) -> tuple[Any, str | None, tuple[str, ...]]:
    """The object behind a path, the name it brings, and those of its coefficients."""
    stem, names = None, ()
    if isinstance(value, str | os.PathLike):
        (value, told), stem = open_artifact(value), Path(value).stem
        names = columns_of(value, told.provenance)
    own = "+".join(value.sites) if isinstance(value, Ledger) else ""
    return value, own or stem, names


def _site(name: str, value: Any) -> Site:
    if isinstance(value, Ledger):
        return Site(value.posterior, value.prior, value.sites)
    if not isinstance(value, ExponentialFamily):
        raise StructureError(
            found=f"a {type(value).__name__} in site {name!r}",
            expected="an exponential family, a Ledger, or the path of a file with one",
            fix="Wrap components without labels as posterity.Plate(members, weights).",
        )
    check_proper(value, f"site {name!r}")
    return Site(at_rest(value), None)


def _check_structure(sites: Mapping[str, Site], prior: ExponentialFamily | None) -> None:
    first, expected = next((name, site.posterior) for name, site in sites.items())
    if expected.batch_shape:
        raise StructureError(
            found=f"a batch of shape {expected.batch_shape} at site {first!r}",
            expected="one posterior a site",
            fix="If the batch is of exchangeable components, wrap it: posterity.Plate(batch).",
        )
    outline = expected.outline(plates=False)
    for name, (posterior, *_) in sites.items():
        if posterior.batch_shape or posterior.outline(plates=False) != outline:
            raise StructureError(
                found=f"{posterior!r} at site {name!r}",
                expected=f"the family, blocks and dimensions of site {first!r}: "
                f"{expected!r} (plates may differ in size)",
                fix="Fit the same model at every site.",
            )
    if prior is None:
        return
    if prior.batch_shape or prior.outline(plates=False) != outline:
        raise StructureError(
            found=f"prior {prior!r}",
            expected=f"the family, blocks and dimensions of the posteriors: {expected!r} "
            "(plates may differ in size)",
            fix="Give the prior that the posteriors were fitted with; wrap that of one component "
            "as posterity.Plate(stack([member])).",
        )
    check_proper(prior, "the prior")


def check_counted_once(sites: Mapping[str, Site]) -> None:
    """Refuse sites without a prior, and data that a product would count twice; warn of copies."""
    bare = [name for name, site in sites.items() if site.prior is None]
    if bare:
        raise UsageError(
            found=f"no prior for {bare[:3]}" + (" and others" if len(bare) > 3 else ""),
            expected="the prior of every site for rule='product', which counts it once",
            fix="Save ledgers made by Ledger.of_site(site, prior=..., posterior=...), or pass "
            "prior=.",
        )
    owner: dict[str | bytes, str] = {}
    seen: dict[bytes, str] = {}
    for name, site in sites.items():
        content = b"".join(np.asarray(leaf).tobytes() for leaf in leaves(site.posterior))
        # A ledger says whose data it holds; of a bare posterior only the content can tell.
        for key in site.contributors or (content,):
            if (twin := owner.setdefault(key, name)) != name:
                what = f"data of site {key!r}" if isinstance(key, str) else "the same posterior"
                raise UsageError(
                    found=f"{what} in both {twin!r} and {name!r}",
                    expected="each site's data once: a product would count them twice",
                    fix="Merge ledgers that share a site with | first; leave a copy out.",
                )
        # Sites of different names may well agree to the last bit, if data are counts.
        if (twin := seen.setdefault(content, name)) != name:
            warnings.warn(
                f"sites {twin!r} and {name!r} hold the same posterior to the last bit: if one is a "
                "copy of the other, its data count twice",
                stacklevel=3,
            )


def site_weights(
    names: Sequence[str], weights: Mapping[str, float] | None, rule: Rule
) -> Float[np.ndarray, " sites"]:
    """A positive weight a site; ones if None, as it must be for a product."""
    if weights is None:
        return np.ones(len(names))
    if rule is Rule.PRODUCT:
        raise UsageError(
            found="weights with rule='product'",
            expected="weights for rule='barycenter' only",
            fix="Leave weights out: a product counts every observation once.",
        )
    if set(weights) != set(names) or not all(0 < w < np.inf for w in weights.values()):
        raise UsageError(
            found=f"weights {dict(weights)}",
            expected=f"a positive weight for each of {list(names)}",
            fix="Name every site once, with a finite positive weight.",
        )
    return np.array([weights[name] for name in names], dtype=float)
