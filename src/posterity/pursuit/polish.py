"""The joint polish: all components and weights moved together, by the ELBO itself."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from posterity.pursuit import bank as banks
from posterity.pursuit import climb, objectives
from posterity.pursuit import weights as rules
from posterity.pursuit.component import DRAWS
from posterity.pursuit.objectives import Components
from posterity.pursuit.search import Search, State
from posterity.pursuit.shapes import Shape
from posterity.pursuit.target import Target

LOOKS = 500
FINER = 4
"""Times as many nodes, where what the nodes promise is not there at other draws."""


def polished(search: Search, state: State) -> State:
    """The state with a better ELBO at draws that the search did not see; or as it was."""
    if state.size < 2:
        return state
    for finer in (1,) if search.noisy else (1, FINER):
        v, used = _searched(search, state, finer)
        state = dataclasses.replace(state, evaluations=state.evaluations + used)
        parameters = objectives.moved_all(search.shape, state.parameters, v[:, :-1])
        if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(parameters)):
            continue
        with np.errstate(divide="ignore"):
            weights = scipy.special.softmax(np.log(state.weights) + np.asarray(v[:, -1]))
        weights = rules.pruned(weights)
        moved = Components(parameters, jnp.asarray(np.log(np.maximum(weights, 1e-300))))
        noise = search.noises(len(weights))
        bank = banks.whole(search.shape, search.target, moved, noise)
        gain = state.gain(bank, weights)
        if not np.isfinite(gain.value):
            continue
        if gain.value > 0:
            after = dataclasses.replace(state, parameters=parameters, weights=weights, bank=bank)
            return after.with_row(gain, float("nan"), float("nan"))
        if not gain.value < -gain.standard_error:  # there was nothing to gain
            return state
    return state


def _searched(search: Search, state: State, finer: int) -> tuple[Any, int]:
    """Moves of all components and log weights (K, p + 1), and the gradients that they took."""
    shape, moves = search.shape, jnp.zeros((len(state.weights), search.shape.moves + 1))
    if search.noisy:
        found = climb.adam(
            _noisy, shape, moves, (search.target, state.q), draws=DRAWS, steps=search.steps,
            key=search.key_of(0),
        )  # fmt: skip
        return jnp.asarray(found.v), found.evaluations
    nodes = jnp.asarray(shape.nodes(finer * search.nodes))
    arguments = (search.target, state.q, nodes)
    found = climb.lbfgs(objectives.joint, shape, moves, arguments, LOOKS)
    return found.v, int(found.evaluations) * len(nodes) * state.size


def _noisy(shape: Shape, v: Any, noise: Any, key: Any, target: Target, q: Components) -> Any:
    return objectives.joint(shape, v, target, q, noise, key)
