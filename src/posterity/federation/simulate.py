"""Many walks of one federation at once, compiled: to study how gossip converges.

``federate`` is the protocol, with its checks, its exact sums and its ledger. Here the same local
updates run under ``vmap`` over repetitions and ``scan`` over visits, on plain float64 sums.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Key

from posterity.arguments import COUNT, Constraint
from posterity.errors import UsageError
from posterity.families import ExponentialFamily
from posterity.federation.federate import start
from posterity.graphs.topology import Network, check_sites
from posterity.graphs.walks import MetropolisHastings, Walk, positions
from posterity.inference.update import LocalUpdate
from posterity.models import Model, Records


class Leave(NamedTuple):
    """A site that asks to be forgotten before the visit number ``visit``, counted from zero.

    Its factor leaves when the token next stands there, or at once if it is ``asked`` directly.
    From then on it only relays.
    """

    site: str
    visit: int
    asked: bool = False


class Simulation(eqx.Module):
    """What happened in every repetition.

    ``parameters`` (repetitions, records, dim) are flat natural parameters of the posterior
    before the first visit and after every ``every``-th; ``visits`` says after how many.
    ``positions`` (repetitions, visits) are numbers of sites in the network's order.
    """

    parameters: Float[Any, "repetitions records dim"]
    positions: Int[Any, "repetitions visits"]
    visits: Int[np.ndarray, " records"]
    prior: Any

    @property
    def posteriors(self) -> Any:
        """A batch of shape (repetitions, records) of the prior's family."""
        return self.prior.with_natural_parameters(self.parameters)


def simulate(
    sites: Mapping[str, Any],
    model: Model | Callable[[Any, Any], Any],
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
    key: Key[jax.Array, ""],
) -> Simulation:
    """Repeat gossip over one graph and one set of data, each time with a walk of its own.

    Arguments are those of :func:`posterity.federate` with :class:`Gossip`; ``first`` is the site
    where all tokens start, drawn uniformly if left out. Memory grows with repetitions x sites
    where the model is not conjugate, and with repetitions x records in any case.

    Raises:
        UsageError, StructureError, ParameterError: as ``federate`` does.

    >>> from posterity.families import Beta
    >>> from posterity.graphs import ring
    >>> from posterity.models import BetaBernoulli
    >>> coins = {"a": np.ones(3), "b": np.zeros(2), "c": np.ones(1)}
    >>> trial = simulate(coins, BetaBernoulli(), Beta.from_standard(1.0, 1.0),
    ...                  ring(list("abc")), visits=20, repetitions=2, key=jax.random.key(0))
    >>> trial.posteriors.a[:, -1].tolist()
    [5.0, 5.0]
    """
    network = graph if isinstance(graph, Network) else Network.from_graph(graph, sites)
    run = start(sites, model, prior, update=update, weights=weights)
    COUNT.check(visits=visits, repetitions=repetitions, every=every)
    check_sites(network.names, run.federation.sites, "nodes for")
    walk_key, update_key = jax.random.split(key)
    walk, length = walk or MetropolisHastings(), {"hops": visits - 1, "repetitions": repetitions}
    walked = positions(network, walk, **length, start=first, key=walk_key)
    left = _departures(network, walked, leave)
    model, update = run.federation.model, run.federation.update
    records, prior = list(run.federation.sites.values()), run.state.prior
    with jax.enable_x64(True):
        if update.conjugate:
            arrival = _arrival(np.asarray(walked), network.size)
            table = _table(model, update, records, arrival < visits)
            trace = _conjugate(prior.natural_parameters, table, arrival, left, visits, every)
        else:
            member = jax.tree.map(jnp.asarray, prior)
            keys = jax.random.split(update_key, repetitions)
            trace = _general(update, model, member, _stacked(records), walked, left, keys, every)
    trace, walked = np.asarray(trace), np.asarray(walked)
    return Simulation(trace, walked, np.arange(trace.shape[1]) * every, prior)


# --- conjugate models: only the first visit of a site changes anything --------------------------


def _arrival(walked: np.ndarray, sites: int) -> np.ndarray:
    """When each repetition first visits each site; the number of visits where it never does."""
    repetitions, visits = walked.shape
    places = (np.arange(repetitions)[:, None] * sites + walked).ravel()
    arrival = np.full(repetitions * sites, visits)
    np.minimum.at(arrival, places, np.tile(np.arange(visits), repetitions))
    return arrival.reshape(repetitions, sites)


def _conjugate(
    prior: np.ndarray,
    table: np.ndarray,
    arrival: np.ndarray,
    left: "_Left",
    visits: int,
    every: int,
) -> np.ndarray:
    """The trace, from each repetition's first visits alone: NumPy is faster than compiled code."""
    repetitions = len(arrival)
    # The leaver adds only if it came before it left, and takes the same away when it leaves.
    site, time = int(left.site), np.asarray(left.time)
    added = arrival[:, site] < time
    arrival[:, site] = np.where(added, arrival[:, site], visits)
    gone = added & (time < visits)
    trace = np.zeros((repetitions, visits // every + 2, table.shape[1]))
    trace[:, 0] = prior
    row, who = np.nonzero(arrival < visits)
    # What a visit changes shows in the next record; there is one more place, for what comes late.
    np.add.at(trace, (row, arrival[row, who] // every + 1), table[who])
    trace[gone, time[gone] // every + 1] -= table[site]
    return np.cumsum(trace[:, :-1], axis=1, out=trace[:, :-1])


def _table(
    model: Any, update: LocalUpdate, sites: list[Records], visited: np.ndarray
) -> np.ndarray:
    """The exact factor of every site that is visited, one row a site."""
    factor = model.factor  # bound once: Equinox makes a Module of it each time
    some = factor(_some(sites))
    table = np.zeros((len(sites), some.dimension))
    for site in np.flatnonzero(visited.any(0)):
        if sites[site].size:
            table[site] = factor(sites[site]).natural_parameters
    return table / update.temperature


def _some(sites: list[Records]) -> Records:
    for records in sites:
        if records.size:
            return records
    raise UsageError(found="no site with data", expected="one at least", fix="Check what was read.")


# --- all other models ---------------------------------------------------------------------------


@eqx.filter_jit
def _general(
    update: LocalUpdate,
    model: Model,
    prior: Any,
    records: Records,
    walked: jax.Array,
    left: "_Left",
    keys: jax.Array,
    every: int,
) -> jax.Array:
    start, size = prior.natural_parameters, walked.shape[1]

    def repetition(walk: jax.Array, leave_time: jax.Array, key: jax.Array) -> jax.Array:
        def visit(carry: Any, now: Any) -> tuple[Any, None]:
            time, site = now
            total, factors, counts, trace = carry
            # A site that is asked directly leaves without waiting to be visited.
            asked = left.asked & (time == leave_time)
            total = total - jnp.where(asked, factors[left.site], 0.0)
            factors = jnp.where(asked, factors.at[left.site].set(0.0), factors)
            own = jax.tree.map(lambda leaf: leaf[site], records)
            q, factor = (prior.with_natural_parameters(v) for v in (total, factors[site]))
            new, _ = update(model, q, factor, own, counts[site], key=jax.random.fold_in(key, time))
            gone = (site == left.site) & (time >= leave_time)
            new = jnp.where(gone, 0.0, new.natural_parameters)
            total, factors = total - factors[site] + new, factors.at[site].set(new)
            counts = counts.at[site].add(update.steps)
            slot = jnp.where((time + 1) % every == 0, (time + 1) // every, size)
            trace = trace.at[slot].set(total, mode="drop")
            return (total, factors, counts, trace), None

        sites = records.weights.shape[0]
        zeros = jnp.zeros((sites, *start.shape), start.dtype)
        trace = jnp.broadcast_to(start, (size // every + 1, *start.shape))
        carry = (start, zeros, jnp.zeros(sites, jnp.int32), trace)
        return jax.lax.scan(visit, carry, (jnp.arange(size), walk))[0][3]

    return jax.vmap(repetition)(walked, left.time, keys)


def _stacked(sites: list[Records]) -> Records:
    """All sites' records on one new first axis, padded with records of no weight."""
    size = max(records.size for records in sites)
    nothing = Records(jax.tree.map(lambda leaf: leaf[:1], _some(sites).data), np.zeros(1))
    full = [(records if records.size else nothing).padded(size) for records in sites]
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *full)


# --- leaving ------------------------------------------------------------------------------------


class _Left(NamedTuple):
    site: jax.Array
    time: jax.Array
    """For each repetition the visit at which the factor leaves; past the last if it never does."""
    asked: jax.Array


def _departures(network: Network, walked: jax.Array, leave: Leave | None) -> _Left:
    """Who leaves when, in each walk; errors if there is no such site or visit."""
    repetitions, visits = walked.shape
    if leave is None:
        return _Left(jnp.asarray(0), jnp.full(repetitions, visits), jnp.asarray(False))
    Constraint(f"a visit below {visits}", range(visits).__contains__).check(visit=leave.visit)
    site = network.index(leave.site)
    there = (walked == site) & (jnp.arange(visits) >= leave.visit)
    reached = jnp.where(there.any(1), there.argmax(1), visits)
    asked = jnp.full(repetitions, leave.visit)
    return _Left(jnp.asarray(site), asked if leave.asked else reached, jnp.asarray(leave.asked))
