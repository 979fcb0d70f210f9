"""Laws of weights against the definition of the Fisher information, and back into modules."""

import contextlib
import functools
import sys
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.optimize import minimize

import posterity
from posterity import DiagonalGaussian, Gaussian, Network, Product
from posterity.adapters import fisher
from posterity.adapters.flax import from_module, from_params, to_ledger, to_params
from posterity.errors import (
    ConvergenceWarning,
    MissingExtraError,
    ParameterError,
    StructureError,
    UsageError,
)
from posterity.networks import from_pytree

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2)).astype(np.float32)
CLASSES = dict(likelihood="classification", prior_precision=0.5)


class Small(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.tanh(nn.Dense(3)(x))
        return nn.Dense(self.outputs)(x)


def raveled(params: Any) -> tuple[np.ndarray, Any]:
    """All weights as one vector, and the way back, for NumPy's arrays and for traced ones."""
    leaves, tree = jax.tree.flatten(params)
    shapes = [np.shape(leaf) for leaf in leaves]
    ends = np.cumsum([np.size(leaf) for leaf in leaves])[:-1]

    def rebuild(flat: Any) -> Any:
        xp = np if isinstance(flat, np.ndarray) else jnp
        parts = zip(xp.split(flat, ends), shapes, strict=True)
        return jax.tree.unflatten(tree, [part.reshape(shape) for part, shape in parts])

    return np.concatenate([np.ravel(leaf) for leaf in leaves]), rebuild


def trained(
    params: Any, apply: Any, y: np.ndarray, precision: float = 0.5, noise: float | None = None
) -> Any:
    """At the mode, under a prior of this precision."""
    flat, rebuild = raveled(params)

    def loss(flat: Any) -> Any:
        f = apply(rebuild(flat), X)
        if noise is not None:
            left = jnp.square(f - y).sum() / (2 * noise)
        else:
            f = jnp.concatenate([0 * f, f], 1) if f.shape[1] == 1 else f
            left = -jnp.take_along_axis(jax.nn.log_softmax(f), y[:, None], 1).sum()
        return left + precision / 2 * jnp.square(flat).sum()

    ask = jax.jit(jax.value_and_grad(loss))
    fun = lambda at: [np.asarray(v, np.float64) for v in ask(jnp.asarray(at, jnp.float32))]
    found = minimize(fun, flat, jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return rebuild(found.x.astype(np.float32))


@functools.cache
def network(outputs: int) -> tuple[Any, Any, Any, np.ndarray]:
    """Trained on labels of its own."""
    module = Small(outputs)
    params = jax.jit(module.init)(jax.random.key(1), X[:1])["params"]
    params = jax.tree.map(lambda leaf: 2 * np.asarray(leaf), params)
    apply = jax.jit(lambda params, x: module.apply({"params": params}, x))
    y = None
    while y is None or (labels(np.asarray(apply(params, X))) != y).any():
        y = labels(np.asarray(apply(params, X)))
        params = trained(params, apply, y)
    return module, params, apply, np.asarray(apply(params, X))


def labels(f: np.ndarray) -> np.ndarray:
    return (f[:, 0] > 0).astype(int) if f.shape[1] == 1 else f.argmax(1)


def information(
    params: Any, apply: Any, outputs: int, noise: float | None, y: np.ndarray | None = None
) -> np.ndarray:
    """By definition, ``E[g gᵀ]``: over labels by their chances, or two values."""
    flat, rebuild = raveled(params)

    def logs(flat: Any, x: Any) -> Any:
        f = apply(rebuild(flat), x[None])[0]
        if noise is not None:
            still = jax.lax.stop_gradient(f)
            ends = []
            for k in range(outputs):  # ± a deviation in one output: all moments up to the third
                for sign in (-1.0, 1.0):
                    y = still.at[k].add(sign * jnp.sqrt(noise))
                    ends.append((f[k] - y[k]) ** 2 / (-2 * noise))
            return jnp.stack(ends)
        f = jnp.concatenate([jnp.zeros(1), f]) if outputs == 1 else f
        return jax.nn.log_softmax(f)

    slopes = np.asarray(jax.jit(jax.vmap(jax.jacobian(logs), (None, 0)))(flat, X), np.float64)
    weights = np.full(slopes.shape[:2], 0.5)
    if noise is None and y is None:
        chances = jax.jit(jax.vmap(lambda x: jnp.exp(logs(flat, x))))(X)
        weights = np.asarray(chances, np.float64)
    elif y is not None:
        weights = np.eye(slopes.shape[1])[y]
    return np.einsum("nkp,nk,nkq->pq", slopes, weights, slopes)


def together(q: Any, at: str = "precision") -> np.ndarray:
    """In the order of the leaves, which is that of the names."""
    return np.concatenate([np.asarray(getattr(block, at)) for block in q.blocks.values()])


@pytest.mark.parametrize(("outputs", "which"), [(3, "model"), (3, "empirical"), (1, "model")])
@pytest.mark.slow
def test_information_of_classes_is_the_expected_square_of_gradients(
    outputs: int, which: str
) -> None:
    module, params, apply, f = network(outputs)
    y = labels(f)
    wanted = information(params, apply, outputs, None, y if which == "empirical" else None)
    q = from_module(module, X, y, variables={"params": params}, fisher=which, **CLASSES)
    assert isinstance(q, Product)
    np.testing.assert_allclose(together(q), np.diagonal(wanted) + 0.5, rtol=1e-4)
    full = from_module(module, X, y, variables=params, fisher=which, curvature="full", **CLASSES)
    np.testing.assert_allclose(full.precision, wanted + 0.5 * np.eye(len(wanted)), atol=1e-4)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    np.testing.assert_allclose(full.mean, flat, atol=1e-5)
    assert full.names[:4] == (
        "Dense_0.bias[0]",
        "Dense_0.bias[1]",
        "Dense_0.bias[2]",
        "Dense_0.kernel[0,0]",
    )


def test_information_of_values_with_known_and_with_estimated_noise() -> None:
    module, params, apply, f = network(2)
    y = f + 0.2 * RNG.normal(size=f.shape)
    params = trained(params, apply, y, 2.0, 0.04)
    f = np.asarray(apply(params, X))
    task: Any = dict(likelihood="regression", prior_precision=2.0)
    for noise in (0.04, None):
        q = from_module(module, X, y, variables=params, noise_variance=noise, **task)
        used = float(np.square(y - f).mean()) if noise is None else noise
        wanted = information(params, apply, 2, used)
        np.testing.assert_allclose(together(q), np.diagonal(wanted) + 2.0, rtol=1e-4)


def test_a_linear_network_has_the_posterior_of_linear_regression() -> None:
    y = X @ [1.0, -2.0] + 0.3 + 0.2 * RNG.normal(size=len(X))
    z = np.column_stack([np.ones(len(X)), X]).astype(np.float64)
    precision = z.T @ z / 0.04 + np.eye(3)
    mode = np.linalg.solve(precision, z.T @ y / 0.04)
    params = {"bias": mode[:1].astype(np.float32), "kernel": mode[1:, None].astype(np.float32)}
    q = from_module(
        nn.Dense(1), X, y, variables=params, likelihood="regression", noise_variance=0.04,
        prior_precision=1.0, curvature="full",
    )  # fmt: skip
    np.testing.assert_allclose(q.precision, precision, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(q.mean, mode, rtol=1e-5)


def linear(y: np.ndarray, weight: Any, prior: float = 1.0, x: Any = X, **task: Any) -> Any:
    """The ledger of a linear net without a bias, and the weights as they are."""
    params = {"kernel": np.asarray(weight, np.float32)[:, None]}
    return to_ledger(
        nn.Dense(1, use_bias=False), "north", x, y, variables=params, likelihood="regression",
        noise_variance=0.01, prior_precision=prior, curvature="full", **task,
    )  # fmt: skip


def test_the_prior_is_in_no_factor() -> None:
    """A column of which data say little; λθ is counted once, wherever the weights are."""
    z = (X * [1.0, 1e-3]).astype(np.float32)
    y = (z @ [1.0, 2.0] + 0.1 * RNG.normal(size=len(z))).astype(np.float64)
    z64 = z.astype(np.float64)
    precision, slope = z64.T @ z64 / 0.01, z64.T @ y / 0.01
    mode = np.linalg.solve(precision + np.eye(2), slope)
    for off in (0.0, 0.5):  # of the standard deviation of the second
        weight = mode + np.array([0.0, off])
        context: Any = pytest.warns(ConvergenceWarning, match=r"0\.35 posterior")
        with context if off else contextlib.nullcontext():
            ledger = linear(y, weight, x=z)
        factor = ledger.factor("north")
        np.testing.assert_allclose(factor.precision, precision, rtol=1e-4)
        np.testing.assert_allclose(factor.precision_mean, slope, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(ledger.posterior.mean, mode, atol=1e-3)
    with pytest.raises(ParameterError, match=r"1\.4 posterior standard deviations"):
        linear(y, mode + np.array([0.0, 2.0]), x=z)
    with pytest.raises(ParameterError, match="prior_precision"):
        linear(y, mode, prior=1e4, x=z)


def test_the_diagonal_factor_is_the_likelihood_and_chunks_change_nothing(monkeypatch: Any) -> None:
    module, params, _, f = network(1)
    q = from_module(module, X, labels(f), variables=params, **CLASSES)
    with monkeypatch.context() as patch:
        patch.setattr(fisher, "laws", functools.partial(fisher.laws, at_once=400))
        parts = from_module(module, X, labels(f), variables=params, **CLASSES)
    np.testing.assert_allclose(together(parts), together(q), rtol=1e-6)
    factor = to_ledger(module, "a", X, labels(f), variables=params, **CLASSES).factor("a")
    mean = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    np.testing.assert_allclose(together(factor), together(q) - 0.5, rtol=1e-9)
    slope = together(factor, "precision_mean") - together(factor) * mean
    np.testing.assert_allclose(slope, 0.5 * mean, atol=0.02)  # at a mode: λθ


def test_products_of_squares_are_squares_of_gradients_of_shared_kernels_too(
    monkeypatch: Any,
) -> None:
    rng = np.random.default_rng(4)
    sizes = {"first": (2, 3), "tied": (3, 3), "last": (3, 3), "shift": (3,)}
    params = {n: rng.normal(size=size).astype(np.float32) for n, size in sizes.items()}

    def apply(own: Any, x: Any) -> Any:
        for name in ("first", "tied", "tied"):
            x = jnp.tanh(x @ own[name])
        return x @ own["last"] + own["shift"]

    made = []
    whole = fisher.Slopes.squares
    monkeypatch.setattr(
        fisher.Slopes, "squares", lambda self, rows: (made.append(self), whole(self, rows))[1]
    )
    y = labels(np.asarray(apply(params, X)))
    monkeypatch.setattr(fisher, "check_mode", lambda *arguments: None)  # it is not trained
    q = from_params(params, apply, X, y, **{**CLASSES, "prior_precision": 1.0})
    products = [own.inputs is not None for own in made]
    assert dict(zip(sorted(sizes), products, strict=True)) == {
        "first": True,
        "last": True,
        "shift": False,
        "tied": False,
    }
    wanted = np.diagonal(information(params, apply, 3, None))
    np.testing.assert_allclose(together(q) - 1.0, wanted, rtol=1e-4, atol=1e-6)


def test_a_law_goes_through_a_file_and_back_into_the_module(tmp_path: Any) -> None:
    module, params, apply, f = network(3)
    q = from_module(module, X, labels(f), variables=params, **CLASSES)
    assert q.blocks["Dense_0.kernel"].names[:2] == ("[0,0]", "[0,1]")
    posterity.save(q, tmp_path / "weights.safetensors")
    loaded = posterity.load(tmp_path / "weights.safetensors")
    again = to_params(loaded, params)
    np.testing.assert_allclose(apply(again, X), f, rtol=1e-5, atol=1e-6)
    assert jax.tree.map(lambda leaf: leaf.dtype, again) == jax.tree.map(
        lambda leaf: leaf.dtype, params
    )
    draws = [to_params(q, params, key=key) for key in jax.random.split(jax.random.key(0), 64)]
    drawn = np.stack([np.asarray(draw["Dense_1"]["bias"]) for draw in draws])
    off = (drawn - np.asarray(params["Dense_1"]["bias"])) * np.sqrt(
        q.blocks["Dense_1.bias"].precision
    )
    assert abs(np.square(off).mean() - 1) < 4 * np.sqrt(2 / off.size)


def test_a_law_makes_a_network_whose_units_can_be_matched() -> None:
    module, params, apply, f = network(3)
    q = from_module(module, X, labels(f), variables=params, **CLASSES)
    found = from_pytree(to_params(q, params), to_params(q, params, at="variance"),
                        activation="tanh", apply=apply)  # fmt: skip
    assert isinstance(found, Network) and found.layers.widths == (3,)
    np.testing.assert_allclose(np.sort(found.precision), np.sort(together(q)), rtol=1e-5)


def test_the_last_layer_alone_and_the_ledger_of_a_site() -> None:
    module, params, _, f = network(3)
    task: Any = dict(variables=params, only="Dense_1", curvature="full", **CLASSES)
    q = from_module(module, X, labels(f), **task)
    assert isinstance(q, Gaussian) and q.event_shape == (12,)
    ledger = to_ledger(module, "north", X, labels(f), **task)
    np.testing.assert_allclose(ledger.posterior.precision, q.precision, rtol=1e-12)  # pyright: ignore
    np.testing.assert_allclose(ledger.posterior.mean, q.mean, atol=0.02)  # pyright: ignore
    again = to_params(q, params)
    np.testing.assert_array_equal(again["Dense_0"]["kernel"], params["Dense_0"]["kernel"])
    with pytest.raises(UsageError, match="Dense_9"):
        from_module(module, X, labels(f), variables=params, only=["Dense_9"], **CLASSES)


class Modern(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(2, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.drop(nnx.relu(self.norm(self.first(x)))))


def test_modules_of_nnx_in_evaluation_mode() -> None:
    module = nnx.jit(lambda: Modern(nnx.Rngs(0)))()
    module.last.kernel[...] = 20 * np.asarray(module.last.kernel[...])
    module.eval()
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    apply = jax.jit(lambda own, x: nnx.merge(graph, own, rest, copy=True)(x))
    y = np.asarray(apply(params, X)).argmax(1)
    params = trained(params, apply, y)
    nnx.update(module, params)
    f = np.asarray(apply(params, X))
    module.train()
    q = from_module(module, X, y, **CLASSES)
    assert module.drop.deterministic is False  # as it was
    assert set(q.blocks) == {
        f"{layer}.{name}"
        for layer, names in {
            "first": ("kernel", "bias"),
            "last": ("kernel", "bias"),
            "norm": ("scale", "bias"),
        }.items()
        for name in names
    }
    again = to_params(q, module)
    again.eval()
    np.testing.assert_allclose(apply(nnx.split(again, nnx.Param, ...)[1], X), f, atol=1e-5)


def test_many_weights_have_no_names_but_those_of_their_tensors() -> None:
    y = (X[:, 0] > 0).astype(int)
    apply = lambda params, x: x @ params["kernel"][:, :2]
    params = trained({"kernel": np.zeros((2, 3000), np.float32)}, apply, y)
    q = from_params(params, apply, X, y, **CLASSES)
    assert list(q.blocks) == ["kernel"] and not q.blocks["kernel"].names
    np.testing.assert_allclose(q.blocks["kernel"].precision[2:3000], 0.5)  # of the prior
    with pytest.raises(StructureError, match="6000 weights"):
        from_params(params, apply, X, y, curvature="full", **CLASSES)


def test_other_precisions_and_counters() -> None:
    _, params, apply, f = network(3)
    for dtype in (np.float64, jnp.bfloat16):
        own = jax.tree.map(lambda leaf, d=dtype: np.asarray(leaf, d), params)
        again = to_params(from_params(own, apply, X, labels(f), **CLASSES), own)
        assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(again))
    with pytest.raises(StructureError, match="count"):
        from_params({"w": params, "count": np.zeros((), int)}, apply, X, labels(f), **CLASSES)


def test_bad_input_is_refused(monkeypatch: Any) -> None:
    module, params, apply, f = network(3)
    y = labels(f)
    fit = lambda x=X, y=y, **task: from_params(params, apply, x, y, **(CLASSES | task))
    with pytest.raises(UsageError, match="does not hold its weights"):
        from_module(module, X, y, **CLASSES)
    with pytest.raises(UsageError, match=r"flax\.linen or flax\.nnx"):
        from_module(params, X, y, **CLASSES)
    with pytest.raises(UsageError, match="prior_precision=0"):
        fit(prior_precision=0)
    with pytest.raises(UsageError, match="noise_variance"):
        fit(noise_variance=1.0)
    with pytest.raises(UsageError, match="likelihood='poisson'"):
        fit(likelihood="poisson")
    with pytest.raises(ParameterError, match="from 0 to 2"):
        fit(y=y + 3)
    with pytest.raises(StructureError, match="targets of the same n records"):
        fit(y=y[:5])
    with pytest.raises(StructureError, match="like probabilities"):
        from_params(params, lambda p, x: jax.nn.softmax(apply(p, x)), X, y, **CLASSES)
    _, one, odds, f1 = network(1)
    with pytest.raises(StructureError, match="log odds of class 1"):
        from_params(one, lambda p, x: jax.nn.sigmoid(odds(p, x)), X, labels(f1), **CLASSES)
    with pytest.raises(ParameterError, match="NaN or infinity in the outputs"):
        fit(x=np.where(np.arange(30)[:, None] == 3, np.nan, X))
    broken = jax.tree.map(
        lambda leaf: np.where(np.arange(len(leaf)) == 0, np.nan, leaf.T).T, params
    )
    with pytest.raises(ParameterError, match=r"weights 'Dense_0\.bias'"):
        from_params(broken, lambda p, x: apply(params, x), X, y, **CLASSES)
    with (
        pytest.warns(ConvergenceWarning, match="no better than"),
        pytest.raises(ParameterError, match="from the mode"),
    ):
        fit(y=(y + 1) % 3)
    with pytest.raises(TypeError, match="'likelihood' and 'prior_precision'"):
        from_params(params, apply, X, y)
    with pytest.raises(TypeError, match="'noise'"):
        to_ledger(module, "north", X, y, variables=params, noise=1.0, **CLASSES)
    q = fit()
    with pytest.raises(StructureError, match="do not fit"):
        to_params(q, {"Dense_0": {"bias": np.zeros(7, np.float32)}})
    with pytest.raises(StructureError, match="do not fit"):
        to_params(DiagonalGaussian.from_standard([0.0], [1.0]), params)
    monkeypatch.setitem(sys.modules, "flax", None)
    with pytest.raises(MissingExtraError, match=r"posterity\[flax\]"):
        from_module(None, X, X[:, 0], **CLASSES)


def test_trees_of_other_libraries_need_no_flax(monkeypatch: Any) -> None:
    module, params, _, f = network(3)
    q = from_module(module, X, labels(f), variables=params, **CLASSES)
    with_flax = to_params(q, params)
    for name in ("flax", "flax.linen", "flax.nnx"):
        monkeypatch.setitem(sys.modules, name, None)
    jax.tree.map(np.testing.assert_array_equal, to_params(q, params), with_flax)


def _flat(params: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return {".".join(str(key.key) for key in path): np.asarray(leaf) for path, leaf in leaves}
