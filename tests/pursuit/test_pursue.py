"""Mixtures that are grown: against quadrature, closed forms and what must not be believed."""

import functools
import shutil
import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

import posterity
from posterity.errors import (
    ArtifactError,
    ConvergenceWarning,
    ParameterError,
    StructureError,
    UsageError,
)
from posterity.families import (
    DiagonalGaussian,
    Gamma,
    Gaussian,
    Product,
)
from posterity.fusion.diff import diff
from posterity.models import FunctionModel, LinearRegression
from posterity.pursuit import (
    Fixed,
    Flatness,
    Joint,
    Pursuit,
    Schedule,
    component,
    objectives,
    pursue,
)
from posterity.pursuit.component import NOTHING
from posterity.status import Progress

pytestmark = pytest.mark.filterwarnings("ignore:The posterior has not converged:UserWarning")

KEY = jax.random.key(0)
X = np.linspace(-40, 40, 400_001)
WEIGHTS, MEANS = np.array([0.2, 0.5, 0.3]), np.array([-9.0, 0.0, 7.0])
DEVIATIONS, SCALE = np.array([0.5, 1.0, 2.0]), 1e3
BASE = DiagonalGaussian.from_standard([0.0], [100.0 * SCALE**2])


def three(z: Any) -> Any:
    """Three modes of different sizes, in units of a thousand, of mass ``exp(5)``."""
    joint = -(((z[0] / SCALE - MEANS) / DEVIATIONS) ** 2) / 2 + jnp.log(WEIGHTS / DEVIATIONS)
    return jax.nn.logsumexp(joint) - jnp.log(2 * jnp.pi) / 2 - jnp.log(SCALE) + 5.0


def log_three(x: Any) -> Any:
    """The normalised density, by SciPy."""
    each = scipy.stats.norm.pdf(x[:, None] / SCALE, MEANS, DEVIATIONS) / SCALE
    return np.log(each @ WEIGHTS)


def divergences(q: Any) -> tuple[float, float]:
    """KL both ways, by quadrature."""
    log_p, log_q = log_three(SCALE * X), q.log_prob(SCALE * X[:, None])
    width = SCALE * (X[1] - X[0])
    p, q = np.exp(log_p), np.exp(log_q)
    there = np.where(q > 0, q * (log_q - log_p), 0.0).sum() * width
    return float(there), float(np.where(p > 0, p * (log_p - log_q), 0.0).sum() * width)


def hill(z: Any) -> Any:
    """One mode, which one component is."""
    return -((z[0] / SCALE) ** 2) / 2


def pursued(target: Any = three, **options: Any) -> Pursuit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return pursue(target, BASE, **{"key": KEY, "components": 5, **options})


@pytest.fixture(scope="module")
def reports() -> list[Progress]:
    return []


@pytest.fixture(scope="module")
def found(reports: list[Progress]) -> Pursuit:
    return pursue(three, BASE, key=KEY, components=5, progress=reports.append)


def test_three_modes_are_found(found: Pursuit) -> None:
    """Within a thousandth of a nat, whatever the units, and no component more."""
    assert max(divergences(found.posterior)) < 1e-3
    assert found.posterior.size == 3
    order = np.argsort(found.posterior.components.mean[:, 0])
    # Fitted at 2,048 draws a component.
    np.testing.assert_allclose(found.posterior.weights[order], WEIGHTS, atol=0.03)
    assert found.status.converged
    assert found.refused


def test_the_bound_is_honest(found: Pursuit) -> None:
    """It is the log normaliser less the divergence, within what the draws can tell."""
    there, _ = divergences(found.posterior)
    assert abs(found.elbo - (5.0 - there)) < 5 * found.standard_error + 1e-6
    assert abs(found.gap - there) < 1e-3


def test_the_trace_says_what_happened(found: Pursuit, reports: list[Progress]) -> None:
    assert found.trace[0].components == 1
    assert all(row.gain > -4 * row.gain_error for row in found.trace)
    assert np.all(np.diff([row.evaluations for row in found.trace]) >= 0)
    assert 1 <= found.trace[-1].effective <= 3
    assert len(reports) >= 3
    assert [report.step for report in reports[:2]] == [1, 2] and reports[0].steps == 5
    assert reports[0].result.posterior.size == 1
    assert reports[-1].result.posterior == found.posterior
    assert reports[-1].objective == found.elbo
    assert "converged" in repr(found) and "refused" in str(found)


def test_the_mixture_is_a_law_like_any_other(found: Pursuit, tmp_path: Any) -> None:
    posterity.save(found.posterior, tmp_path / "found.safetensors")
    loaded = posterity.load(tmp_path / "found.safetensors")
    assert loaded == found.posterior
    z = np.asarray(jax.jit(lambda law: law.sample(KEY, (4000,)))(loaded))
    assert abs(z.mean() / SCALE - WEIGHTS @ MEANS) < 5 * z.std() / SCALE / np.sqrt(4000) + 0.3
    assert np.ravel(diff(found.posterior, loaded, key=KEY).kl.ab) == 0


def test_weights_alone_are_worse_than_a_polish(found: Pursuit) -> None:
    run = pursued(polish=None, schedule=Fixed(1.0), components=4)
    assert run.posterior.weights.sum() == pytest.approx(1)
    assert found.elbo > run.elbo


@pytest.mark.slow
def test_a_polish_at_the_end_alone(found: Pursuit) -> None:
    run = pursued(polish="end", schedule=Flatness())
    assert run.elbo == pytest.approx(found.elbo, abs=0.02)


def test_a_pursuit_that_was_cut_short_says_so_and_goes_on(found: Pursuit, tmp_path: Any) -> None:
    file = tmp_path / "kept.safetensors"
    with pytest.warns(ConvergenceWarning, match="another component would add"):
        short = pursue(three, BASE, key=KEY, components=2, checkpoint=file)
    assert short.status.state == "not converged"
    assert short.status.left > short.status.tolerance
    whole = pursued(checkpoint=file)
    assert whole.elbo == pytest.approx(found.elbo, abs=1e-6)
    assert str(whole).startswith("\n".join(map(str, short.trace)))
    assert posterity.load(file)["posterior"] == whole.posterior
    again = pursued(checkpoint=file)
    assert again.posterior == whole.posterior and str(again) == str(whole)
    with pytest.raises(UsageError, match="5 at least"):
        pursued(checkpoint=file, components=2)
    with pytest.raises(ArtifactError, match="target"):
        pursue(walled, BASE, key=KEY, checkpoint=file)


class _Killed(BaseException):
    """As by a signal that nobody can catch: nothing is tidied up."""


def test_a_pursuit_that_was_killed_ends_as_if_it_had_not_been(
    found: Pursuit, tmp_path: Any
) -> None:
    def kill(now: Progress) -> None:
        if now.step == 2:
            raise _Killed

    with pytest.raises(_Killed):
        pursued(checkpoint=tmp_path / "kept.safetensors", progress=kill)
    again = pursued(checkpoint=tmp_path / "kept.safetensors")
    assert again.posterior == found.posterior
    assert str(again) == str(found)


@pytest.mark.slow
def test_a_conjugate_posterior_comes_out_and_nothing_is_added() -> None:
    """Linear regression on columns of a thousandth and a thousand: the closed form."""
    rng = np.random.default_rng(1)
    x = np.c_[np.ones(50), 1e-3 * rng.normal(size=50), 130 + 1e3 * rng.normal(size=50)]
    y = x @ [1.0, 300.0, 0.01] + rng.normal(size=50)
    prior = Gaussian.from_standard(np.zeros(3), np.diag([100.0, 1e6, 1.0]))
    run = pursue(Joint(LinearRegression(1.0), prior, (x, y)), "full", key=KEY, components=2)
    wanted = np.linalg.inv(x.T @ x + np.diag([0.01, 1e-6, 1.0]))
    law, deviations = run.posterior.components[0].law, np.sqrt(np.diag(wanted))
    assert np.all(abs(law.mean - wanted @ (x.T @ y)) < 1e-4 * deviations)
    unit = np.outer(deviations, deviations)
    np.testing.assert_allclose(law.covariance / unit, wanted / unit, atol=1e-4)
    assert run.posterior.size == 1 and run.status.converged and run.effective > 0.99


@pytest.mark.slow
def test_bounded_events() -> None:
    """A scale and a mean, against the posterior by quadrature."""
    rng = np.random.default_rng(2)
    y = 3.0 + 2.0 * rng.normal(size=400)
    model = FunctionModel(lambda z, y: -((y - z["m"][0]) ** 2) / z["v"] / 2 - jnp.log(z["v"]) / 2)
    prior = Product(m=Gaussian.from_standard([0.0], [[100.0]]), v=Gamma.from_standard(1.0, 0.1))
    run = pursue(Joint(model, prior, y), "diagonal", key=KEY, components=2, finalists=1)
    z = run.posterior.sample(KEY, (4000,))
    assert np.all(np.asarray(z["v"]) > 0)
    assert abs(np.mean(z["m"]) - y.mean()) < 0.05
    assert np.std(z["m"]) == pytest.approx(y.std() / 20, rel=0.1)
    assert np.mean(z["v"]) == pytest.approx(y.var(), rel=0.03)


# --- what must be said ---------------------------------------------------------------------------

ONE = DiagonalGaussian.from_standard([0.0], [1.0])


@pytest.mark.parametrize(("target", "reason"), [
    (lambda z: jnp.where(z[0] > 0, -z[0], -jnp.inf), "bounds"),
    (lambda z: z[0], "ran away"),
    (lambda z: -((z[0] - 1e9) ** 2) / 2, "to 1.0e[+]09 of its deviations: data are in other units"),
    (lambda z: jnp.nan * z[0], "finite at none"),
    (lambda z: -(((z[0] - 0.3) / 1e-10) ** 2) / 2, "collapsed.*pole"),
])  # fmt: skip
def test_what_no_component_fits(target: Any, reason: str) -> None:
    with pytest.raises(ParameterError, match=reason):
        pursue(target, ONE, key=KEY, components=2, attempts=2, finalists=1)


@pytest.mark.slow
def test_a_pole_is_not_believed() -> None:
    """A density of infinite mass has no mixture. Its pole is off the symmetric nodes, so that some
    components stop on the way to it, and their mixture must not count as converged.
    """
    pole = lambda z: -1.5 * jnp.log(jnp.abs(z[0] - 0.3)) - z[0] ** 2
    with pytest.warns(ConvergenceWarning, match="by its own draws"):
        run = pursue(pole, ONE, key=KEY, components=3)
    assert run.status.left > 1


@pytest.mark.parametrize(("changes", "error", "words"), [
    ({"target": 3}, UsageError, "a function"),
    ({"target": lambda z: z}, StructureError, "one number"),
    ({"target": lambda z: float(z[0])}, UsageError, "JAX can trace"),
    ({"target": lambda z: (z[0] > 0)}, ParameterError, "real number"),
    ({"base": "diagonal"}, UsageError, "without a prior"),
    ({"base": "round"}, ArtifactError, "round"),
    ({"base": DiagonalGaussian.from_standard([[0.0]], [[1.0]])}, UsageError, "one proper law"),
    ({"base": DiagonalGaussian(np.zeros(1), -np.ones(1))}, UsageError, "one proper law"),
    ({"components": 0}, UsageError, "components=0"),
    ({"components": 1_000_000}, UsageError, "at most 361"),
    ({"schedule": 1.0}, UsageError, "schedule of λ"),
    ({"polish": "often"}, UsageError, "each"),
    ({"samples": 1}, UsageError, "at least 2"),
    ({"nodes": 2}, UsageError, "at least 8"),
])  # fmt: skip
def test_bad_arguments(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    given: dict[str, Any] = {"target": lambda z: -(z[0] ** 2), "base": ONE, "key": KEY, **changes}
    with pytest.raises(error, match=words):
        pursue(given.pop("target"), given.pop("base"), **given)


def test_joints_are_checked() -> None:
    x, y = np.ones((4, 2)), np.ones(4)
    prior = Gaussian.from_standard(np.zeros(2), np.eye(2))
    with pytest.raises(ParameterError):
        Joint(LinearRegression(1.0), prior, (x * np.nan, y))
    with pytest.raises(UsageError, match="proper law"):
        Joint(LinearRegression(1.0), prior - prior, (x, y))
    with pytest.raises(StructureError, match="no records"):
        Joint(LinearRegression(1.0), prior, (x[:0], y[:0]))


def walled(z: Any) -> Any:
    """A Gaussian, a gap without density, and an exponential beyond it."""
    far = jnp.where(z[0] > 10, 10 - z[0], -jnp.inf)
    return jnp.where(z[0] < 5.5, -(z[0] ** 2) / 2, far)


def test_a_search_that_comes_to_nothing_is_not_called_converged() -> None:
    """What is beyond the gap has no component: its draws would leave the support."""
    base = DiagonalGaussian.from_standard([0.0], [100.0])
    with pytest.warns(ConvergenceWarning, match="not finite"):
        run = pursue(walled, base, key=KEY, components=3)
    assert run.status.state == "not converged"


def test_peaks_without_mass_are_no_failed_search() -> None:
    """Cut points of ordered levels, whose floor is a plateau with steep edges."""

    def cuts(z: Any) -> Any:
        inner = jnp.array([z[0], z[0] + jnp.exp(z[1])])
        ends = jnp.concatenate([jnp.array([-30.0]), inner, jnp.array([30.0])])
        log_p = jnp.log(jnp.diff(jax.scipy.stats.norm.cdf(ends)) + 1e-300)
        return (jnp.array([20.0, 60.0, 40.0]) * log_p).sum() - z @ z / 18

    base = Gaussian.from_standard(np.zeros(2), 9 * np.eye(2))
    settings: dict[str, Any] = {"components": 2, "tolerance": 0.1, "polish": None}
    assert pursue(cuts, base, **settings, samples=512).status.converged


def rough(height: float, z: Any) -> Any:
    """Far out it is far too high, and differs where numbers agree in 15 digits."""
    errors = jnp.sin(1e17 * jax.lax.stop_gradient(z[0]))
    return -(z[0] ** 2) / 2 + jnp.where(z[0] > 12, height + 200 * errors, 0.0)


@pytest.mark.parametrize("height", [400, 4000])
def test_peaks_of_rounding_errors_are_not_believed(
    height: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by a first component as wide as the base, a tenth of whose draws are there, either."""
    base, kept = DiagonalGaussian.from_standard([0.0], [100.0]), list[Any]()
    keep = lambda search, state: kept.append((search, state)) or state
    monkeypatch.setattr(sys.modules[pursue.__module__], "polished", keep)
    run = pursue(functools.partial(rough, height), base, components=2)
    assert run.status.converged, run.status
    assert run.posterior.sample(KEY, (1000,)).max() < 10
    # Nor does a polish move components there.
    search, state = kept[0]
    moves = np.zeros((len(state.weights), search.form.moves + 1))
    with jax.enable_x64(True), np.errstate(divide="ignore"):
        assert component._moved(search, state, moves) is not None
        moves[0, 0] = 15.0
        assert component._moved(search, state, moves) is None


def test_one_candidate_without_gain_says_nothing_of_those_that_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Whatever the others might have added is not known."""
    options: dict[str, Any] = {"schedule": Fixed(1.0), "finalists": 2, "target": hill}
    pursued(checkpoint=tmp_path / "one", components=1, **options)
    failed, hopeless = component.Refusal("it collapsed"), component.Refusal("none", NOTHING)
    for answers in ([failed, hopeless], [hopeless, hopeless]):
        asked = iter([*answers, *[answers[-1]] * 60])
        monkeypatch.setattr(component, "_candidate", lambda *_, asked=asked: next(asked))
        file = shutil.copy(tmp_path / "one", tmp_path / "more")
        run = pursued(checkpoint=file, **options)
        known = failed not in answers
        assert run.status.converged == known == bool(np.isfinite(run.status.left))
        assert known or "it collapsed" in str(run.status)


@pytest.mark.slow
def test_a_tolerance_is_kept(found: Pursuit) -> None:
    """The divergence of the mixture's own draws counts, and what another component would add."""
    run = pursued(tolerance=1e-12)
    assert run.posterior == found.posterior
    assert run.status.state == "not converged" and run.status.left > 1e-12
    assert "nats from the target: take a base of another shape" in str(run.status)
    skewed = lambda z: 3 * z[0] / SCALE - jnp.exp(z[0] / SCALE)
    noisy = pursued(skewed, samples=64)  # what a second component adds cannot be told from noise
    assert noisy.posterior.size == 1 and "nats from the target: raise samples" in str(noisy.status)
    coarse = pursued(components=2, tolerance=5.0)
    assert coarse.status.converged and 0.01 < coarse.status.left < 5.0 and coarse.starts > 0


@pytest.mark.slow
def test_modes_that_one_start_of_eight_would_miss_are_found() -> None:
    """Three modes in ten dimensions, to all digits; other data and numbers compile nothing."""
    size, programs = 10, list[list[int]]()
    base = DiagonalGaussian.from_standard(np.zeros(size), np.full(size, 9.0))
    own: Any = objectives.values, objectives.values_and_slopes
    numbers: dict[str, Any] = {"components": 6, "attempts": 40, "samples": 900, "nodes": 150}
    for seed, options in enumerate([dict[str, Any](), numbers]):
        axes = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, 3)))[0].T
        target = jax.tree_util.Partial(apart, 6 / np.sqrt(2) * axes)
        run: Any = pursue(target, base, key=jax.random.key(seed), **options)
        assert run.status.converged and run.gap < 1e-5
        np.testing.assert_allclose(np.sort(run.posterior.weights), [0.1, 0.3, 0.6], atol=1e-3)
        assert run.unseen == pytest.approx(3 / run.starts, rel=0.1)
        assert run.status.left == pytest.approx(-np.log1p(-run.unseen))
        (reason,) = run.status.reasons  # where nobody looked, however little is left
        assert "less than 0.018 % of the base's draws" in reason and reason in str(run)
        assert "compared with the mixture, and followed where unexplained" in reason
        programs.append([program.programs for program in own])
    assert programs[0] == programs[1]


def apart(means: Any, z: Any) -> Any:
    """Three unit Gaussians of weights .6, .3 and .1."""
    return jax.nn.logsumexp(jnp.log(jnp.array([0.6, 0.3, 0.1])) - ((z - means) ** 2).sum(1) / 2)


@pytest.mark.parametrize(("place", "deviation"), [(15.0, 1.0), (2.0, 0.05), (2.0, 0.002)])
def test_modes_that_few_draws_lead_to_are_found_or_told_to_be_unknown(
    place: float, deviation: float
) -> None:
    """Five of the base's deviations away, by starts from a wider one; and needles."""

    def target(z: Any) -> Any:
        there = (z - jnp.array([place, 0.0])) / deviation
        return jnp.logaddexp(-(z @ z) / 2, -(there @ there) / 2 - 2 * jnp.log(deviation))

    run = pursue(target, DiagonalGaussian.from_standard([0.0, 0.0], [9.0, 9.0]), key=KEY)
    assert run.status.converged and "draws lead to" in str(run)
    assert str(run.status).startswith("converged where it was searched")
    assert "densities elsewhere tell nothing of them, nor of tails" in str(run)
    if deviation > 0.01:
        np.testing.assert_allclose(run.posterior.weights, 0.5, atol=1e-3)
    else:  # too narrow to be met by any draw
        assert run.posterior.size == 1


@pytest.mark.slow
def test_the_least_explained_point_is_climbed_from_however_few_attempts_there_are() -> None:
    places = 3 * np.random.default_rng(2).normal(size=(7, 2))
    target = lambda z: jax.nn.logsumexp(-((z - places) ** 2).sum(1) / 2 / 0.05**2)
    base = DiagonalGaussian.from_standard([0.0, 0.0], [9.0, 9.0])
    run = pursue(target, base, key=jax.random.key(0), components=10, attempts=3)
    assert run.status.converged and run.posterior.size == 7


def test_draws_without_a_density_are_not_searched() -> None:
    """Where it is NaN, a fortieth of the base; minus infinity is a density of zero."""
    base = DiagonalGaussian.from_standard([0.0], [9.0])
    for nothing, tolerance in [(jnp.nan, 0.01), (jnp.inf, 0.01), (jnp.nan, 0.05), (-jnp.inf, 0.01)]:
        target = lambda z, out=nothing: jnp.where(z[0] < -6, out, -(z @ z) / 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            run = pursue(target, base, key=KEY, components=1, tolerance=tolerance)
        empty = nothing == -jnp.inf
        assert run.blank == pytest.approx(0.0 if empty else 0.023, abs=0.005)
        assert run.unseen > run.blank and run.status.left >= -np.log1p(-run.unseen)
        assert run.status.converged == (empty or tolerance == 0.05)
        assert ("the log density is not a number at 2." in str(run.status)) != run.status.converged


def test_a_component_begins_where_the_density_has_a_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the base alone, whose draws have values that are finite and slopes that are not."""
    nowhere = lambda *given: ([], np.ones(len(given[-1]), bool), 0)
    monkeypatch.setattr(component.starts, "tops", nowhere)
    target = lambda z: jnp.sqrt(jnp.maximum(100 - z @ z, 0.0)) - z @ z / 2
    with pytest.warns(ConvergenceWarning):
        run = pursue(target, DiagonalGaussian.from_standard([0.0], [100.0]), components=1)
    assert run.elbo == pytest.approx(10 + np.log(2 * np.pi / 1.1) / 2, abs=0.01)


def test_a_schedule_is_asked_for_later_components_alone() -> None:
    asked = []

    def schedule(t: int) -> float:
        asked.append(t)
        return 1 / (t - 1)

    pursued(schedule=Schedule(schedule), components=3)
    assert set(asked) == {2, 3, 4}
