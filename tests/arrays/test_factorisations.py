"""Factorisations by JAX: what they and their derivatives are, and that none waits for another."""

import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posterity.arrays.jax_namespace import JaxNamespace

XP = JaxNamespace()
VECTOR = np.arange(1.0, 4.0)
PAIRS = {
    "cholesky": (XP.cholesky, jnp.linalg.cholesky),
    "inverse_positive": (XP.inverse_positive, jnp.linalg.inv),
    "solve_positive": (
        lambda a: XP.solve_positive(a, VECTOR),
        lambda a: jnp.linalg.solve(a, VECTOR),
    ),
    "inverse_lower": (
        lambda a: XP.inverse_lower(jnp.tril(a)) @ a,
        lambda a: jnp.linalg.solve(jnp.tril(a), a),
    ),
}


def positive(size, *shape, seed=0):
    roots = np.random.default_rng(seed).normal(size=(*shape, size, 2 * size))
    return roots @ roots.swapaxes(-1, -2)


@pytest.mark.parametrize("name", PAIRS)
def test_values_and_two_derivatives_are_those_of_jax_alone_and_mapped(name):
    with jax.enable_x64(True):
        ours, theirs = (lambda a, f=f: jnp.sin(f(a)).sum() for f in PAIRS[name])
        matrices, way = positive(3, 5), positive(3, seed=1)

        def all_of(f):
            along = lambda a: jax.jvp(f, (a,), (way,))[1]  # symmetric, as matrices are
            return jax.jit(jax.vmap(lambda a: (f(a), along(a), jax.grad(along)(a))))

        pairs = zip(all_of(ours)(matrices), all_of(theirs)(matrices), strict=True)
        for found, known in pairs:
            symmetric = lambda a: a + np.swapaxes(a, -1, -2) if a.ndim == 3 else a
            found, known = symmetric(np.asarray(found)), symmetric(np.asarray(known))
            np.testing.assert_allclose(found, known, rtol=1e-8, atol=1e-10)
        assert np.isnan(jax.jit(XP.cholesky)(-matrices[0])).any()


@pytest.mark.parametrize("name", ["cholesky", "inverse_positive", "inverse_lower"])
def test_derivatives_are_in_the_precision_of_matrices_of_any_size(name):
    ours = getattr(XP, name)
    with jax.enable_x64(True):
        matrix, way = (positive(3, seed=seed).astype(np.float32) for seed in (0, 1))
        derivative = jax.eval_shape(lambda a, along: jax.jvp(ours, (a,), (along,))[1], matrix, way)
        assert derivative.dtype == np.float32
        assert ours(jnp.zeros((2, 0, 0))).shape == (2, 0, 0)


def test_the_inverse_of_a_lower_triangle_does_not_depend_on_the_upper_one():
    with jax.enable_x64(True):
        lower, way = np.linalg.cholesky(positive(3)), positive(3, seed=1)
        found, known = (
            jax.jit(lambda f=f: jax.jvp(f, (lower,), (way,))[1])()
            for f in (XP.inverse_lower, lambda a: jnp.linalg.inv(jnp.tril(a)))
        )
        np.testing.assert_allclose(found, known, atol=1e-12)


@pytest.mark.parametrize("axes", [1, 2])
def test_no_call_of_lapack_has_so_many_matrices_that_it_shares_them_out(axes):
    matrices = positive(20, *(40,) * axes)
    function = lambda a: jnp.linalg.norm(XP.solve_positive(a, jnp.ones(20)))
    for _ in range(axes):
        function = jax.vmap(jax.value_and_grad(function) if axes == 1 else function)
    text = jax.jit(function).lower(matrices).as_text()
    shapes = re.findall(r"@lapack_\w+\(.*?-> \(?tensor<([\dx]+)x(\d+)xf", text)
    assert shapes
    for many, _ in shapes:
        *batch, size = map(int, many.split("x"))
        assert np.prod(batch) * size**3 < 200_000, shapes  # from where jaxlib distributes them


SIDE_BY_SIDE = """
import jax, numpy as np
from posterity.arrays.jax_namespace import JaxNamespace
all_of = lambda each: sum(JaxNamespace().inverse_positive(a).sum() for a in each)
each = [np.eye(20)[None].repeat(100, 0) * (2.0 + number) for number in range(16)]
for _ in range(20):
    jax.block_until_ready(jax.jit(all_of)(each))
"""


@pytest.mark.slow
def test_many_factorisations_side_by_side_end_under_the_flags_that_users_have():
    """By jaxlib 0.10 alone these stand still at the first run, where there are two threads."""
    own = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    subprocess.run([sys.executable, "-c", SIDE_BY_SIDE], env=own, timeout=200, check=True)
