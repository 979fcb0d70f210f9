"""The vector space refuses what is not in it: other axes, no numbers, hands on its arrays."""

import copy
import pickle
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from posterity.arrays.tree import leaves
from posterity.errors import ParameterError, PosterityError, StructureError
from posterity.families import (
    Beta,
    Categorical,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    Mixture,
    NormalGamma,
    NormalWishart,
    Plate,
    Product,
    Wishart,
    stack,
)
from posterity.families.distribution import fitted
from posterity.families.supports import Labels, listed, map_supports
from tests.laws.table import NAMES, TABLE, identical, some, to_jax

families = pytest.mark.parametrize("name", NAMES)
EYE = np.eye(2)
homes = pytest.mark.parametrize("home", [np.asarray, jax.numpy.asarray], ids=["numpy", "jax"])

# --- own axes never broadcast ------------------------------------------------------


@families
def test_what_is_no_member_is_refused(name: str) -> None:
    (p,), (batch,), (other,) = some(name, size=2), some(name, batch=(3,)), some(name, batch=(2, 1))
    assert (batch + other).batch_shape == batch.kl(other).shape == (2, 3)
    refused = [(some(name, batch=(2,))[0], batch, "broadcast")]
    if name not in ("Gamma", "Beta"):  # whose members have no axes of their own
        refused.append((some(name, size=1)[0], p, "blocks and dimensions"))
    for one, two, words in refused:
        for act in (one.__add__, one.__sub__, one.kl):
            with pytest.raises(StructureError, match=words):
                act(two)
        with pytest.raises(StructureError):
            stack([one[None], two[None]])
    for stranger in (3.0, None, some("Mixture")[0], Gamma(1.0, 1.0) if name != "Gamma" else "p"):
        with pytest.raises(StructureError):
            p.kl(stranger)
    with pytest.raises(TypeError):
        p * p
    for vector in (p.natural_parameters[:-1], np.append(p.natural_parameters, 1.0)):
        for make in (p.with_natural_parameters, p.with_mean_parameters):
            with pytest.raises(StructureError, match=f"{p.dimension} numbers"):
                make(vector)


@pytest.mark.parametrize("name", TABLE)
def test_events_of_another_shape_are_refused(name: str) -> None:
    (p,) = some(name, size=2)
    kind = lambda own: int if isinstance(own, Labels) else float
    z = map_supports(lambda own: np.ones(own.shape, kind(own)), p.support)
    with np.errstate(all="ignore"):
        assert np.shape(p.log_prob(z)) == ()
    longer = map_supports(lambda s: np.ones((*s[:-1], s[-1] + 1) if s else ()), p.event_shape)
    refused = [{"another": z}, *([longer] if any(listed(p.event_shape)) else [])]
    for event in refused:
        with pytest.raises(StructureError, match="events of shape"):
            p.log_prob(event)


@families
def test_draws_have_the_shape_that_events_are_said_to_have(name: str) -> None:
    (p,) = some(name, batch=(2,), size=2)
    draws = jax.eval_shape(lambda key: p.sample(key, (5,)), jax.random.key(0))
    fitted(map_supports(lambda own: (5, 2, *own), p.event_shape), draws)


# --- symmetric coordinates are symmetric ------------------------------------------------------

ASYMMETRIC = np.array([[2.0, 0.5], [0.0, 2.0]])


@homes
@pytest.mark.parametrize(
    "make",
    [
        lambda m: Gaussian(np.zeros(2), m),
        lambda m: Wishart(np.ones(()), m),
        lambda m: NormalWishart(np.ones(()), np.ones(()), np.zeros(2), m),
        lambda m: Gaussian.from_standard(np.zeros(2), m),
        lambda m: Wishart.from_standard(m, 5.0),
        lambda m: NormalWishart.from_inverse_scale(np.zeros(2), 1.0, m, 5.0),
    ],
)
def test_asymmetric_matrices_are_refused(make: Any, home: Any) -> None:
    with jax.enable_x64(True):
        with pytest.raises(ParameterError, match="asymmetric"):
            make(home(ASYMMETRIC))
        rounded = make(home(2 * EYE + 1e-12 * ASYMMETRIC))  # as an inverse may come out
    assert all(np.array_equal(m, np.swapaxes(m, -1, -2)) for m in leaves(rounded) if m.ndim == 2)


@pytest.mark.parametrize("beside", [np.nan, 1e9])
def test_an_asymmetry_beside_a_bad_member_is_still_seen(beside: float) -> None:
    with pytest.raises(ParameterError, match="asymmetric"):
        Gaussian(np.zeros((2, 2)), np.stack([beside * EYE, ASYMMETRIC]))


# --- what textbook parameters must be ------------------------------------------------------

ONES = np.ones(2)
STANDARD: dict[str, tuple[Any, str]] = {
    "negative variance": (lambda: DiagonalGaussian.from_standard(ONES, [1.0, -1.0]), "positive"),
    "no variance": (lambda: DiagonalGaussian.from_standard(ONES, [1.0, 0.0]), "positive"),
    "NaN mean": (lambda: DiagonalGaussian.from_standard([0.0, np.nan], ONES), "finite"),
    "infinite variance": (lambda: DiagonalGaussian.from_standard(ONES, [1.0, np.inf]), "positive"),
    "complex mean": (lambda: DiagonalGaussian.from_standard(ONES * 1j, ONES), "real"),
    "text": (lambda: DiagonalGaussian.from_standard(["a", "b"], ONES), "real"),
    "objects": (lambda: DiagonalGaussian.from_standard([None, 1.0], ONES), "real"),
    "indefinite": (lambda: Gaussian.from_standard(ONES, np.diag([1.0, -1.0])), "definite"),
    "singular": (lambda: Gaussian.from_standard(ONES, np.ones((2, 2))), "definite"),
    "rank one by rounding": (
        lambda: Gaussian.from_standard(np.ones(3), np.cov(np.vander([0.1, 0.2, 0.7], 3))),
        "definite",
    ),
    "NaN covariance": (lambda: Gaussian.from_standard(ONES, EYE * np.nan), "definite"),
    "one bad member": (
        lambda: Gaussian.from_standard(np.ones((3, 2)), np.stack([EYE, EYE, -EYE])),
        r"member \[2\]",
    ),
    "no shape": (lambda: Gamma.from_standard(0.0, 1.0), "positive"),
    "negative rate": (lambda: Gamma.from_standard(1.0, -1.0), "positive"),
    "Beta": (lambda: Beta.from_standard(1.0, 0.0), "positive"),
    "no concentration": (lambda: Dirichlet.from_standard([1.0, 0.0]), "positive"),
    "no probability": (lambda: Categorical.from_standard([1.0, 0.0]), "positive"),
    "shape that rounds away": (lambda: Gamma.from_standard(1e-17, 1.0), "rounded"),
    "huge inverse": (lambda: DiagonalGaussian.from_standard([1.0], [1e-310]), "rounded"),
    "too far": (lambda: NormalWishart.from_standard([1e9, 1.0], 1.0, EYE, 4.0), "rounded"),
    "rows of several lengths": (lambda: Dirichlet.from_standard([[1.0], [1.0, 2.0]]), "real"),
    "few degrees": (lambda: Wishart.from_standard(EYE, 1.0), "more than d - 1"),
    "few, of a pair": (lambda: NormalWishart.from_standard(ONES, 1.0, EYE, 0.5), "more than d"),
    "no precision of the mean": (lambda: NormalWishart.from_standard(ONES, 0.0, EYE, 4.0), "posit"),
    "no inverse scale": (lambda: NormalGamma.from_standard(ONES, ONES, 0 * ONES, ONES), "positive"),
    "no weight": (lambda: Mixture.from_standard([1.0, 0.0], Gamma(ONES, ONES)), "positive"),
}
MISSHAPEN: dict[str, Any] = {
    "mean and covariance": lambda: Gaussian.from_standard(np.ones(3), EYE),
    "no matrix": lambda: Gaussian.from_standard(ONES, ONES),
    "a rectangle": lambda: Gaussian.from_standard(ONES, np.ones((2, 3))),
    "batches": lambda: Gamma.from_standard(np.ones(3), np.ones(2)),
    "mean and variance": lambda: DiagonalGaussian.from_standard(ONES, np.ones(3)),
    "no entries": lambda: Categorical.from_standard([]),
    "a number for a vector": lambda: Dirichlet.from_standard(1.0),
    "leaves of two batches": lambda: Gaussian(np.zeros((4, 2)), EYE),
    "leaves of two sizes": lambda: Gaussian(np.zeros(2), np.eye(3)),
    "weights of a mixture": lambda: Mixture(np.zeros((1, 2)), Gamma([ONES], [ONES])),
    "a mixture of none": lambda: Mixture(np.zeros(0), Gamma(np.zeros(0), np.zeros(0))),
    "weights of a plate": lambda: Plate(Gamma(ONES, ONES), Dirichlet(np.ones(3))),
    "no weights at all": lambda: Plate(Gamma(ONES, ONES), Gamma(ONES, ONES)),
    "a plate of one": lambda: Plate(Gamma(1.0, 1.0)),
    "no blocks": lambda: Product(),
    "blocks of two batches": lambda: Product(a=Gamma(1.0, 1.0), b=Gamma(ONES, ONES)),
}


@pytest.mark.parametrize("make,words", STANDARD.values(), ids=STANDARD)
def test_values_outside_the_domain_are_refused(make: Any, words: str) -> None:
    with np.errstate(over="ignore"), pytest.raises(ParameterError, match=words):
        make()


@pytest.mark.parametrize("make", MISSHAPEN.values(), ids=MISSHAPEN)
def test_shapes_that_do_not_fit_are_refused(make: Any) -> None:
    with pytest.raises(StructureError):
        make()


def test_units_do_not_make_a_covariance_singular() -> None:
    deviations = np.array([1e-8, 1.0, 1e9])
    correlation = np.array([[1.0, 0.9, 0.3], [0.9, 1.0, 0.2], [0.3, 0.2, 1.0]])
    covariance = correlation * np.outer(deviations, deviations)
    q = Gaussian.from_standard(np.zeros(3), covariance)
    np.testing.assert_allclose(q.covariance, covariance, rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int64, np.uint8, bool])
def test_short_and_whole_numbers_become_float64(dtype: Any) -> None:
    q = DiagonalGaussian.from_standard(np.ones(2, dtype), np.ones(2, dtype))
    assert all(leaf.dtype == np.float64 for leaf in leaves(q))
    assert all(leaf.dtype == np.float64 for leaf in leaves(Gamma(dtype(1), dtype(1))))


# --- members own their arrays ------------------------------------------------------


@pytest.mark.parametrize("name", TABLE)
def test_nobody_can_write_to_a_member(name: str) -> None:
    p, q = some(name, count=2, batch=(3,))
    families = [p, p + q, p - q, -p, 2.0 * p, p / 3, p[0], p.zero()] if name in NAMES else [p]
    for member in families:
        for leaf in leaves(member):
            with pytest.raises(ValueError, match="read-only"):
                leaf[...] = 0.0
    with pytest.raises(AttributeError):
        p.anything = 1


@pytest.mark.parametrize(
    "wrap",
    [
        lambda a: memoryview(a),
        lambda a: np.ma.array(a, copy=False),
        lambda a: np.frombuffer(bytearray(a.tobytes())),
        lambda a: np.lib.stride_tricks.as_strided(a),
        lambda a: np.broadcast_to(a, (1, 3))[0],
    ],
)
def test_whatever_holds_the_numbers_cannot_change_them(wrap: Any) -> None:
    source = np.zeros(3)
    held = wrap(source)
    q = DiagonalGaussian(held, np.ones(3))
    if not isinstance(held, np.ndarray) or held.flags.writeable:
        held[0] = 7.0
    source[0] = 7.0
    assert q == DiagonalGaussian(np.zeros(3), np.ones(3))


def test_a_callers_array_stays_the_callers() -> None:
    mean, precision, base = np.zeros(2), np.eye(2), np.zeros((2, 2))
    view = base[0]
    view.flags.writeable = False  # what it looks at can still be written to
    q, r = Gaussian(mean, precision), Gaussian(view, precision)
    mean[0] = precision[0, 0] = base[...] = 7.0
    assert q == r == Gaussian(np.zeros(2), np.eye(2))
    assert mean.flags.writeable


@pytest.mark.parametrize("name", TABLE)
def test_copies_are_equal_and_as_safe(name: str) -> None:
    (p,) = some(name)
    for q in (copy.copy(p), copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert identical(p, q) and p == q
        assert not any(leaf.flags.writeable for leaf in leaves(q))


@families
def test_equality_is_that_of_contents(name: str) -> None:
    (p,), (q,) = some(name), some(name, seed=1)
    assert p == some(name)[0] and p != q and p != "p"
    assert p != p[None] if name != "Mixture" else True
    with pytest.raises(TypeError):
        hash(p)


@pytest.mark.parametrize("kind", PosterityError.__subclasses__())
def test_errors_cross_processes(kind: type[PosterityError]) -> None:
    error = kind(found="a", expected="b", fix="C.")
    error.run = 3  # type: ignore[attr-defined]
    for twin in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(twin) is kind and str(twin) == str(error)
        assert (twin.found, twin.expected, twin.fix, twin.run) == ("a", "b", "C.", 3)


# --- pytrees ------------------------------------------------------


@pytest.mark.parametrize("name", TABLE)
def test_jax_sees_a_tree_of_the_same_leaves(name: str) -> None:
    (p,) = some(name)
    assert all(a is b for a, b in zip(jax.tree.leaves(p), leaves(p), strict=True))
    assert identical(jax.tree.map(lambda leaf: leaf, p), p)
    shapes = jax.eval_shape(lambda q: q, to_jax(p))
    assert [leaf.shape for leaf in jax.tree.leaves(shapes)] == [leaf.shape for leaf in leaves(p)]
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(p)]
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize(
    "value",
    [
        lambda r: Gamma.from_standard(2.0, r),
        lambda r: Gamma.from_standard(r, 2.0),
        lambda r: Beta.from_standard(2.0, r),
        lambda r: Gaussian.from_standard(np.ones(2), r * np.eye(2)),
        lambda r: Wishart.from_standard(r * np.eye(2), 4.0),
        lambda r: NormalWishart.from_standard(r * np.ones(2), 1.0, np.eye(2), 4.0),
        lambda r: NormalGamma.from_standard(np.ones(2), r * np.ones(2), np.ones(2), np.ones(2)),
        lambda r: Plate(DiagonalGaussian(r * np.ones((2, 1)), np.ones((2, 1)))).translate([1.0]),
    ],
)
def test_numbers_and_traced_values_mix(value: Any) -> None:
    other = jax.numpy.float32(1.5)
    slope = jax.grad(lambda r: value(r).kl(value(other)).sum() + value(r).entropy().sum())
    assert jax.eval_shape(slope, 1.0).shape == ()


def test_a_constructor_written_by_hand_is_inherited() -> None:
    class Named(Product):
        """A product by another name."""

    assert Named(a=Gamma(1.0, 1.0)).blocks["a"] == Gamma(1.0, 1.0)
    with pytest.raises(TypeError):
        Named(a=Gamma(1.0, 1.0)).blocks["b"] = Gamma(1.0, 1.0)
