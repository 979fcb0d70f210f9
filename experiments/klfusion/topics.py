"""Figure 4 of KL-fusion: `python -m experiments.klfusion.topics`.

Messages of twenty newsgroups lie at five sites, which fit topic models apart; methods fuse the
posteriors, and are judged by the words of held-out messages and by their time. Writes
`topics.json` and `figure4.png` into `results` beside this file. Fits are kept under the cache
folder: a stopped run goes on where it was.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.progress import track

import posterity
from experiments import harness
from experiments.data import Newsgroups, newsgroups
from experiments.klfusion.amps import amps
from experiments.klfusion.lda import fit
from posterity.families import Dirichlet, Plate
from posterity.ledger import Ledger
from posterity.models import Documents, TopicModel, documents
from posterity.models.topics import log_completion, word_chances

Array = np.ndarray
RESULTS = Path(__file__).parent / "results"
DEFAULT_CACHE = Path(".cache/klfusion-topics")
SITES, TOPICS, HELD_OUT = 5, 50, 1000
UNSEEN = 0.1
"""Share of a held-out message's words that are predicted."""
ALPHA, BETA = 0.1, 0.05
SPREAD = 0.5
"""Of the Dirichlet by which each newsgroup's messages are spread over the sites."""
POOLED, ALONE = "pooled LDA", "no fusion"
OURS = "non-parametric, product"


class Trial(NamedTuple):
    """What sites hold, and what they are asked."""

    sites: list[Any]
    seen: Documents
    unseen: Documents


# --- the problem -----------------------------------------------------------------------------


def trial(counts: Any, groups: Array, number: int, held_out: int = HELD_OUT) -> Trial:
    """Messages held out, and the rest spread over the sites."""
    rng = np.random.default_rng([4, number])
    order = rng.permutation(counts.shape[0])
    test, rest = order[:held_out], order[held_out:]
    shares = rng.dirichlet(np.full(SITES, SPREAD), int(groups.max()) + 1)
    site = np.array([rng.choice(SITES, p=shares[group]) for group in groups[rest]])
    hidden = counts[test].copy()
    hidden.data = rng.binomial(hidden.data.astype(int), UNSEEN).astype(float)
    shown = (counts[test] - hidden).tocsr()
    for table in (hidden, shown):
        table.eliminate_zeros()
    return Trial(
        [counts[rest[site == index]] for index in range(SITES)], documents(shown), documents(hidden)
    )


def fits(
    problem: Trial, cache: Path, number: int, topics: int, passes: int
) -> tuple[list[Ledger], Plate]:
    """The sites' ledgers, and the posterior of all messages together; kept in the cache."""
    from scipy.sparse import vstack

    tables = {f"site{index}": table for index, table in enumerate(problem.sites)}
    tables["pooled"] = vstack(problem.sites, format="csr")
    found = {}
    for index, (name, table) in enumerate(tables.items()):
        path = cache / f"{number}-{topics}-{passes}-{name}.safetensors"
        if not path.exists():
            cache.mkdir(parents=True, exist_ok=True)
            seed = [5, number, index]
            q = fit(table, topics, alpha=ALPHA, beta=BETA, seed=seed, passes=passes)
            posterity.save(q, path)
        found[name] = posterity.load(path)
    pooled: Any = found.pop("pooled")
    prior = Plate(Dirichlet.from_standard(np.full(pooled.members.concentration.shape, BETA)))
    own = [Ledger.of_site(name, prior=prior, posterior=q) for name, q in found.items()]  # pyright: ignore
    return own, pooled


# --- the methods -----------------------------------------------------------------------------


def _fused(**options: Any) -> Callable[[list[Ledger]], Plate]:
    def method(sites: list[Ledger]) -> Any:
        return posterity.fuse(sites, **options).posterior

    return method


def side_by_side(sites: list[Ledger]) -> Plate:
    """All topics of all sites, none fused."""
    rows = [site.posterior.members.concentration for site in sites]  # pyright: ignore
    return Plate(Dirichlet.from_standard(np.concatenate(rows)))


METHODS: dict[str, Callable[[list[Ledger]], Plate]] = {
    OURS: _fused(rule="product"),
    "non-parametric, barycentre": _fused(),
    "non-parametric, paper's setting": _fused(matching="kl-fusion"),
    "parametric, product": _fused(matching="hungarian", rule="product"),
    "parametric, barycentre": _fused(matching="hungarian"),
    "AMPS": amps,
    "all topics, side by side": side_by_side,
}


# --- the run ---------------------------------------------------------------------------------


class Score(NamedTuple):
    """Of one posterior: predictive log likelihood in nats a word, seconds, and topics."""

    mean: float
    geometric: float
    seconds: float
    cpu_seconds: float
    topics: int


def judge(q: Plate, problem: Trial, seconds: float = 0.0, cpu: float = 0.0) -> Score:
    """How well it foretells the unseen words."""
    words: Any = q.members
    model = TopicModel(words.own_size, concentration=ALPHA, iterations=60, tolerance=1e-2)
    total = problem.unseen.totals.sum()
    mixtures: Any = model.mixtures(q, problem.seen).mean
    mean, geometric = (
        float(log_completion(mixtures, word_chances(q, kind), problem.unseen).sum() / total)
        for kind in ("mean", "geometric")
    )
    return Score(mean, geometric, seconds, cpu, q.size)


def measure(
    problem: Trial, own: list[Ledger], pooled: Plate, methods: Mapping[str, Callable]
) -> tuple[dict[str, Score], dict[str, Plate]]:
    """All methods on one trial."""
    scores, found = {POOLED: judge(pooled, problem)}, {}
    alone = [judge(site.posterior, problem) for site in own]  # pyright: ignore
    scores[ALONE] = Score(*np.mean(alone, axis=0)[:4].tolist(), own[0].posterior.size)  # pyright: ignore
    for name, method in methods.items():
        wall, cpu = time.perf_counter(), time.process_time()
        found[name] = method(own)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        scores[name] = judge(found[name], problem, wall, cpu)
    return scores, found


def top_words(q: Plate, words: tuple[str, ...], most: int = 8) -> list[str]:
    """Of each topic its likeliest words, topics with most words first."""
    concentration = np.asarray(q.members.concentration)  # pyright: ignore
    heaviest = np.argsort(-concentration.sum(1), kind="stable")
    return [
        " ".join(words[index] for index in np.argsort(-concentration[k], kind="stable")[:most])
        for k in heaviest
    ]


def summarise(scores: list[dict[str, Score]]) -> dict[str, Any]:
    """Means and spreads over trials, and the goals."""
    rows = {}
    for name in scores[0]:
        values = np.array([trial[name] for trial in scores])
        spread = values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
        rows[name] = {
            field: {"mean": round(float(m), 4), "sd": round(float(s), 4)}
            for field, m, s in zip(Score._fields, values.mean(0), spread, strict=True)
        }
    ours = np.array([trial[OURS].mean for trial in scores])
    rivals = [name for name in scores[0] if name.startswith("parametric") or name == "AMPS"]
    beaten = {}
    for name in rivals:
        gain = ours - [trial[name].mean for trial in scores]
        error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else float("nan")
        beaten[name] = {
            "gain": round(float(gain.mean()), 4),
            "standard error": round(float(error), 4),
        }
        beaten[name]["better on trials"] = int((gain > 0).sum())
    return {
        "methods": rows,
        "goal": {
            "text": "non-parametric better than parametric and AMPS in log likelihood, and "
            "fusion at most 1 s a trial (the paper: 10 to 60 s)",
            "nats a word over": beaten,
            "CPU seconds of fusion, the most": round(max(t[OURS].cpu_seconds for t in scores), 2),
            "seconds of fusion, the median": round(
                float(np.median([t[OURS].seconds for t in scores])), 2
            ),
        },
    }


class Settings(NamedTuple):
    """Of a run."""

    cache: Path
    topics: int = TOPICS
    passes: int = 2
    held_out: int = HELD_OUT
    methods: tuple[str, ...] = tuple(METHODS)


def one(data: Newsgroups, number: int, settings: Settings) -> tuple[dict[str, Score], list[str]]:
    """A trial: its scores, and the likeliest words of its fused topics; kept in the cache."""
    known = settings.cache / f"{number}-{settings.topics}-{settings.passes}-scores.json"
    if known.exists():
        scores, words = json.loads(known.read_text())
        if tuple(scores)[2:] == settings.methods:
            return {name: Score(*score) for name, score in scores.items()}, words
    problem = trial(data.counts, data.y, number, settings.held_out)
    own, pooled = fits(problem, settings.cache, number, settings.topics, settings.passes)
    methods = {name: METHODS[name] for name in settings.methods}
    scores, fused = measure(problem, own, pooled, methods)
    words = top_words(fused[OURS], data.words)
    harness.replace(known, json.dumps([scores, words]))
    return scores, words


def run(
    data: Newsgroups, settings: Settings, *, results: Path, trials: int, processes: int = 1
) -> dict[str, Any]:
    """Fit, fuse, judge, draw and write; returns what `topics.json` holds."""
    from experiments.klfusion.topics_figure import draw

    ask = functools.partial(one, data, settings=settings)
    if processes == 1:
        found = [ask(number) for number in track(range(trials), description="Trials")]
    else:
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            jobs = pool.map(ask, range(trials))
            found = list(track(jobs, total=trials, description="Trials"))
    scores = [own for own, _ in found]
    summary = {
        "trials": trials,
        "seeds": "default_rng([4, trial]) for the split, [5, trial, site] for the fits",
        "sites": SITES,
        "topics a site": settings.topics,
        "concentrations": {"mixtures": ALPHA, "topics": BETA},
        "spread of each newsgroup over the sites": f"Dirichlet({SPREAD})",
        "held out": settings.held_out,
        **summarise(scores),
        "each trial": [{name: list(score) for name, score in t.items()} for t in scores],
        "top words of the fused topics of trial 0": found[0][1],
    }
    harness.write(results, "topics", summary)
    draw(scores, results / "figure4.png")
    return summary


def main() -> None:
    """Parse the command line and run."""
    parser = harness.command_line(__doc__, RESULTS, DEFAULT_CACHE)
    parser.add_argument("--trials", type=int, default=10, help="(default: 10)")
    parser.add_argument("--processes", type=int, default=2, help="trials at a time")
    arguments = parser.parse_args()
    summary = run(
        newsgroups(),
        Settings(arguments.cache),
        results=arguments.results,
        trials=arguments.trials,
        processes=arguments.processes,
    )
    print(json.dumps({name: summary[name] for name in ("methods", "goal")}, indent=1))


if __name__ == "__main__":
    main()
