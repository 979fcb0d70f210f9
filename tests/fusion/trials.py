"""Sites that truly differ, and their fusions."""

import numpy as np

import posterity
from posterity.families import Gaussian
from posterity.inference.random_effects import Effects, RandomEffects
from posterity.models.personal import Spreads

TRIALS = [  # study, estimate and standard error
    ("t0", -0.34159, 0.49860),
    ("t1", -0.74860, 0.50013),
    ("t2", -1.27988, 0.34797),
    ("t3", -0.80888, 0.22862),
    ("t4", -0.04681, 0.10804),
    ("t5", -0.69365, 0.27935),
    ("t6", -1.08647, 0.29241),
    ("t7", -0.54337, 0.10354),
    ("t8", -1.18023, 0.10535),
]
# Figures of metafor 3.8-1: rma(estimate, sei=std.error, method="REML").
TAU, Q, I2, MEAN, ERROR = 0.3798754453, 63.9938355032, 0.820380230281, -0.7355318299, 0.1541544028
TWO = [  # study, estimates of a and b, and their variances and covariance: aa, ab, bb
    ("s0", -0.513, -0.371, 0.0643, -0.0152, 0.1483),
    ("s1", 0.385, -1.088, 0.0496, -0.0161, 0.0702),
    ("s2", 0.175, -1.715, 0.0365, -0.0075, 0.0557),
    ("s3", -0.987, -1.363, 0.0339, 0.0308, 0.0603),
    ("s4", 1.638, -1.398, 0.0220, 0.0125, 0.1529),
    ("s5", -0.555, -0.803, 0.1408, 0.0096, 0.0125),
    ("s6", 0.271, None, 0.0772, None, None),
]
# Figures of rma.mv(y, V, mods=~outcome-1, random=~outcome|study, struct="DIAG").
TAUS, QS = (0.8466608806, 0.3627171447), 186.859867988
MEANS, ERRORS = (0.0812321635, -1.1270760562), (0.3326407918, 0.1838249079)


def one(name, mean, sd):
    return Gaussian.from_standard([mean], [[sd**2]]).named([name])


def trials(rows=TRIALS):
    return {study: one("treat", mean, sd) for study, mean, sd in rows}


def of_two():
    """The posterior of each study's coefficients; the last has no b."""
    sites = {}
    for study, a, b, aa, ab, bb in TWO[:-1]:
        sites[study] = Gaussian.from_standard([a, b], [[aa, ab], [ab, bb]]).named(["a", "b"])
    study, a, _, aa, *_ = TWO[-1]
    return sites | {study: one("a", a, aa**0.5)}


def drawn(seed, count=5, size=3, spread=0.7):
    """Sites of full covariances about one population."""
    rng = np.random.default_rng(seed)
    names = [f"c{k}" for k in range(size)]
    sites = {}
    for place in range(count):
        design = rng.normal(size=(12, size))
        covariance = np.linalg.inv(design.T @ design)
        mean = spread * rng.normal(size=size) + np.linalg.cholesky(covariance) @ rng.normal(
            size=size
        )
        sites[f"s{place}"] = Gaussian.from_standard(mean, covariance).named(names)
    return sites


def fused(sites, personal=True, **options):
    return posterity.fuse(sites, personal=personal, **options)


def at(fusion, spreads):
    """The population's coefficients if their spreads are these, known to a millionth."""
    known = fusion.population
    personal = dict(zip(known.personal, spreads, strict=True))
    sure = Spreads(common=1e-6, own=1e-6)
    prior = RandomEffects.of(known.prior.blocks["coefficients"], personal, sure)
    return Effects(prior, known.messages)
