"""What comes in: posteriors, ledgers or files, by the names of their sites, and fit to be fused."""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.stacks import stacked, unstacked
from posterity.arrays.tree import leaves
from posterity.arrays.typing import Float
from posterity.artifact import Posterior, open_artifact
from posterity.artifact.aligned import aligned, coordinates_in, labels_in, named, ordered, unnamed
from posterity.artifact.recipes import check_same
from posterity.checks import check_adds, check_proper
from posterity.errors import ParameterError, StructureError, UsageError
from posterity.families import Distribution, ExponentialFamily, Network, at_rest
from posterity.families.layers import Dense
from posterity.families.names import Names
from posterity.fusion.refusals import (
    check_enough,
    check_priors_known,
    counted_twice,
    twice,
    warn_of_copies,
)
from posterity.fusion.rules import Rule
from posterity.ledger import Ledger

Fusible = Posterior | str | os.PathLike[str]
AT_A_TIME = 256
"""Sites that are checked together: many share a call, and few leave the processor's cache."""


class Site(NamedTuple):
    """What one site brings: its posterior, and its prior where that is known.

    ``contributors`` are those whose data it holds, where a ``ledger`` names them.
    """

    posterior: ExponentialFamily
    prior: ExponentialFamily | None
    contributors: tuple[str, ...] = ()
    ledger: Ledger | None = None


def read_sites(
    posteriors: Sequence[Fusible] | Mapping[str, Fusible] | Fusible,
    prior: ExponentialFamily | None = None,
) -> dict[str, Site]:
    """Sites by name, sorted, all of one structure; ``prior`` is of those who bring none.

    Coordinates that have names are put in one order, topics over one vocabulary.
    """
    return read_named(posteriors, prior).sites


class Named(NamedTuple):
    """Sites without names of coordinates; and these, as all have them, in that order.

    ``prior`` is that of sites that bring none, in that order too; ``labels`` are the names of
    members of plates, by site and path.
    """

    sites: dict[str, Site]
    prior: ExponentialFamily | None
    names: Names
    labels: dict[str, dict[str, tuple[str, ...]]]


def read_named(
    posteriors: Sequence[Fusible] | Mapping[str, Fusible] | Fusible,
    prior: ExponentialFamily | None = None,
) -> Named:
    """The same, and what names they gave."""
    opened: dict[str, Any] = {}
    about: dict[str, Mapping[str, str]] = {}
    for name, value in _named(posteriors):
        value, own, provenance = _opened(value)
        name = name if name is not None else own or f"site-{len(opened):04d}"
        if name in opened:
            raise twice(name)
        opened[name], about[name] = value, provenance
    check_same(about)
    opened = dict(sorted(opened.items()))  # the order of coordinates is that of the first
    labels = {name: labels_in(value) for name, value in opened.items()}
    both = opened if prior is None else {**opened, "the prior": prior}
    opened, names = aligned(opened)
    for line in unnamed(both, names or coordinates_in(prior)):
        warnings.warn(line, stacklevel=3)
    prior, names = ordered(prior, names, "the prior", "the sites"), names or coordinates_in(prior)
    found = _sites({name: named(value, {}) for name, value in opened.items()})
    check_enough(len(found))
    found = dict(sorted(found.items()))  # those of one shape came together
    _check_structure(found, prior)
    rest = None if prior is None else named(at_rest(prior), {})
    known = {n: s._replace(prior=rest) if s.prior is None else s for n, s in found.items()}
    return Named(known, rest, names, labels)


def _named(posteriors: Any) -> Iterable[tuple[str | None, Any]]:
    if isinstance(posteriors, Mapping):
        return posteriors.items()
    alone = isinstance(posteriors, str | os.PathLike | Distribution | Ledger)
    return [(None, posterior) for posterior in ([posteriors] if alone else posteriors)]


def _opened(value: Fusible) -> tuple[Any, str | None, Mapping[str, str]]:
    """The object behind a path, the name it brings, and what the file says beside."""
    stem, about = None, {}
    if isinstance(value, str | os.PathLike):
        stem, (value, told) = Path(value).stem, open_artifact(value)
        about = told.provenance
    own = "+".join(value.sites) if isinstance(value, Ledger) else ""
    return value, own or stem, about


def _sites(opened: Mapping[str, Any]) -> dict[str, Site]:
    """What each brings, proper and at rest."""
    ledgers = {name: value for name, value in opened.items() if isinstance(value, Ledger)}
    sums = {name: ledger.total for name, ledger in ledgers.items()}
    rested = _rested({**opened, **sums})
    return {
        name: Site(q, ledgers[name].prior, ledgers[name].sites, ledgers[name])
        if name in ledgers
        else Site(q, None)
        for name, q in rested.items()
    }


def _rested(posteriors: Mapping[str, Any]) -> dict[str, ExponentialFamily]:
    """Checked and brought to rest, those of one shape all at once."""
    alike: dict[Any, list[str]] = {}
    for name, value in posteriors.items():
        check_adds(value, f"site {name!r}")
        alike.setdefault((value.outline(), value.batch_shape), []).append(name)
    some = [
        names[start : start + AT_A_TIME]
        for names in alike.values()
        for start in range(0, len(names), AT_A_TIME)
    ]
    return {
        name: value
        for names in some
        for name, value in zip(names, _together(names, posteriors), strict=True)
    }


def _together(
    names: Sequence[str], posteriors: Mapping[str, ExponentialFamily]
) -> list[ExponentialFamily]:
    """Of one shape: proper and at rest."""
    some = [posteriors[name] for name in names]
    together = at_rest(stacked(some[0], some))
    try:
        check_proper(together, "all sites")
    except ParameterError:
        for name in names:  # it says whose it is
            check_proper(posteriors[name], f"site {name!r}")
    return unstacked(together)


def _check_layers(networks: Mapping[str, Network]) -> None:
    """Refuse networks of other depths, inputs, outputs or kinds of layers, by site and layer."""
    (first, like), *others = networks.items()
    if not isinstance(like.layers[-1], Dense):
        raise StructureError(
            found=f"a last layer {like.layers[-1]}",
            expected="a dense one, whose outputs mean the same at every site",
            fix="End the network with a Dense layer.",
        )
    for name, network in others:
        if (difference := network.layers.difference(like.layers)) is not None:
            raise StructureError(
                found=f"{difference[0]} at site {name!r}",
                expected=f"{difference[1]}, as at site {first!r}; numbers of hidden units may "
                "differ",
                fix="Fuse networks of one depth, with the same inputs, outputs, windows and "
                "activations.",
            )


def _check_structure(sites: Mapping[str, Site], prior: ExponentialFamily | None) -> None:
    first, expected = next((name, site.posterior) for name, site in sites.items())
    if expected.batch_shape:
        raise StructureError(
            found=f"a batch of shape {expected.batch_shape} at site {first!r}",
            expected="one posterior a site",
            fix="If the batch is of exchangeable components, wrap it: posterity.Plate(batch).",
        )
    networks = {n: s.posterior for n, s in sites.items() if isinstance(s.posterior, Network)}
    if len(networks) == len(sites):
        _check_layers(networks)
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
            fix="Give one of the posteriors' family; wrap that of one component "
            "as posterity.Plate(stack([member])).",
        )
    check_proper(prior, "the prior")


def check_counted_once(sites: Mapping[str, Site]) -> None:
    """Refuse sites without a prior, and data that a product would count twice; warn of copies."""
    bare = [name for name, site in sites.items() if site.prior is None]
    check_priors_known(bare)
    owner: dict[str | bytes, str] = {}
    seen: dict[bytes, str] = {}
    for name, site in sites.items():
        content = b"".join(np.asarray(leaf).tobytes() for leaf in leaves(site.posterior))
        # A ledger says whose data it holds; of a bare posterior only the content can tell.
        for key in site.contributors or (content,):
            if (twin := owner.setdefault(key, name)) != name:
                what = f"data of site {key!r}" if isinstance(key, str) else "the same posterior"
                raise counted_twice(what, twin, name)
        if (twin := seen.setdefault(content, name)) != name:
            warn_of_copies(twin, name)


def site_weights(names: Sequence[str], weights: Any, rule: Rule) -> Float[np.ndarray, " sites"]:
    """A positive weight a site, at most one; ones if None, as it must be for a product."""
    if weights is None:
        return np.ones(len(names))
    if rule is Rule.PRODUCT:
        raise UsageError(
            found="weights with rule='product'",
            expected="weights for rule='barycenter' only",
            fix="Leave weights out: a product counts every observation once.",
        )
    named = isinstance(weights, Mapping) and set(weights) == set(names)
    if not named or not all(map(_positive, weights.values())):
        raise UsageError(
            found=f"weights {weights}",
            expected=f"a positive weight for each of {list(names)}",
            fix="Name every site once, with a finite positive weight.",
        )
    found = np.array([weights[name] for name in names], dtype=float)
    return found / found.max()  # sums of large ones would be infinite


def _positive(weight: Any) -> bool:
    try:
        return not isinstance(weight, str) and 0 < float(weight) < np.inf
    except (TypeError, ValueError):
        return False
