"""Figure 2: a cubic from twenty points: `python -m experiments.dark_knowledge.toy1d`."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import split_gelman_rubin

from experiments import harness
from experiments.dark_knowledge import PLACE, figures, peers, peers_pbp
from experiments.dark_knowledge.peers import Array
from posterity import distill
from posterity.distillation import Box, Langevin
from posterity.distillation.sampling import kernels
from posterity.models import NeuralNetwork
from posterity.models.forward import outputs
from posterity.networks import GaussianPrior, Layers, describe, train

HIDDEN = 50
LAYERS = Layers.dense(1, HIDDEN, 1)
PRIOR_VARIANCES = (1.0, 0.1)
"""Of the weights into hidden units and out of them, for data of about unit scale."""
NOISE_DEVIATION = 3.0
X_SCALE, Y_SCALE = 4 / 3**0.5, 27.0
"""The standard deviation of inputs, which are uniform, and about that of the cubic."""
REACH, SEEN, POINTS = 6.0, 4.0, 121


@dataclasses.dataclass(frozen=True)
class Reference:
    """How much of the posterior itself is drawn."""

    chains: int = 4
    warmup: int = 500
    draws: int = 1000
    seed: int = 0
    # no part of what names the kept: a shallow run has fewer chains and draws too
    depth: int = dataclasses.field(default=10, repr=False)


@dataclasses.dataclass(frozen=True)
class Band:
    """What a method says at the points of the grid: mean (n,), the variance (n,) of the function,
    and that of the noise (a number or (n,)); in the units of y.
    """

    mean: Array
    function: Array
    noise: Array | float

    @property
    def total(self) -> Array:
        return self.function + self.noise


def data() -> tuple[Array, Array]:
    """Twenty points: x uniform in [-4, 4], y = x³ with noise of variance 9."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-SEEN, SEEN, 20)
    return x, x**3 + NOISE_DEVIATION * rng.normal(size=20)


def scaled() -> tuple[Array, Array]:
    x, y = data()
    return x[:, None] / X_SCALE, y / Y_SCALE


def grid() -> Array:
    return np.linspace(-REACH, REACH, POINTS)


NOISE_VARIANCE = (NOISE_DEVIATION / Y_SCALE) ** 2  # in the units of `scaled`
VARIANCES = np.repeat(PRIOR_VARIANCES, [2 * HIDDEN, HIDDEN + 1])  # the prior's, of each flat weight


def log_density() -> Any:
    return peers.values(LAYERS, *scaled(), VARIANCES, NOISE_VARIANCE)


def truth_draws(reference: Reference, cache: Path) -> Array:
    """(chains, draws, points) values of the function on the grid, in the units of y."""
    rng = np.random.default_rng(reference.seed)
    start = rng.normal(size=(reference.chains, LAYERS.size)) * np.sqrt(VARIANCES)

    def make() -> dict[str, Array]:
        options = {name: getattr(reference, name) for name in ("warmup", "draws", "seed", "depth")}
        draws = peers.nuts(log_density(), start, **options)
        values = functions(draws.reshape(-1, LAYERS.size))
        return {"values": values.reshape(*draws.shape[:2], -1)}

    path = cache / f"toy1d-{harness.digest(reference, POINTS, REACH)}.npz"
    return harness.kept_arrays(path, make)["values"]


def functions(draws: Array) -> Array:
    """(S, points) what each of (S, p) weights says on the grid, in the units of y."""
    with jax.enable_x64(True):
        x = jnp.asarray(grid()[:, None] / X_SCALE)
        return Y_SCALE * np.asarray(_values(jnp.asarray(draws), x))


@jax.jit
def _values(draws: Any, x: Any) -> Any:
    return jax.vmap(lambda z: outputs(LAYERS, z, x)[:, 0])(draws)


def band(values: Array) -> Band:
    return Band(values.mean(0), values.var(0), NOISE_DEVIATION**2)


PBP, HMC, VI, SGD, SGLD, DISTILLED = "PBP", "HMC (NUTS)", "VI", "plug-in (SGD)", "SGLD", "distilled"


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is run: ``draws`` of each chain, for the teacher's own band; ``steps`` of the
    student, for each of which the teacher makes ``listen``.
    """

    seeds: int = 5
    epochs: int = 40
    draws: int = 400
    thin: int = 100
    steps: int = 10_000
    listen: int = 5
    vi_steps: int = 6000
    reference: Reference = Reference()


QUICK = Effort(
    seeds=1,
    epochs=3,
    draws=25,
    thin=20,
    steps=300,
    listen=2,
    vi_steps=300,
    reference=Reference(chains=2, warmup=100, draws=60, depth=6),
)


def probabilistic(seed: int, effort: Effort) -> Band:
    x, y = data()
    fitted = peers_pbp.fit(x[:, None], y, hidden=(HIDDEN,), epochs=effort.epochs, seed=seed)
    return Band(*fitted.predict(grid()[:, None]))


def predicted(said: Any) -> Band:
    mean, variance = said.mean.reshape(-1), said.variance.reshape(-1)
    return Band(Y_SCALE * mean, Y_SCALE**2 * variance, NOISE_DEVIATION**2)


def variational(seed: int, effort: Effort) -> Band:
    """Independent Gaussians by the library's own training; the same prior, the noise known."""
    x, y = scaled()
    found = train(
        LAYERS,
        (x.astype(np.float32), y.astype(np.float32)[:, None]),
        key=jax.random.key(seed),
        prior=GaussianPrior(PRIOR_VARIANCES),
        likelihood="gaussian",
        noise_variance=NOISE_VARIANCE,
        steps=effort.vi_steps,
    )
    said: Any = describe(
        found.posterior,
        (grid()[:, None] / X_SCALE).astype(np.float32),
        key=jax.random.key(seed),
        samples=1000,
        likelihood="gaussian",
    )
    return predicted(said)


def plugged_in(seed: int, effort: Effort) -> Band:
    """The mode: all that is uncertain of it is the noise."""
    del effort
    return band(functions(peers.mode(log_density(), LAYERS.size, seed=seed)[None]))


def teacher(thin: int) -> Langevin:
    x, y = scaled()
    net = NeuralNetwork.of_layers(LAYERS, likelihood="gaussian", noise_variance=NOISE_VARIANCE)
    prior = GaussianPrior(PRIOR_VARIANCES).network(LAYERS)
    records = x.astype(np.float32), y.astype(np.float32)[:, None]
    return Langevin(net, prior, records, kernel=kernels.SGLD(), thin=thin)


def sampled(seed: int, effort: Effort) -> Band:
    draws = teacher(effort.thin).sample(effort.draws, key=jax.random.key(seed))
    return band(functions(peers.flat(draws.stack)))


def distilled(seed: int, effort: Effort) -> Band:
    """A student of the same size; its two variances are outputs of their own."""
    found = distill(
        teacher(effort.listen),
        inputs=Box([-REACH / X_SCALE], [REACH / X_SCALE]),
        key=jax.random.key(seed),
        steps=effort.steps,
    )
    return predicted(found.student.predict((grid()[:, None] / X_SCALE).astype(np.float32)))


METHODS: dict[str, Any] = {
    PBP: probabilistic,
    VI: variational,
    SGD: plugged_in,
    SGLD: sampled,
    DISTILLED: distilled,
}


def kl(truth: Band, found: Band, where: Any) -> float:
    """Mean over points of KL between normals of the two predictives' moments, in nats."""
    ratio = np.broadcast_to(truth.total / found.total, truth.mean.shape)
    away = (truth.mean - found.mean) ** 2 / found.total
    return float(((ratio - 1 - np.log(ratio) + away) / 2)[where].mean())


def scores(truth: Band, found: Band) -> dict[str, Any]:
    inside = np.abs(grid()) <= SEEN
    deviation, true = np.sqrt(np.maximum(found.function, 0)), np.sqrt(truth.function)
    return {
        place: {
            "KL to HMC": kl(truth, found, where),
            "mean, RMS difference to HMC": float(
                np.sqrt(((truth.mean - found.mean) ** 2)[where].mean())
            ),
            "deviation of the function over HMC's": float((deviation / true)[where].mean()),
        }
        for place, where in (("from -4 to 4", inside), ("beyond", ~inside))
    }


def one(name: str, seed: int, effort: Effort) -> dict[str, Any]:
    return {k: np.asarray(own).tolist() for k, own in vars(METHODS[name](seed, effort)).items()}


def run(
    place: harness.Place = PLACE, *, seeds: int | None = None, quick: bool = False
) -> dict[str, Any]:
    effort = QUICK if quick else Effort()
    effort = dataclasses.replace(effort, seeds=seeds or effort.seeds)
    draws = truth_draws(effort.reference, place.cache)
    truth = band(draws.reshape(-1, POINTS))
    settings = dataclasses.replace(effort, seeds=1, reference=Reference())
    rows = []
    for seed in range(effort.seeds):
        row = {}
        for name in METHODS:
            make = functools.partial(one, name, seed, effort)
            own = place.kept(f"toy1d-{seed}-{name.split()[0]}", make, settings)
            row[name] = Band(**{kind: np.array(values) for kind, values in own.items()})
        rows.append(row)
    found = {
        "paper": "figure 2, drawn only: no numbers",
        "problem": f"20 points, x uniform in [-4, 4], y = x³ + N(0, 9); 1-{HIDDEN}-1, rectified; "
        f"weights N(0, {PRIOR_VARIANCES[0]:g}) and N(0, {PRIOR_VARIANCES[1]:g}) of x in units of "
        f"{X_SCALE:.3g} and y in units of {Y_SCALE:g}; noise known, except to PBP",
        "seeds": f"data 0; methods 0 to {effort.seeds - 1}",
        "spread": "standard error of the mean over seeds of the methods",
        "effort": dataclasses.asdict(effort),
        "reference": reference_report(draws),
        "scores": {
            name: harness.over_seeds([scores(truth, row[name]) for row in rows]) for name in METHODS
        },
        "goals": goals(truth, rows),
    }
    place.write("toy1d", found)
    panels = {PBP: rows[0][PBP], HMC: truth, **{n: rows[0][n] for n in list(METHODS)[1:]}}
    figures.bands(panels, grid(), data(), SEEN, place.results / "figure2.png")
    return found


def reference_report(draws: Array) -> dict[str, Any]:
    half = len(draws) // 2
    first, second = (band(own.reshape(-1, POINTS)) for own in (draws[:half], draws[half:]))
    return {
        "by": "NUTS of NumPyro, double precision",
        "chains, draws of each": list(draws.shape[:2]),
        "KL between halves of the chains": harness.rounded(kl(first, second, slice(None))),
        "largest split R-hat of the function": harness.rounded(split_gelman_rubin(draws).max()),
    }


def goals(truth: Band, rows: Sequence[Mapping[str, Band]]) -> list[dict[str, Any]]:
    """The paper's claim in numbers: students are as close to the truth as what they learnt from."""
    divergence = {
        name: np.array([kl(truth, row[name], slice(None)) for row in rows]) for name in METHODS
    }
    mean = {name: values.mean() for name, values in divergence.items()}
    best = min((PBP, VI, SGD), key=mean.__getitem__)
    return [
        {
            "goal": "SGLD and its student are nearer to HMC, by KL over the whole panel, than PBP, "
            "VI and the plug-in network",
            "measured": {name: harness.statistics(own) for name, own in divergence.items()},
            "best of the others": best,
            "met": bool(max(mean[SGLD], mean[DISTILLED]) < mean[best]),
        }
    ]


if __name__ == "__main__":
    harness.command(run)
