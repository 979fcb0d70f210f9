"""Many walks of one federation at once, compiled: to study how gossip converges.

``federate`` is the protocol, with its checks, its exact sums and its ledger. Here the same local
updates run under ``vmap`` over repetitions and ``scan`` over visits, on plain float64 sums, over
sites that are padded to the size of the largest.
"""

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.gfvl.walks import positions
from posterity.arguments import COUNT, Constraint
from posterity.arrays.keys import of_jax
from posterity.errors import ConvergenceWarning
from posterity.families import ExponentialFamily
from posterity.federation.federate import start
from posterity.federation.keys import first_key
from posterity.federation.site import NODES, failure_of
from posterity.graphs.topology import Network, check_sites
from posterity.graphs.walks import MetropolisHastings, Walk
from posterity.inference.descent import not_finite
from posterity.inference.update import LocalUpdate
from posterity.models import Model, Records
from posterity.runtime.programs import program


class Leave(NamedTuple):
    """A site that asks to be forgotten before the visit number ``visit``, counted from zero.

    Its factor leaves when the token next stands there, or at once if it is ``asked`` directly.
    From then on it only relays.
    """

    site: str
    visit: int
    asked: bool = False


@dataclasses.dataclass(frozen=True)
class Simulation:
    """What happened in every repetition.

    ``parameters`` (repetitions, records, dim) are flat natural parameters of the posterior
    before the first visit and after every ``every``-th; ``visits`` says after how many.
    ``positions`` (repetitions, visits) are numbers of sites in the network's order.
    """

    parameters: np.ndarray
    positions: np.ndarray
    visits: np.ndarray
    prior: Any

    @property
    def posteriors(self) -> Any:
        """A batch of shape (repetitions, records) of the prior's family."""
        return self.prior.with_natural_parameters(self.parameters)


def simulate(
    sites: Mapping[str, Any],
    model: Any,
    prior: ExponentialFamily,
    graph: Any,
    *,
    visits: int,
    repetitions: int,
    walk: Walk | None = None,
    update: LocalUpdate | None = None,
    weights: Mapping[str, float] | None = None,
    leave: Leave | None = None,
    first: str | None = None,
    every: int = 1,
    key: Any = None,
    diverging: bool = False,
) -> Simulation:
    """Repeat gossip over one graph and one set of data, each time with a walk of its own.

    Arguments are those of :func:`posterity.federate` with :class:`Gossip`; ``first`` is the site
    where all tokens start, drawn uniformly if left out. A SiteError if the gradient of a site that
    is visited is not finite, unless walks may be ``diverging``: then its factor stays as it was.
    A ConvergenceWarning if nodes of a quadrature are too few: where ``federate`` would take more
    of them, all walks stay with those of ``update``.
    """
    network = graph if isinstance(graph, Network) else Network.from_graph(graph)
    run = start(sites, model, prior, update=update, weights=weights)
    COUNT.check(visits=visits, repetitions=repetitions, every=every)
    check_sites(network.names, run.agreement.sites)
    walk_key, update_key = jax.random.split(of_jax(first_key() if key is None else key))
    length = {"hops": visits - 1, "repetitions": repetitions}
    walked = positions(network, walk or MetropolisHastings(), **length, start=first, key=walk_key)
    site, left = _departures(network, np.asarray(walked), leave)
    model, update, prior = run.agreement.model, run.agreement.update, run.state.prior
    records = list(run.federation.data.values())
    Constraint("a site with data, at least one", any).check(sites=[own.size for own in records])
    top, held = max(own.size for own in records), [own.size > 0 for own in records]
    place = np.where(held, np.cumsum(held) - 1, -1)
    padded = [own.padded(top) for own in records if own.size]
    stacks = jax.tree.map(lambda *leaves: np.stack(leaves), *padded)
    with jax.enable_x64(True):
        if update.conjugate:
            table = np.asarray(_factors(model, stacks)) / update.temperature
            table = np.concatenate([table, np.zeros((1, table.shape[1]))])[place]
            odd = np.flatnonzero(~np.isfinite(table).all(1))
            bad = np.array([-1, *(k for k in odd if (walked == k).any())])
            trace = _sums(prior.natural_parameters, table, np.asarray(walked), site, left)
        else:
            member = jax.tree.map(jnp.asarray, prior)
            keys = jax.random.split(update_key, repetitions)
            many = jax.tree.map(jnp.asarray, (stacks, place, walked, left, keys))
            trace, bad, error = map(np.asarray, _general(update.traced, model, member, site, many))
            if error.max() > NODES.error:
                warnings.warn(
                    f"Sums over nodes may be off by {error.max():.2g} nats at a site: `federate` "
                    "takes more nodes there, `simulate` those of its update.",
                    ConvergenceWarning,
                    stacklevel=2,
                )
    if not diverging and (bad >= 0).any():
        raise failure_of(not_finite(), network.names[bad.max()])
    trace = trace[:, ::every]
    return Simulation(trace, np.asarray(walked), np.arange(trace.shape[1]) * every, prior)


def _departures(network: Network, walked: np.ndarray, leave: Leave | None) -> tuple[int, Any]:
    """Who leaves, and at which visit of each walk (past the last if it never does)."""
    repetitions, visits = walked.shape
    if leave is None:
        return 0, np.full(repetitions, visits)
    Constraint(f"a visit below {visits}", range(visits).__contains__).check(visit=leave.visit)
    site = network.index(leave.site)
    there = (walked == site) & (np.arange(visits) >= leave.visit)
    reached = np.where(there.any(1), there.argmax(1), visits)
    return site, np.full(repetitions, leave.visit) if leave.asked else reached


@program
def _factors(model: Model, sites: Records) -> Any:
    return jax.vmap(lambda records: model.factor(records).natural_parameters)(sites)


def _sums(prior: Any, table: Any, walked: np.ndarray, site: int, left: np.ndarray) -> np.ndarray:
    """The prior, and after each visit with the factors of sites that came, less one that left."""
    repetitions, visits = walked.shape
    arrival, begin, end = np.full((repetitions, len(table)), visits), 0, 4 * len(table)
    rows = np.arange(repetitions)
    # Once all sites were visited the rest of the walk, often the longest part, is not looked at.
    while begin < visits and (arrival == visits).any():
        part = walked[:, begin:end]
        times = np.broadcast_to(begin + np.arange(part.shape[1]), part.shape)
        places = rows[:, None] * len(table) + part
        np.minimum.at(arrival.reshape(-1), places.ravel(), times.ravel())
        begin, end = end, 2 * end
    # Who left before it came adds nothing, and takes nothing away.
    came = arrival[:, site] < left
    arrival[~came, site] = visits
    # Records along the last axis, where they are summed fastest; one past the last for never.
    times = np.append(arrival, left[came])
    changing = int(times.max(initial=0, where=times < visits)) + 2
    head = np.zeros((repetitions, len(prior), changing + 1))
    head[:, :, 0] = prior
    head[rows[:, None], :, np.minimum(arrival + 1, changing)] = table
    head[rows[came], :, np.minimum(left[came] + 1, changing)] -= table[site]
    trace = np.empty((repetitions, len(prior), visits + 1))
    np.cumsum(head[:, :, :changing], axis=2, out=trace[:, :, :changing])
    trace[:, :, changing:] = trace[:, :, changing - 1 : changing]  # once nothing changes any more
    return np.moveaxis(trace, 2, 1)


@program
def _general(
    update: LocalUpdate, model: Model, prior: ExponentialFamily, site: Any, many: Any
) -> tuple[Any, Any, Any]:
    """The trace, the site of each walk whose gradient was not finite (-1: none), and the errors.

    All walks take a visit together.
    """
    records, place, walked, left, keys = many
    start, (repetitions, size), sites = prior.natural_parameters, walked.shape, len(place)
    rows = jnp.arange(repetitions)

    def improved(here: Any, total: Any, factor: Any, count: Any, key: Any) -> Any:
        own: Records = jax.tree.map(lambda leaf: leaf[place[here]], records)
        q, factor = (prior.with_natural_parameters(v) for v in (total, factor))
        new, info = update(model, q, factor, own, count, key=key)
        return new.natural_parameters, info.finite, info.quadrature_error

    def visit(carry: Any, now: Any) -> tuple[Any, Any]:
        time, here = now
        total, factors, counts, bad, errors = carry
        leaves = time == left
        total = total - jnp.where(leaves[:, None], factors[:, site], 0.0)
        factors = factors.at[:, site].multiply(~leaves[:, None])
        errors = errors.at[:, site].multiply(~leaves)
        old, own_keys = factors[rows, here], jax.vmap(jax.random.fold_in, (0, None))(keys, time)
        new, finite, error = jax.vmap(improved)(here, total, old, counts[rows, here], own_keys)
        learns = (place[here] >= 0) & ~((here == site) & (time >= left))
        new = jnp.where(learns[:, None], new, old)
        total, factors = total - old + new, factors.at[rows, here].set(new)
        counts = counts.at[rows, here].add(update.steps)
        bad = jnp.where((bad < 0) & learns & ~finite, here, bad)
        errors = errors.at[rows, here].set(jnp.where(learns, error, errors[rows, here]))
        return (total, factors, counts, bad, errors), total

    total = jnp.broadcast_to(start, (repetitions, *start.shape))
    factors = jnp.zeros((repetitions, sites, *start.shape), start.dtype)
    counts, errors = jnp.zeros((repetitions, sites), jnp.int32), jnp.zeros((repetitions, sites))
    carry = total, factors, counts, jnp.full(repetitions, -1, walked.dtype), errors
    (*_, bad, errors), trace = jax.lax.scan(visit, carry, (jnp.arange(size), walked.T))
    before = jnp.broadcast_to(start, (repetitions, 1, *start.shape))
    return jnp.concatenate([before, jnp.swapaxes(trace, 0, 1)], 1), bad, errors
