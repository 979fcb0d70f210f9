"""Step sizes follow their formulas, compiled or not."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from posterity.distillation.sampling.schedules import STEP_SIZE, Polynomial, size_at
from posterity.errors import UsageError

STEPS = np.array([0, 1, 7, 99, 100, 101, 12_345, 1_000_000], np.int32)
FORMULAS = {
    Polynomial(0.3, 10, 0.55): lambda t: 0.3 * (10.0 + t) ** -0.55,
    Polynomial(2): lambda t: 2.0 * (1.0 + t) ** -0.55,
    optax.exponential_decay(1e-5, 100, 0.5, staircase=True): lambda t: 1e-5 * 0.5 ** (t // 100),
    0.25: lambda t: 0.25 + 0 * t,
    3: lambda t: 3.0 + 0 * t,
    optax.exponential_decay(0.1, 50, 0.9): lambda t: 0.1 * 0.9 ** (t / 50),
}


@pytest.mark.parametrize("schedule", FORMULAS, ids=lambda own: type(own).__name__)
def test_sizes_are_the_formulas(schedule):
    at = lambda step: size_at(schedule, step)
    sizes, one = jax.jit(lambda steps: (jax.vmap(at)(steps), at(jnp.int32(7))))(STEPS)
    assert sizes.dtype == jnp.float32
    expected = FORMULAS[schedule](STEPS.astype(float))
    np.testing.assert_allclose(sizes, expected, rtol=2e-4, atol=1e-8)
    np.testing.assert_allclose(one, FORMULAS[schedule](7.0), rtol=1e-5)


def test_sizes_are_single_where_all_else_is_double():
    with jax.enable_x64(True):
        for schedule in FORMULAS:
            found = jax.eval_shape(lambda s=schedule: size_at(s, jnp.int32(3)))
            assert found.dtype.name == "float32"


def test_schedules_of_the_same_numbers_are_one_key_of_a_cache():
    assert Polynomial(0.3, 10, 0.55) == Polynomial(0.3, 10, 0.55)
    assert len({Polynomial(0.1), Polynomial(0.1), Polynomial(0.2)}) == 2


@pytest.mark.parametrize(("make", "arguments"), [
    (Polynomial, (0.0,)), (Polynomial, (1.0, -1.0)), (Polynomial, (1.0, 1.0, -0.1)),
    (lambda size: STEP_SIZE.check(step_size=size), (float("nan"),)),
])  # fmt: skip
def test_schedules_that_make_no_sense_are_refused(make, arguments):
    with pytest.raises(UsageError):
        make(*arguments)


def test_a_schedule_gives_one_number_and_has_a_hash():
    with pytest.raises(UsageError, match=r"shape \(2,\)"):
        size_at(lambda step: jnp.ones(2), 0)

    class Loose:
        __hash__ = None

        def __call__(self, step):
            return 0.1

    with pytest.raises(UsageError, match="hashable"):
        STEP_SIZE.check(step_size=Loose())
