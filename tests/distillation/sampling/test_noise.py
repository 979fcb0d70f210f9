"""Noise is shaped as asked, the same for the same key, and other for any other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posterity.distillation.sampling import noise
from posterity.errors import UsageError

LIKE = {name: np.zeros(own, np.float32) for name, own in
        {"bias": 7, "kernel": (5, 7), "scale": ()}.items()}  # fmt: skip
normal = jax.jit(noise.normal, static_argnames="kind")
bits_of = jax.jit(noise.bits, static_argnums=1)
indices = jax.jit(noise.indices, static_argnums=(1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binomial", "normal"])
def test_noise_is_shaped_and_typed_as_what_it_is_for(kind):
    drawn = normal(jax.random.key(1), LIKE, kind=kind)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name), drawn) == {
        "bias": ((7,), "float32"),
        "kernel": ((5, 7), "float32"),
        "scale": ((), "float32"),
    }
    if kind == "binomial":  # whose bits are the same in double precision
        with jax.enable_x64(True):
            double = normal(jax.random.key(1), jax.tree.map(np.float64, LIKE))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), drawn, double)
        assert double["kernel"].dtype == jnp.float64


@pytest.mark.parametrize("kind", ["binomial", "normal"])
def test_a_key_gives_its_own_numbers_always(kind):
    draw = lambda key: noise.normal(key, np.zeros(100, np.float32), kind)
    compiled = jax.jit(draw)
    keys = jax.random.split(jax.random.key(3), 4)
    together = np.asarray(jax.jit(jax.vmap(draw))(keys))
    for key, row in zip(keys, together, strict=True):
        np.testing.assert_array_equal(row, compiled(key))
    assert len(np.unique(together, axis=0)) == 4


def test_every_word_of_a_key_counts():
    def bits(*words):
        return np.asarray(bits_of(jax.random.wrap_key_data(np.array(words, np.uint32)), (64,)))

    first = bits(0, 0)
    for bit in (0, 7, 31):
        for words in ((1 << bit, 0), (0, 1 << bit)):
            assert 0.4 < np.mean(np.unpackbits((first ^ bits(*words)).view(np.uint8))) < 0.6
    assert (bits(5, 9) != bits(9, 5)).all()


def test_keys_of_other_generators():
    for name in ("threefry2x32", "rbg"):
        drawn = normal(jax.random.key(0, impl=name), np.zeros(10_000, np.float32))
        assert abs(np.asarray(drawn).mean()) < 4 / 100


def test_the_hash_is_what_it_always_was():
    """Runs that go on from a file draw the same noise after an upgrade."""
    key = jax.random.wrap_key_data(np.array([1, 2], np.uint32))
    assert np.asarray(bits_of(key, (3,))).tolist() == HASHED
    assert np.asarray(indices(key, (3,), 1000)).tolist() == PLACES


HASHED = [420628414, 384564043, 4242186294]
PLACES = [936, 195, 179]


@pytest.mark.parametrize("below", [1, 70_001, 2**31 - 1])
def test_places_lie_where_they_are_to(below):
    found = np.asarray(indices(jax.random.key(4), (50, 20), below))
    assert found.dtype == np.int32 and found.shape == (50, 20)
    assert found.min() >= 0 and found.max() < below
    if below > 100:
        assert found.max() > 0.98 * below and found.min() < 0.02 * below


def test_hash_and_sum_are_one_loop():
    """Nothing the size of the noise is stored: on a CPU no buffer is, beside inputs and outputs."""
    size = 100_000

    def step(key, x):
        return x + 0.1 * noise.normal(key, x)

    compiled = jax.jit(step).lower(jax.random.key(0), jnp.zeros(size)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < size


def test_what_makes_no_sense_is_said():
    key = jax.random.key(0)
    with pytest.raises(UsageError, match="typed key"):
        noise.normal(jax.random.key_data(key), np.zeros(2, np.float32))
