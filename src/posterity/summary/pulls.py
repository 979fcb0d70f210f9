"""Who pulls where: what each site of a ledger adds to what all others know."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from posterity.families import Network, Plate, Product
from posterity.families.names import names_of
from posterity.summary.marginals import Normal, same_shape
from posterity.summary.tables import WEIGHT, Names, Row, Table, joined, tables_of

EXACT = 100
"""Sites up to which what is left without one is summed anew, exactly; of more it is subtracted."""
NEGLIGIBLE = 1e-9
"""Pulls, in standard deviations, that are rounding."""


class Pull(NamedTuple):
    """One number with a site and without it.

    Attributes:
        block: path of the block.
        member: of a plate, by name or number.
        quantity: as of :class:`Row`.
        name: of the coordinate.
        mean: with all sites.
        without: the mean without this one.
        by: ``mean - without`` in standard deviations of the posterior of all (belsley1980).
    """

    block: str
    member: str
    quantity: str
    name: str
    mean: float
    without: float
    by: float

    @property
    def label(self) -> str:
        """As of :class:`Row`."""
        return Row(*self[:4], *[np.nan] * 4).label


@dataclasses.dataclass(frozen=True)
class Site:
    """What one site of a ledger does to the posterior of all.

    ``nats`` is ``KL(posterior ‖ posterior without the site)``: the information that the site adds
    to what the prior and all others say (lindley1956). None where that cannot be said: then
    ``why`` says it, for the site was forgotten, or what is left without it is no distribution.
    ``most`` is the number that it moves most, in standard deviations of the posterior of all.
    """

    name: str
    nats: float | None
    most: Pull | None
    why: str = ""
    independent: bool = False


def sites_of(ledger: Any) -> Iterator[Site]:
    """All sites, those that were forgotten too, by name."""
    whole = ledger.total
    proper = bool(np.all(whole.is_proper()))
    names = names_of(whole)
    for name, entry in ledger.entries.items():
        if entry.factor is None:
            yield Site(name, None, None, "forgotten")
        elif not proper:
            why = "the posterior of all is no distribution, so nothing is known of its parts"
            yield Site(name, None, None, why, entry.independent)
        else:
            yield _site(ledger, whole, name, names)


def cavity(ledger: Any, site: str) -> Any:
    """Prior and all other sites."""
    if len(ledger.sites) <= EXACT:
        return ledger.cavity(site)
    return ledger.total - ledger.factor(site)


def _site(ledger: Any, whole: Any, name: str, names: Names) -> Site:
    left, alone = cavity(ledger, name), ledger.entries[name].independent
    if not np.all(left.is_proper()):
        why = f"without it {_improper(left, names)} no distribution: the others do not carry it"
        return Site(name, None, None, why, alone)
    with np.errstate(all="ignore"):
        nats = float(np.sum(whole.kl(left)))
    found = max(_pulls(whole, left, names, 1), key=lambda pull: abs(pull.by), default=None)
    return Site(name, max(nats, 0.0) if np.isfinite(nats) else nats, found, "", alone)


def pulls_of(ledger: Any, site: str) -> list[Pull]:
    """Every number with a site and without it, in the order of the rows.

    Raises:
        LedgerError: if the ledger holds no factor of the site.
    """
    ledger.factor(site)
    whole = ledger.total
    return list(_pulls(whole, cavity(ledger, site), names_of(whole), None))


def _pulls(whole: Any, left: Any, names: Names, most: int | None) -> Iterator[Pull]:
    """Of each table those that are moved most, or all."""
    pairs = zip(_all_tables(whole, names), _all_tables(left, names), strict=True)
    for mine, theirs in pairs:
        if mine.quantity == WEIGHT and most is not None:
            continue  # counts of components say who has records, not who pulls
        with np.errstate(all="ignore"):
            mean, without = mine.law.mean.ravel(), theirs.law.mean.ravel()
            by = (mean - without) / mine.law.width.ravel()
        order = range(mine.size)
        if most is not None:
            size = np.nan_to_num(np.abs(by), nan=-1.0, posinf=-1.0)
            order = [int(size.argmax())] if size.size and size.max() > NEGLIGIBLE else []
        for index in order:
            member, name = mine.labels(index)
            values = (float(mean[index]), float(without[index]), float(by[index]))
            yield Pull(mine.block, member, mine.quantity, name, *values)


def _all_tables(law: Any, names: Names) -> list[Table]:
    """Tables, and one for each network."""
    return [*tables_of(law, names), *_networks(law, "")]


def _networks(law: Any, block: str) -> Iterator[Table]:
    if isinstance(law, Network):
        mean, sd = same_shape(law.mean, np.sqrt(law.variance))
        axes = tuple(tuple(map(str, range(size))) for size in law.batch_shape)
        yield Table(block, "", axes, _Weights(law.layers), Normal(mean, sd))
    elif isinstance(law, Product):
        for name, part in law.blocks.items():
            yield from _networks(part, joined(block, name))
    elif isinstance(law, Plate):
        yield from _networks(law.members, block)


class _Weights(tuple[str, ...]):
    """Names of the weights of a network, made when they are asked for: there may be millions."""

    layers: Any

    def __new__(cls, layers: Any) -> Any:
        made = super().__new__(cls)
        made.layers = layers
        return made

    def __len__(self) -> int:
        return self.layers.size

    def __getitem__(self, index: Any) -> Any:
        for number, places in enumerate(self.layers.places):
            for name, place in places.items():
                if place.start <= index < place.stop:
                    at = np.unravel_index(index - place.start, place.shape)
                    return f"layer {number} {name} {list(map(int, at))}"
        raise IndexError(index)


def _improper(law: Any, names: Names) -> str:
    """Which parts are not distributions, in words with their verb."""
    if isinstance(law, Product):
        bad = [n for n, part in law.blocks.items() if not np.all(part.is_proper())]
        return f"{', '.join(bad)} {'is' if len(bad) == 1 else 'are'}"
    if isinstance(law, Plate) and not np.all(law.members.is_proper()):
        bad = np.flatnonzero(~np.asarray(law.members.is_proper()).reshape(-1))
        own = names.get("") or tuple(map(str, range(law.size)))
        told = ", ".join(own[int(k) % law.size] for k in bad[:3])
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        return f"{'member' if len(bad) == 1 else 'members'} {told}{more} would be"
    return "what is left is"
