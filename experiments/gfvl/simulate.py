"""Many walks of one federation at once, compiled: to study how gossip converges.

``federate`` is the protocol, with its checks, its exact sums and its ledger. Here the same local
updates run under ``vmap`` over repetitions and ``scan`` over visits, on plain float64 sums.
"""

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from experiments.gfvl.walks import positions
from posterity.arguments import COUNT, Constraint
from posterity.arrays.keys import of_jax
from posterity.arrays.setting import Setting
from posterity.arrays.stacks import stacked
from posterity.arrays.typing import ArrayLike, Float, Int, KeyArray, Real
from posterity.errors import ConvergenceWarning
from posterity.families import ExponentialFamily
from posterity.federation.federate import start
from posterity.federation.keys import first_key
from posterity.federation.site import ERROR, failure_of
from posterity.federation.state import improper_without
from posterity.graphs.topology import Network, check_sites
from posterity.graphs.walks import MetropolisHastings, Walk
from posterity.inference.descent import not_finite
from posterity.inference.update import LocalUpdate
from posterity.lazy import jax, jnp, program
from posterity.models import Model, Records

ABREAST = 1 << 16
"""Records that the updates of several walks see at once."""

TOGETHER = 1 << 20
"""Records of several sites whose factors are found at once."""

MANY = 256
"""Sites of equal shapes from which on it pays to compile that."""

GROUPS = 8
"""The largest number of sizes that sites of one computation are padded to."""
FEW = 4096
"""Records that may be added however few there are: it takes longer to compile another program."""

BLOCK = 1 << 16
"""Numbers that are summed at once: they stay in the processor's cache."""

NOTHING, IMPROPER = -1, -2
"""What went wrong in a walk, where it is no site's gradient."""


class Leave(NamedTuple):
    """A site that asks to be forgotten before the visit number ``visit``, counted from zero.

    Its factor leaves when the token next stands there, or at once if it is ``asked`` directly.
    From then on it only relays.
    """

    site: str
    visit: int
    asked: bool = False


class Simulation(Setting):
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
    key: KeyArray | None = None,
) -> Simulation:
    """Repeat gossip over one graph and one set of data, each time with a walk of its own.

    Arguments are those of :func:`posterity.federate` with :class:`Gossip`; ``first`` is the site
    where all tokens start, drawn uniformly if left out. Memory grows with repetitions x sites
    where the model is not conjugate, and with repetitions x records in any case.

    Raises:
        UsageError, StructureError, ParameterError: as ``federate`` does.
        SiteError: if the gradient of a site's log likelihood is not finite when it is visited.
        ParameterError: also if what is left without the site that leaves is no distribution.

    Warns:
        ConvergenceWarning: if nodes of a quadrature are too few for some site's last update. Where
            ``federate`` would take more of them, all walks stay with those of ``update``.

    >>> from posterity.families import Beta
    >>> from posterity.graphs import ring
    >>> from posterity.models import BetaBernoulli
    >>> coins = {"a": np.ones(3), "b": np.zeros(2), "c": np.ones(1)}
    >>> trial = simulate(coins, BetaBernoulli(), Beta.from_standard(1.0, 1.0),
    ...                  ring(list("abc")), visits=20, repetitions=2, key=jax.random.key(0))
    >>> trial.posteriors.a[:, -1].tolist()
    [5.0, 5.0]
    """
    network = graph if isinstance(graph, Network) else Network.from_graph(graph)
    run = start(sites, model, prior, update=update, weights=weights)
    COUNT.check(visits=visits, repetitions=repetitions, every=every)
    check_sites(network.names, run.agreement.sites, "nodes for")
    walk_key, update_key = jax.random.split(of_jax(first_key() if key is None else key))
    walk, length = walk or MetropolisHastings(), {"hops": visits - 1, "repetitions": repetitions}
    walked = positions(network, walk, **length, start=first, key=walk_key)
    left = _departures(network, walked, leave)
    model, update, prior = run.agreement.model, run.agreement.update, run.state.prior
    records = list(run.federation.data.values())
    with jax.enable_x64(True):
        if update.conjugate:
            arrival = _arrival(np.asarray(walked), network.size)
            table = _table(model, update, records, arrival < visits)
            _check_finite(np.flatnonzero(~np.isfinite(table).all(1)), network.names)
            trace = _conjugate(prior.natural_parameters, table, arrival, left, visits, every)
        else:
            member = jax.tree.map(jnp.asarray, prior)
            keys = jax.random.split(update_key, repetitions)
            trace, bad, errors = _general(
                update.traced, model, member, _grouped(records), walked, left, keys, every
            )
            if (np.asarray(bad) == IMPROPER).any():
                raise improper_without(network.names[int(left.site)])
            _check_finite(np.asarray(bad), network.names)
            if (error := float(errors.max())) > ERROR:
                warnings.warn(
                    f"Sums over nodes may be off by {error:.2g} nats at a site: `federate` takes "
                    "more nodes there, `simulate` those of its update.",
                    ConvergenceWarning,
                    stacklevel=2,
                )
    trace, walked = np.asarray(trace), np.asarray(walked)
    return Simulation(trace, walked, np.arange(trace.shape[1]) * every, prior)


# --- conjugate models: only the first visit of a site changes anything --------------------------


def _arrival(walked: np.ndarray, sites: int) -> np.ndarray:
    """When each repetition first visits each site; the number of visits where it never does."""
    repetitions, visits = walked.shape
    arrival, begin, end = np.full((repetitions, sites), visits), 0, 4 * sites
    rows = np.arange(repetitions)[:, None]
    # Once all sites were visited the rest of the walk, often the longest part, is not looked at.
    while begin < visits and (arrival == visits).any():
        part = walked[:, begin:end]
        times = np.broadcast_to(begin + np.arange(part.shape[1]), part.shape)
        np.minimum.at(arrival.reshape(-1), (rows * sites + part).ravel(), times.ravel())
        begin, end = end, 2 * end
    return arrival


def _conjugate(
    prior: np.ndarray,
    table: np.ndarray,
    arrival: np.ndarray,
    left: "_Left",
    visits: int,
    every: int,
) -> np.ndarray:
    """The trace, from each repetition's first visits alone: NumPy is faster than compiled code."""
    site, time = int(left.site), np.asarray(left.time)
    # The leaver adds only if it came before it left, and takes the same away when it leaves.
    arrival[:, site] = np.where(arrival[:, site] < time, arrival[:, site], visits)
    departure = np.where(arrival[:, site] < time, time, visits)
    # First among equals in a stable sort, as who is asked leaves before the visit.
    events = np.concatenate([departure[:, None], arrival], axis=1)
    changes = np.concatenate([-table[[site]], table])
    trace = np.empty((len(arrival), visits // every + 1, table.shape[1]))
    rows = max(1, BLOCK // (changes.size + trace[0].size))
    for at in range(0, len(arrival), rows):
        trace[at : at + rows] = _sums_shown(
            prior, changes, events[at : at + rows], every, trace.shape[1]
        )
    return trace


def _sums_shown(
    prior: np.ndarray, changes: np.ndarray, events: np.ndarray, every: int, records: int
) -> np.ndarray:
    """Sums after each event, each as often as records were made before the next one."""
    order = np.argsort(events, axis=1, kind="stable")
    start = np.broadcast_to(prior, (len(events), 1, len(prior)))
    sums = np.cumsum(np.concatenate([start, changes[order]], axis=1), axis=1)
    # What a visit changes shows in the next record.
    shown = np.minimum(np.take_along_axis(events, order, axis=1) // every + 1, records)
    times = np.diff(shown, axis=1, prepend=0, append=records)
    trace = np.repeat(sums.reshape(-1, len(prior)), times.ravel(), axis=0)
    return trace.reshape(len(events), records, -1)


def _table(
    model: Model, update: LocalUpdate, sites: list[Records], visited: np.ndarray
) -> np.ndarray:
    """The exact factor of every site that is visited, one row a site."""
    kind: Any = type(model)
    factor = kind.factor  # bound to the model, Equinox would wrap it anew for each site
    full = [records for records in sites if records.size]
    Constraint("a site with data, at least one", bool).check(sites=full)
    some = factor(model, full[0])
    table = np.zeros((len(sites), some.dimension))
    alike: dict[Any, list[int]] = {}
    for site in np.flatnonzero(visited.any(0)).tolist():
        if sites[site].size:
            alike.setdefault(_shapes(sites[site]), []).append(site)
    for those in alike.values():
        width = max(1, TOGETHER // sites[those[0]].size)
        if len(those) < MANY:
            factors = stacked(some, [factor(model, sites[site]) for site in those])
            table[those] = factors.natural_parameters
            continue
        for end in range(min(width, len(those)), len(those) + width, width):
            part = those[: min(end, len(those))][-width:]  # the last one overlaps: as many again
            own = jax.tree.map(lambda *leaves: np.stack(leaves), *(sites[site] for site in part))
            table[part] = _factors(model, own)
    return table / update.temperature


@program
def _factors(model: Model, sites: Records) -> Real:
    """Those of several sites of as many records each."""
    kind: Any = type(model)
    one = lambda records: kind.factor(model, records).natural_parameters
    return jax.vmap(one)(sites)


def _shapes(records: Records) -> Any:
    leaves, tree = jax.tree.flatten(records)
    return (tree, *((leaf.dtype, leaf.shape) for leaf in leaves))


# --- all other models ---------------------------------------------------------------------------


class _Groups(NamedTuple):
    """Sites in groups, each padded to a size of its own."""

    records: tuple[Records, ...]
    """For each group the records of its sites, on a new first axis."""
    group: Real
    """By site, the number of its group; past the last for a site without records."""
    place: Real
    """By site, its place in its group."""


def _grouped(sites: list[Records]) -> _Groups:
    """Sites of like sizes together, padded with records of no weight."""
    sizes = np.array([records.size for records in sites])
    tops = group_sizes(sizes[sizes > 0])
    group = np.where(sizes > 0, np.searchsorted(tops, sizes), len(tops))
    place, stacks = np.zeros(len(sites), np.int32), []
    for number, top in enumerate(tops):
        members = np.flatnonzero(group == number)
        place[members] = np.arange(len(members))
        padded = [sites[site].padded(int(top)) for site in members]
        stacks.append(jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *padded))
    return _Groups(tuple(stacks), jnp.asarray(group, jnp.int32), jnp.asarray(place))


def group_sizes(sizes: ArrayLike) -> np.ndarray:
    """The sizes to pad these to, ascending: few, so that few programs are compiled.

    As few as keep the padded records below twice those there are (or below ``FEW``), and of all
    choices of so many the one that adds the fewest; at most ``GROUPS``.

    >>> group_sizes([3, 4, 4, 90, 100, 5000]).tolist()
    [100, 5000]
    """
    sizes = np.asarray(sizes)
    tops, counts = np.unique(sizes, return_counts=True)
    if len(tops) > 256:  # of very many, some: the time grows with their square
        chosen = np.unique(np.linspace(0, len(tops) - 1, 256).astype(int))
        counts, tops = np.diff(np.cumsum(counts)[chosen], prepend=0), tops[chosen]
    many, enough = np.concatenate([[0], np.cumsum(counts)]), max(2 * sizes.sum(), FEW)
    # By dynamic programming: the cost of padding the n smallest sizes with the groups so far, and
    # where the last of these begins.
    cost, begins = np.where(many > 0, np.inf, 0.0), []
    added = np.where(
        np.tri(len(tops), dtype=bool), (many[1:, None] - many[:-1]) * tops[:, None], np.inf
    )
    while cost[-1] > enough and len(begins) < GROUPS:
        padded = cost[:-1] + added
        begins.append(padded.argmin(1))
        cost = np.concatenate([[0.0], padded.min(1)])
    result, end = [], len(tops)
    while end:
        result.append(tops[end - 1])
        end = begins.pop()[end - 1]
    return np.array(result[::-1])


@program
def _general(
    update: LocalUpdate,
    model: Model,
    prior: ExponentialFamily,
    groups: _Groups,
    walked: Real,
    left: "_Left",
    keys: Real,
    every: int,
) -> tuple[Real, Real, Real]:
    """The trace, what went wrong first in each walk, and the last error about each site's update.

    What went wrong is the number of the site whose gradient was not finite, ``IMPROPER`` if the
    posterior was without the site that left, or ``NOTHING``.

    All walks take a visit together. Those that stand at sites of one group are updated a few at
    a time, so that neither memory nor time depends on the records of the largest site.
    """
    start, (repetitions, size), sites = prior.natural_parameters, walked.shape, len(groups.group)
    rows = jnp.arange(repetitions)

    def improved(
        site: Real, records: Records, total: Any, factor: Any, count: Real, key: KeyArray
    ) -> Any:
        own = jax.tree.map(lambda leaf: leaf[groups.place[site]], records)
        q, factor = (prior.with_natural_parameters(v) for v in (total, factor))
        new, info = update(model, q, factor, own, count, key=key)
        return new.natural_parameters, info.finite, info.quadrature_error

    def improper(total: Real) -> Any:
        q = prior.with_natural_parameters(total)
        return ~(q.is_proper() & model.admits(q))

    def visit(carry: Any, now: Any) -> tuple[Any, None]:
        time, here = now
        total, factors, counts, bad, errors, trace = carry
        leaves = time == left.time
        total = total - jnp.where(leaves[:, None], factors[:, left.site], 0.0)
        factors = factors.at[:, left.site].multiply(~leaves[:, None])
        errors = errors.at[:, left.site].multiply(~leaves)
        none = jnp.zeros(repetitions, bool)
        broken = jax.lax.cond(leaves.any(), jax.vmap(improper), lambda _: none, total) & leaves
        bad = jnp.where((bad == NOTHING) & broken, IMPROPER, bad)
        old, own_keys = factors[rows, here], jax.vmap(jax.random.fold_in, (0, None))(keys, time)
        results = (old, ~none, errors[rows, here])
        for number, records in enumerate(groups.records):
            each = functools.partial(improved, records=records)
            arguments = {"total": total, "factor": old, "count": counts[rows, here]}
            arguments |= {"site": here, "key": own_keys}
            those = (groups.group[here] == number) & ~((here == left.site) & (time >= left.time))
            results = _for_those(
                those, each, arguments, results, max(1, ABREAST // records.weights.shape[1])
            )
        new, finite, error = results
        total, factors = total - old + new, factors.at[rows, here].set(new)
        counts = counts.at[rows, here].add(update.steps)
        bad = jnp.where((bad == NOTHING) & ~finite, here, bad)
        errors = errors.at[rows, here].set(error)
        slot = jnp.where((time + 1) % every == 0, (time + 1) // every, size)
        trace = trace.at[:, slot].set(total, mode="drop")
        return (total, factors, counts, bad, errors, trace), None

    zeros = jnp.zeros((repetitions, sites, *start.shape), start.dtype)
    trace = jnp.broadcast_to(start, (repetitions, size // every + 1, *start.shape))
    total, bad = (
        jnp.broadcast_to(start, (repetitions, *start.shape)),
        jnp.full(repetitions, NOTHING, walked.dtype),  # what is weakly typed is traced twice
    )
    counts = jnp.zeros((repetitions, sites), jnp.int32)
    carry = (total, zeros, counts, bad, jnp.zeros((repetitions, sites), start.dtype), trace)
    *_, bad, errors, trace = jax.lax.scan(visit, carry, (jnp.arange(size), walked.T))[0]
    return trace, bad, errors


def _for_those(those: Real, each: Any, arguments: Any, results: Any, width: int) -> Any:
    """The results, renewed by ``each`` in the rows of ``those``, ``width`` rows at a time."""
    chunks = -(-len(those) // width)
    width = -(-len(those) // chunks)
    # Rows past the last: where they are read the last one stands in, what they write is dropped.
    chosen = jnp.nonzero(those, size=chunks * width, fill_value=len(those))[0]

    def chunk(number: Any, results: Any) -> Any:
        rows = jax.lax.dynamic_slice(chosen, (number * width,), (width,))
        own = jax.tree.map(lambda leaf: leaf[jnp.minimum(rows, len(those) - 1)], arguments)
        new = jax.vmap(lambda own: each(**own))(own)
        write = lambda old, new: old.at[rows].set(new, mode="drop")
        return jax.tree.map(write, results, new)

    return jax.lax.fori_loop(0, -(-those.sum() // width), chunk, results)


def _check_finite(bad: np.ndarray, names: tuple[str, ...]) -> None:
    """Raise a SiteError if there is a site (not -1) that gave what is not finite."""
    for site in bad[bad >= 0]:
        raise failure_of(not_finite(), names[site])


# --- leaving ------------------------------------------------------------------------------------


class _Left(NamedTuple):
    site: Real
    time: Real
    """For each repetition the visit at which the factor leaves; past the last if it never does."""


def _departures(network: Network, walked: Real, leave: Leave | None) -> _Left:
    """Who leaves when, in each walk; errors if there is no such site or visit."""
    repetitions, visits = walked.shape
    if leave is None:
        return _Left(jnp.asarray(0), jnp.full(repetitions, visits))
    Constraint(f"a visit below {visits}", range(visits).__contains__).check(visit=leave.visit)
    site = network.index(leave.site)
    there = (walked == site) & (jnp.arange(visits) >= leave.visit)
    reached = jnp.where(there.any(1), there.argmax(1), visits)
    asked = jnp.full(repetitions, leave.visit)
    return _Left(jnp.asarray(site), asked if leave.asked else reached)
