"""Forgetting each hospital in turn: how far from retrained, and does it still remember patients?

Retrained means: the same federation from the start without that hospital, its noise included.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.heart import trials
from experiments.heart.kinds import Array, Kind
from experiments.heart.kinds import logistic as logistic_kind
from experiments.heart.trials import POOLED, Splits, fit, held_out, log_likelihoods, ratio_scores
from experiments.privacy.membership import attack_auc, auc_difference
from posterity.errors import ParameterError
from posterity.federation import Run

METHOD = "server, sequential"
SWEEPS = (0, 1, 2, 5)
MORE_SWEEPS = (0, 1, 2, 5, 20)
BEFORE, RETRAINED, AGAIN = "before", "retrained", "retrained, other noise"
ATTACKS = ("loss", "ratio")


def after(sweeps: int) -> str:
    """What a posterior is called that was refined so often after subtraction."""
    return f"after {sweeps} sweeps"


def sweeps_of(kind: Kind) -> tuple[int, ...]:
    return SWEEPS if kind.deterministic else MORE_SWEEPS  # noisy refinement is slower


def forget_one(kind: Kind, run: Run, splits: Splits, site: str, seed: int) -> dict[str, Any]:
    """Distances to the retrained posterior, and AUCs of attacks on the hospital's patients."""
    refined, refused = forgotten(run, site, sweeps_of(kind))
    stages: dict[str, Any] = {BEFORE: run.posterior, **refined}
    stages |= retrained(kind, splits, site, seed)
    found: dict[str, Any] = {"subtraction refused": float(refused)}
    if kind.deterministic:
        found["KL to retrained"] = {
            name: float(q.kl(stages[RETRAINED])) for name, q in stages.items() if name != RETRAINED
        }
    tests = held_out(splits)
    rest = trials.together({s: data for s, data in tests.items() if s != site})
    found["predictive KL to retrained"] = predictive = {}
    for group, x in {"forgotten hospital": tests[site][0], "others": rest[0]}.items():
        chances = {name: kind.predict(q, x) for name, q in stages.items()}
        target = chances.pop(RETRAINED)
        predictive[group] = {name: bernoulli_kl(p, target) for name, p in chances.items()}
    return found | _attacks(kind, stages, splits, site)


def forgotten(run: Run, site: str, sweeps: tuple[int, ...]) -> tuple[dict[str, Any], bool]:
    """Posteriors by number of sweeps, and whether subtraction left no distribution.

    If so, all factors start again from zero and are refined from there.
    """
    refused = False
    try:
        run = run.forget(site)
    except ParameterError:
        refused, run = True, run.restarted().forget(site)
    stages, done = {}, 0
    for count in sweeps:
        run, done = run.sweep(count - done), count
        stages[after(count)] = run.posterior
    return stages, refused


def retrained(kind: Kind, splits: Splits, site: str, seed: int) -> dict[str, Any]:
    """The federation that never met the hospital; for noisy ones also with other noise."""
    rest = {name: data for name, data in trials.training(splits).items() if name != site}
    keys = {RETRAINED: trials.purpose(seed, trials.NOISE)}
    if not kind.deterministic:
        keys[AGAIN] = trials.purpose(seed, trials.OTHER_NOISE)
    return {name: fit(kind, METHOD, rest, key=key).posterior for name, key in keys.items()}


def bernoulli_kl(p: Array, q: Array) -> float:
    """Mean KL(Bernoulli(p) ‖ Bernoulli(q)), nats a patient."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ones, zeros = p * np.log(p / q), (1 - p) * np.log((1 - p) / (1 - q))
    return float(np.mean(np.where(p > 0, ones, 0.0) + np.where(p < 1, zeros, 0.0)))


def _attacks(
    kind: Kind, stages: Mapping[str, Any], splits: Splits, site: str
) -> dict[str, dict[str, Any]]:
    """AUC by attack and stage; refined less retrained, and before less retrained.

    The ratio's reference is a logistic regression on others' held-out patients: it shares none with
    any model under attack, nor with the hospital.
    """
    parts, simple, scores = splits[site], logistic_kind(), {}
    others = {name: data for name, data in held_out(splits).items() if name != site}
    known = fit(simple, POOLED, others, key=trials.purpose(0, trials.NOISE)).posterior
    for name, q in stages.items():
        pairs = ((parts.x_train, parts.y_train), (parts.x_test, parts.y_test))
        each = [(kind.predict(q, x), simple.predict(known, x), y) for x, y in pairs]
        loss = tuple(log_likelihoods(p, y) for p, _, y in each)
        scores[name] = {"loss": loss, "ratio": tuple(ratio_scores(*own) for own in each)}
    refined = after(max(sweeps_of(kind)))
    titles = ("AUC", "refined less retrained", "power", "other noise less retrained")
    found: dict[str, dict[str, Any]] = {title: {} for title in titles}
    for attack in ATTACKS:
        mine = {name: by_attack[attack] for name, by_attack in scores.items()}
        found["AUC"][attack] = {name: attack_auc(*s).value for name, s in mine.items()}
        pairs = {"refined less retrained": refined, "power": BEFORE}
        pairs |= {"other noise less retrained": AGAIN} if AGAIN in mine else {}
        for title, name in pairs.items():
            found[title][attack] = auc_difference(mine[name], mine[RETRAINED])._asdict()
    return {title: values for title, values in found.items() if values}
