"""Fusing one block after another, with the sites' components brought into one order."""

import dataclasses
from collections.abc import Sequence
from urllib.parse import quote

import numpy as np

from posterity.arrays.tree import leaves, structure
from posterity.arrays.typing import Float, Int
from posterity.checks import check_proper
from posterity.errors import StructureError, UsageError
from posterity.families import ExponentialFamily, Plate, Product, at_rest, concatenate, stack
from posterity.families.base import place
from posterity.families.mixing import MixingWeights
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching, content_keys, match
from posterity.fusion.rules import Rule, barycenter
from posterity.ledger import Ledger

Array = np.ndarray
UNUSED = 1.0
"""A component with less than one expected observation is its prior, and matches nothing."""


@dataclasses.dataclass(frozen=True)
class Block:
    """One block of every site's posterior, with its priors where they are known."""

    names: list[str]
    posteriors: list[ExponentialFamily]
    priors: list[ExponentialFamily | None]
    weights: Float[Array, " sites"]

    def child(self, name: str) -> "Block":
        """A named block of a product."""
        posteriors = [q.blocks[name] for q in self.posteriors]  # pyright: ignore
        priors = [None if p is None else p.blocks[name] for p in self.priors]  # pyright: ignore
        return dataclasses.replace(self, posteriors=posteriors, priors=priors)


@dataclasses.dataclass(frozen=True)
class Aligned:
    """The matching of one plate.

    ``matching`` has, by site, the fused component of each local one, -1 where the local one
    held no data; ``cost`` is the summed divergence to the centroids in nats, ``trace`` the
    objective after each accepted change.
    """

    matching: dict[str, Int[Array, " k"]]
    components: int
    cost: float
    trace: list[float]


def align_plate(
    block: Block, path: str, matching: Matching, divergence: Divergence, components: int | None
) -> Aligned:
    """Match the components of all sites' plates."""
    plates: list[Plate] = block.posteriors  # type: ignore[assignment]
    used = [np.flatnonzero(_used(plate, prior)) for plate, prior in _pairs(block)]
    if matching is Matching.IDENTITY:
        used = [np.arange(plate.size) for plate in plates]
    _check_used(block, used, path)
    members = [plate.members[rows] for plate, rows in zip(plates, used, strict=True)]
    labels, found = match(members, matching, divergence, components)
    full = []
    for plate, rows, label in zip(plates, used, labels, strict=True):
        full.append(np.full(plate.size, -1))
        full[-1][rows] = label
    if matching is not Matching.IDENTITY:
        full = _by_weight(block, full)
    return Aligned(
        matching=dict(zip(block.names, full, strict=True)),
        components=int(max(label.max() for label in full)) + 1,
        cost=found.clustering.misfit,
        trace=found.trace,
    )


def fuse_block(
    block: Block,
    plates: dict[str, Aligned],
    rule: Rule,
    divergence: Divergence,
    path: str = "",
) -> tuple[ExponentialFamily, Ledger | None]:
    """The fused posterior and, for the product, the ledger of aligned factors it sums."""
    if rule is Rule.PRODUCT:
        ledger = _product(block, plates, path)
        return ledger.posterior, ledger
    return _barycenter(block, plates, divergence, path), None


# --- the two rules -------------------------------------------------------------------------------


def _barycenter(
    block: Block, plates: dict[str, Aligned], divergence: Divergence, path: str
) -> ExponentialFamily:
    first = block.posteriors[0]
    if isinstance(first, Product):
        return first.rebuild(
            [_barycenter(block.child(n), plates, divergence, at(path, n)) for n in first.blocks]
        )
    if isinstance(first, Plate):
        return _plate_barycenter(block, plates[path], divergence)
    together = np.zeros(len(block.names), dtype=int)
    return barycenter(stack(block.posteriors), together, divergence, block.weights)[0]


def _plate_barycenter(block: Block, aligned: Aligned, divergence: Divergence) -> Plate:
    kept = [label >= 0 for label in aligned.matching.values()]
    pairs = list(zip(block.posteriors, kept, strict=True))
    members = concatenate([plate.members[keep] for plate, keep in pairs])  # pyright: ignore
    labels = np.concatenate(list(aligned.matching.values()))
    sites = np.repeat(block.weights, [int(keep.sum()) for keep in kept])
    fused = barycenter(members, labels[labels >= 0], divergence, sites)
    base, added = _mixing(block, aligned, Rule.BARYCENTER)
    if base is None:
        return Plate(fused)
    share = block.weights / block.weights.sum()
    mean = sum((w * a for w, a in zip(share, added, strict=True)), start=base * 1.0)
    return Plate(fused, mean)


def _product(block: Block, plates: dict[str, Aligned], path: str) -> Ledger:
    """Prior plus aligned factors; a product's ledger is put together from its blocks'."""
    first = block.posteriors[0]
    if isinstance(first, Product):
        inner = {n: _product(block.child(n), plates, at(path, n)) for n in first.blocks}
        ledger = Ledger(Product({n: led.prior for n, led in inner.items()}))
        for site in block.names:
            alone = all(le.entries[site].independent for le in inner.values())
            factor = Product({n: le.factor(site) for n, le in inner.items()})
            ledger = ledger.update(site, factor, independent=alone)
        return ledger
    if isinstance(first, Plate):
        return _plate_product(block, plates[path], path)
    prior = _common(block.priors, block.names, path)
    ledger = Ledger(prior)
    for site, posterior in zip(block.names, block.posteriors, strict=True):
        ledger = ledger.update(site, posterior - prior, independent=True)
    return ledger


def _plate_product(block: Block, aligned: Aligned, path: str) -> Ledger:
    members = [_prior_member(prior, name) for prior, name in _named_priors(block)]
    prior = _common(members, block.names, path)
    size = aligned.components
    base, added = _mixing(block, aligned, Rule.PRODUCT)
    everyone = stack([prior] * size)
    ledger = Ledger(Plate(everyone, base))
    for index, (site, label) in enumerate(aligned.matching.items()):
        plate: Plate = block.posteriors[index]  # type: ignore[assignment]
        kept = label >= 0
        contribution = (plate.members[kept] - prior).relabel(label[kept], size)
        factor = Plate(contribution, added[index] if added else None)
        ledger = ledger.update(site, factor)  # its rows were found in the others' company
    return ledger


def _mixing(
    block: Block, aligned: Aligned, rule: Rule
) -> tuple[MixingWeights | None, list[MixingWeights]]:
    """The prior of the fused mixing weights and what each site adds to it."""
    pairs = list(_pairs(block))
    like = pairs[0][0].weights
    if like is None:
        return None, []
    totals = [
        _total(_weights(q), _prior_weights(p), name)
        for (q, p), name in zip(pairs, block.names, strict=True)
    ]
    if rule is Rule.PRODUCT:
        _check_equal(totals, block.names)
    base = like.exchangeable(float(np.mean(totals)), aligned.components)
    added = []
    for (plate, prior), label in zip(pairs, aligned.matching.values(), strict=True):
        counted = _weights(plate).counts(_prior_weights(prior))
        added.append(like.of_counts(place(counted, label, aligned.components, 0)))
    return base, added


# --- priors, and which components are in use -----------------------------------------------------


def _pairs(block: Block) -> list[tuple[Plate, Plate | None]]:
    return list(zip(block.posteriors, block.priors, strict=True))  # type: ignore[arg-type]


def _named_priors(block: Block) -> list[tuple[ExponentialFamily | None, str]]:
    return list(zip(block.priors, block.names, strict=True))


def _total(weights: MixingWeights, prior: MixingWeights | None, site: str) -> float:
    try:
        return weights.total(prior)
    except StructureError as error:
        raise error.at(f"site {site!r}") from error


def _check_equal(totals: list[float], names: list[str]) -> None:
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


def _weights(plate: Plate) -> MixingWeights:
    assert plate.weights is not None  # the sites' structures agree
    return plate.weights


def _prior_weights(prior: Plate | None) -> MixingWeights | None:
    return None if prior is None else prior.weights


def _used(plate: Plate, prior: Plate | None) -> Array:
    if plate.weights is None or (prior is None and not plate.weights.shows_prior):
        return np.ones(plate.size, dtype=bool)
    return plate.weights.counts(_prior_weights(prior)) >= UNUSED


def _check_used(block: Block, used: list[Array], path: str) -> None:
    empty = [name for name, rows in zip(block.names, used, strict=True) if not len(rows)]
    if empty:
        raise UsageError(
            found=f"no component with at least one observation at {empty}"
            + (f" in block {path!r}" if path else ""),
            expected="at least one component that has seen data at every site",
            fix="Leave the site out, or check its fit.",
        )


def _by_weight(block: Block, labels: list[Array]) -> list[Array]:
    """Renumber so that the heaviest component comes first; ties by content."""
    size = max(label.max() for label in labels) + 1
    weight, content = np.zeros(size), np.full(size, b"", dtype=object)
    rows = zip(_pairs(block), labels, block.weights, strict=True)
    for (plate, prior), label, importance in rows:
        kept = label >= 0
        counted = np.ones(plate.size)
        if plate.weights is not None:
            counted = plate.weights.counts(_prior_weights(prior))
        np.add.at(weight, label[kept], importance * counted[kept])
        keys = content_keys(plate.members)
        for row in np.flatnonzero(kept):
            content[label[row]] = max(content[label[row]], keys[row])
    order = sorted(range(size), key=lambda g: (-round(weight[g], 9), content[g]))
    rank = np.empty(size, dtype=int)
    rank[order] = np.arange(size)
    return [np.where(label >= 0, rank[label], -1) for label in labels]


def _prior_member(prior: ExponentialFamily | None, name: str) -> ExponentialFamily:
    """The one prior that all members of a plate share."""
    assert isinstance(prior, Plate)  # fuse has checked that priors look like posteriors
    check_proper(prior, f"the prior of site {name!r}")
    first = prior.members[0]
    if any(first != prior.members[k] for k in range(prior.size)):
        raise StructureError(
            found=f"members of the prior that differ, at site {name!r}",
            expected="exchangeable members: one prior for all components of a plate",
            fix="Use one prior for all components, or rule='barycenter'.",
        )
    return at_rest(first)


def _common(
    priors: Sequence[ExponentialFamily | None], names: list[str], path: str
) -> ExponentialFamily:
    """The prior that all sites share, to twelve digits."""
    first = priors[0]
    for name, prior in zip(names, priors, strict=True):
        if structure(prior) != structure(first) or not _close(prior, first):
            raise StructureError(
                found=f"different priors at sites {names[0]!r} and {name!r}"
                + (f" in block {path!r}" if path else ""),
                expected="one prior, chosen without looking at any site's data",
                fix="Fit all sites with the same prior (scikit-learn's default depends on the "
                "data: set mean_prior, covariance_prior and the like), pass prior=, or use "
                "rule='barycenter'.",
            )
    assert first is not None  # checked before
    return first


def _close(left: object, right: object) -> bool:
    pairs = zip(leaves(left), leaves(right), strict=True)
    return all(np.allclose(a, b, rtol=1e-12, atol=0.0) for a, b in pairs)


def at(path: str, name: str) -> str:
    """The path of a block; names are quoted, so that a slash in one is not a level."""
    name = quote(name, safe=" ")
    return f"{path}/{name}" if path else name
