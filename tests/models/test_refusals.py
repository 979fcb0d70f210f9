"""What models refuse: data that cannot be theirs, and parameters that make no sense."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posterity.errors import ParameterError, PosterityError, StructureError, UsageError
from posterity.models import (
    BetaBernoulli,
    BetaExponential,
    DirichletCategorical,
    FunctionModel,
    GammaPoisson,
    GaussianMean,
    GaussianMeanCovariance,
    LinearRegression,
    LogisticRegression,
    NeuralNetwork,
    Records,
)

X, Y = np.ones((3, 2)), np.array([0, 1, 1])
PAIR = GaussianMean(np.eye(2))
ANY = FunctionModel(lambda z, x: x)


def network(outputs: int, likelihood: str = "categorical") -> NeuralNetwork:
    apply = lambda p, x: jnp.tanh(x @ p["w"] + p["b"])
    parameters = {"w": np.zeros((2, outputs)), "b": np.zeros(outputs)}
    return NeuralNetwork(apply, parameters, likelihood=likelihood)


DATA = {
    "NaN": (GammaPoisson(), np.array([1.0, np.nan]), ParameterError, "1 NaN or infinite"),
    "infinite": (BetaExponential(), np.array([np.inf, 1.0]), ParameterError, "NaN or infinite"),
    "NaN in inputs": (LogisticRegression(), (X * np.nan, Y), ParameterError, "6 NaN"),
    "NaN for a function": (ANY, X * np.nan, ParameterError, "6 NaN"),
    "text": (BetaBernoulli(), np.array(["yes", "no"]), StructureError, "real numbers"),
    "objects": (BetaBernoulli(), np.array([None, 1]), StructureError, "dtype object"),
    "complex": (BetaExponential(), np.array([1j]), StructureError, "real numbers"),
    "a coin of 2": (BetaBernoulli(), np.array([0, 2, 1]), ParameterError, r"found 2 .*\{0, 1\}"),
    "half a coin": (BetaBernoulli(), np.array([0.5]), ParameterError, "found 0.5 "),
    "coins in a table": (BetaBernoulli(), X, StructureError, r"\(3, 2\)"),
    "coins with labels": (BetaBernoulli(), (Y, Y), StructureError, "2 arrays; .* one array"),
    "label too large": (DirichletCategorical(3), np.array([0, 3]), ParameterError, "0 to 2"),
    "label negative": (DirichletCategorical(3), np.array([0, -1]), ParameterError, "found -1"),
    "label fractional": (DirichletCategorical(3), np.array([0.5]), ParameterError, "found 0.5"),
    "one-hot labels": (DirichletCategorical(3), np.eye(3), StructureError, r"shape \(n,\)"),
    "count negative": (GammaPoisson(), np.array([3, -2]), ParameterError, "found -2"),
    "count fractional": (GammaPoisson(), np.array([1.5]), ParameterError, "counts 0, 1, 2"),
    "time negative": (BetaExponential(), np.array([-0.1]), ParameterError, "not negative"),
    "vectors too long": (PAIR, np.ones((4, 3)), StructureError, "n, 2"),
    "numbers for vectors": (GaussianMeanCovariance(), np.ones(4), StructureError, "n, d"),
    "no labels": (LinearRegression(), X, StructureError, "ndarray; .* pair"),
    "three arrays": (LinearRegression(), (X, Y, Y), StructureError, "tuple of 3; .* pair"),
    "named arrays": (LogisticRegression(), {"x": X, "y": Y}, StructureError, "dict; .* pair"),
    "flat inputs": (LinearRegression(), (Y, Y), StructureError, "x of shape"),
    "column of labels": (LogisticRegression(), (X, Y[:, None]), StructureError, "y of shape"),
    "labels of 1 and 2": (LogisticRegression(), (X, Y + 1), ParameterError, "found 2 .*labels in"),
    "net: NaN": (network(3), (X * np.nan, Y), ParameterError, "6 NaN"),
    "net: no labels": (network(3), X, StructureError, "pair"),
    "net: label too large": (network(3), (X, Y + 2), ParameterError, "found 3 .*0 to 2"),
    "net: label negative": (network(3), (X, Y - 1), ParameterError, "found -1"),
    "net: label of 2": (network(1, "bernoulli"), (X, 2 * Y), ParameterError, "found 2"),
    "net: column of labels": (network(3), (X, Y[:, None]), StructureError, r"y of shape \(n,\)"),
    "net: three logits": (network(3, "bernoulli"), (X, Y), StructureError, "one logit"),
    "net: two means": (network(2, "gaussian"), (X, X[:, :1]), StructureError, "shaped as y"),
    "net: lengths differ": (network(3), (X, Y[:2]), StructureError, r"\(3, 3\).*\(2,\)"),
    "net: wide inputs": (network(3), (np.ones((3, 5)), Y), StructureError, r"\(3, 5\)"),
}


@pytest.mark.parametrize("model, data, kind, says", DATA.values(), ids=list(DATA))
def test_data_that_cannot_be_the_models(
    model: Any, data: Any, kind: type[PosterityError], says: str
) -> None:
    with pytest.raises(kind, match=says):
        model.check(data)


def total_of(function: Any) -> None:
    FunctionModel(function).total(jnp.asarray(0.5), Records.of(np.arange(3.0)))


ONE_A_RECORD = (StructureError, r"one number a record: shape \(3,\)")
COMMON_AXIS = (StructureError, "first axes agree")
NOISE = (ParameterError, "noise_variance=.* a positive number")
FLOATS = (UsageError, "a pytree of arrays of floats, at least one.*from_equinox")
net = partial(NeuralNetwork, lambda p, x: x)
REST = {
    "a sum": (lambda: total_of(lambda z, x: (x * z).sum()), *ONE_A_RECORD),
    "a column": (lambda: total_of(lambda z, x: (x * z)[:, None]), *ONE_A_RECORD),
    "too few": (lambda: total_of(lambda z, x: (x * z)[:2]), *ONE_A_RECORD),
    "a constant": (lambda: total_of(lambda z, x: 0.0), *ONE_A_RECORD),
    "lengths differ": (lambda: Records.of((X, Y[:2])), *COMMON_AXIS),
    "a list": (lambda: Records.of([1, 0, 1]), *COMMON_AXIS),
    "a number": (lambda: Records.of(np.float64(3.0)), *COMMON_AXIS),
    "nothing": (lambda: Records.of(()), *COMMON_AXIS),
    "named lengths differ": (lambda: Records.of({"x": X, "y": np.ones(4)}), *COMMON_AXIS),
    "oblong": (lambda: GaussianMean(np.ones((2, 3))), StructureError, "d x d matrices"),
    "several": (lambda: GaussianMean(np.stack([np.eye(2)] * 2)), StructureError, "matrix"),
    "no matrix": (lambda: GaussianMean(2.0), StructureError, "matrix"),
    "indefinite": (lambda: GaussianMean([[1, 2], [2, 1]]), ParameterError, "positive definite"),
    "asymmetric": (lambda: GaussianMean([[1, 0.5], [0, 1]]), ParameterError, "asymmetric"),
    **{f"noise {x}": (partial(LinearRegression, x), *NOISE) for x in (0.0, -1.0, np.nan, np.inf)},
    "net: noise": (lambda: net([np.zeros(2)], noise_variance=0.0), *NOISE),
    "net: likelihood": (lambda: net([X], likelihood="poisson"), UsageError, "'poisson'.*'gauss"),
    "net: nothing": (lambda: net({}), *FLOATS),
    # Its activation is a leaf, too.
    "net: module": (lambda: net(eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(0))), *FLOATS),
    "net: a count": (lambda: net({"w": X, "count": 3}), UsageError, r"\['int'\]"),
}


@pytest.mark.parametrize("act, kind, says", REST.values(), ids=list(REST))
def test_what_makes_no_sense(act: Any, kind: type[PosterityError], says: str) -> None:
    with pytest.raises(kind, match=says):
        act()
