"""Members are pytrees: they pass through jit, vmap and grad, and compile once a shape."""

from typing import Any

import jax
import numpy as np
import pytest

from tests.laws.table import NAMES, TABLE, close, dear_ones_slow, some, to_jax

families = pytest.mark.parametrize("name", NAMES)
compiled = pytest.mark.parametrize("name", dear_ones_slow(NAMES))


def divergence(p: Any, q: Any) -> dict[str, Any]:
    """The closed forms that algorithms call inside their steps."""
    middle = 0.5 * (p + q)
    return {"kl": p.kl(middle), "entropy": middle.entropy(), "mean": p.mean_parameters - 1}


@compiled
def test_jit_compiles_once_for_one_shape(name: str) -> None:
    """And what is vectorised is the batch."""
    p, q, r = some(name, count=3, batch=(2,))
    traces = []

    @jax.jit
    def step(p: Any, q: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        traces.append(1)
        return divergence(p, q), jax.vmap(divergence)(p, q)

    with jax.enable_x64(True):
        for left, right in [(p, q), (q, r), (p, 0.5 * (q + r))]:
            expected = divergence(left, right)
            for found in (*step(left, right), *step(to_jax(left), to_jax(right))):
                close(found, expected, rtol=1e-9, atol=1e-10)
        assert len(traces) == 1
        step.lower(p[:1], q[:1])
        assert len(traces) == 2


@compiled
def test_grad_of_the_divergence_vanishes_at_its_minimum(name: str) -> None:
    """By the family's own KL formula: the gradient in the second argument is ``μ' - μ``."""
    p, q = some(name, count=2)
    with jax.enable_x64(True):
        template = to_jax(q)

        def loss(eta: jax.Array) -> jax.Array:
            return to_jax(p).kl(template.with_natural_parameters(eta))

        gradient = jax.jit(jax.grad(loss))
        away = gradient(to_jax(q.natural_parameters))
        close(away, q.mean_parameters - p.mean_parameters, rtol=1e-8, atol=1e-9)
        close(gradient(to_jax(p.natural_parameters)), 0 * p.natural_parameters, atol=1e-9)


@pytest.mark.parametrize("name", TABLE)
def test_samples_have_the_asked_shape(name: str) -> None:
    """``shape + batch + event`` for every leaf, in the precision of the parameters."""
    (p,) = some(name, batch=(4,))
    (one,) = some(name)
    batch = getattr(p, "batch_shape", ())
    key = jax.random.key(0)
    with jax.enable_x64(True):
        event = jax.tree.leaves(jax.eval_shape(one.sample, key))
        for shape in [(), (2, 3)]:
            drawn = jax.tree.leaves(jax.eval_shape(lambda k: p.sample(k, shape), key))  # noqa: B023
            expected = [(*shape, *batch, *leaf.shape) for leaf in event]
            assert [leaf.shape for leaf in drawn] == expected
            assert {leaf.dtype for leaf in drawn} <= {np.dtype(t) for t in ("f8", "i8", "i4")}


@pytest.mark.parametrize("name", ["Beta", pytest.param("Wishart", marks=pytest.mark.slow)])
def test_outside_of_any_program_nothing_is_compiled_twice(name: str, caplog: Any) -> None:
    """Loops and derivatives too, which JAX would compile anew at every call."""
    with jax.enable_x64(True):
        p = to_jax(some(name)[0])
        key = jax.random.key(0)

        def everything() -> Any:
            back = p.with_mean_parameters(p.mean_parameters)
            return back, p.fisher_information(), p.squared_length(p), p.sample(key, (3,))

        everything()
        with jax.log_compiles():
            everything()
    assert not [record for record in caplog.records if "Compiling" in record.getMessage()]


@families
def test_leaves_and_structure_survive_flattening(name: str) -> None:
    (p,) = some(name, batch=(2,))
    leaves, tree = jax.tree.flatten(p)
    again = jax.tree.unflatten(tree, leaves)
    assert jax.tree.structure(again) == jax.tree.structure(p)
    assert all(a is b for a, b in zip(jax.tree.leaves(again), leaves, strict=True))
    assert hash(tree) == hash(jax.tree.structure(some(name, batch=(2,), seed=1)[0]))
