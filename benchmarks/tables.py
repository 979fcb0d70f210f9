"""Tables of this folder's README: of each verb what was measured, beside what, and its goal.

Goals are those by which benchmarks judge, but for that of a hop over NVFlare, which judges by none.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.pages import table

RESULTS = Path(__file__).parent / "results"
Place = Sequence[str | int | Mapping[str, Any]]
"""Keys that lead to a figure; of a list, a number or what the row is like that is meant."""
FAST, LONG, MUCH = "times as fast", "times as long", "times as much"
MORE = "more"
"""What ratios are called: theirs over ours, ours over theirs, the same of memory; a difference."""
EXPONENT, WITHIN = "exponent", "exponent, within a standard error"
"""Units of exponents; goals of the second kind are met if they are missed by no more than that."""


class Row(NamedTuple):
    """A line of a table: where its figures stand, and the goal of the ratio if it has one."""

    what: str
    ours: Place = ()
    goal: float | None = None
    beside: str = ""
    theirs: Place = ()
    words: str = ""
    ratio: Place = ()
    """Where it stands; without a place it is made of the two figures."""
    unit: str = "s"


def results(name: str) -> Any:
    """Return what the results file of a name holds, nothing if there is none."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def found(tree: Any, place: Place) -> Any:
    """Return what stands at a place, ``None`` where nothing does."""
    if not place:
        return None
    for key in place:
        if isinstance(tree, list):
            tree = _chosen(tree, key)
        elif isinstance(tree, dict):
            tree = tree.get(key)
        else:
            return None
    return tree


def _chosen(rows: list[Any], key: Any) -> Any:
    if isinstance(key, int):
        return rows[key] if -len(rows) <= key < len(rows) else None
    alike = [row for row in rows if all(row.get(name) == key[name] for name in key)]
    return alike[0] if alike else None


# --- words for figures ---------------------------------------------------------------------------


def _short(value: float) -> str:
    """Write what is before the point, or two to three digits."""
    if abs(value) >= 10:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def _scaled(value: float, unit: str) -> tuple[float, str]:
    """Return a quantity in a unit that suits its size."""
    if unit == "s":
        if value < 1e-3:
            return 1e6 * value, " µs"
        return (value, " s") if value >= 1 else (1e3 * value, " ms")
    if unit == "bytes":
        return value / 1e6, " MB"
    if unit == "steps a second":
        return (value / 1e6, " M steps a s") if value >= 1e6 else (value, " steps a s")
    return value, ""


def _quantity(value: Any, unit: str) -> str:
    if isinstance(value, dict):
        text = f"{value['exponent']:.2f} ± {value['standard_error']:.2f}"
        return text.replace("-", "−")
    number, name = _scaled(value, unit)
    return f"{_short(number)}{name}"


def _limit(row: Row) -> str:
    """Write the goal."""
    if row.goal is None:
        return ""
    if row.words == FAST:
        return f"at least {row.goal:,g}"
    if row.words and row.words != MORE:
        return f"at most {row.goal:.3g}"
    number, name = _scaled(row.goal, row.unit)
    return f"at most {number:,g}{name}{' more' if row.words == MORE else ''}"


def _ratio(tree: Any, row: Row) -> float | None:
    """Return the ratio of a row, or the difference, ``None`` where there is none."""
    if row.ratio:
        return found(tree, row.ratio)
    ours = found(tree, row.ours)
    theirs = found(tree, row.theirs)
    if ours is None or theirs is None or not row.words:
        return None
    if row.words == MORE:
        return ours - theirs
    return theirs / ours if row.words == FAST else ours / theirs


def _outcome(row: Row, judged: Any) -> str:
    if row.goal is None:
        return ""
    if isinstance(judged, dict):
        slack = judged["standard_error"] if row.unit == WITHIN else 0.0
        judged = judged["exponent"] - slack
    met = judged >= row.goal if row.words == FAST else judged <= row.goal
    return "met" if met else "**missed**"


def _line(tree: Any, row: Row) -> list[str] | None:
    """Return the cells of a row, ``None`` where the file has no figure that it is about."""
    ours = found(tree, row.ours)
    theirs = found(tree, row.theirs)
    ratio = _ratio(tree, row)
    judged = ratio if row.words else ours
    if judged is None or (isinstance(judged, dict) and judged["exponent"] is None):
        return None
    shown = ""
    if ratio is not None:
        shown = _quantity(ratio, "s") if row.words == MORE else _short(ratio)
        shown = f"{shown} {row.words}"
    return [
        row.what,
        "" if ours is None else _quantity(ours, row.unit),
        row.beside,
        "" if theirs is None else _quantity(theirs, row.unit),
        shown,
        _limit(row),
        _outcome(row, judged),
    ]


def _table(lines: Iterable[list[str] | None]) -> str:
    """Return the table of lines that have figures, without columns that are empty."""
    body = [line for line in lines if line is not None]
    head = ["what", "ours", "beside", "theirs", "ours is", "goal", "outcome"]
    full = [place for place in range(len(head)) if any(line[place] for line in body)]
    kept = [[line[place] for place in full] for line in body]
    return table([head[place] for place in full], kept)


def _of(name: str, rows: Iterable[Row]) -> list[list[str] | None]:
    tree = results(name)
    return [_line(tree, row) for row in rows]


# --- fuse ----------------------------------------------------------------------------------------


def _compared(peer: str, name: str, sites: int, components: int, goal: float | None = None) -> Row:
    """Return the row of a fusion beside released code."""
    like = {"peer": peer, "sites": sites, "components": components}
    place = ("peers", "summary", like)
    return Row(
        f"{sites} sites x {components} components",
        (*place, "posterity_cpu_s"),
        goal,
        name,
        (*place, "peer_cpu_s"),
        FAST,
        (*place, "ratio_cpu"),
    )


def _growth(family: str, kind: str, what: str) -> Row:
    """Return the row of an exponent in the number of sites."""
    place = ("series", "series", {"name": f"sites, {family}"}, "exponents", kind)
    return Row(f"exponent of {what}, {family}", place, 1.0, unit=WITHIN)


_LADDER = ("targets", "ladder", "points", {"components": 400})
FUSE = (
    _compared("klfusion-40", "KL-fusion, G = 40", 10, 10, 2000),
    _compared("klfusion", "KL-fusion, G = 15", 10, 10, 700),
    _compared("spahm", "SPAHM (means only)", 10, 10, 4),
    _compared("klfusion", "KL-fusion, G = 4", 10, 3),
    _compared("klfusion", "KL-fusion, G = 15", 20, 10),
    _compared("spahm", "SPAHM (means only)", 100, 20),
    Row("1,000 sites x 50, d = 10", ("targets", "points", {"sites": 1000}, "cpu_s"), 0.8),
    Row("10,000 sites x 20, d = 5", ("targets", "points", {"sites": 10_000}, "cpu_s"), 0.7),
    Row("20 sites x 400, d = 5", (*_LADDER, "cpu_s"), 1.0),
    Row(
        "the same, memory",
        (*_LADDER, "peak_bytes"),
        15.0,
        "its input",
        (*_LADDER, "input_bytes"),
        MUCH,
        unit="bytes",
    ),
    Row("`posterity fuse` of six files, cold", ("targets", "command", "cpu_s"), 0.6),
    Row(
        "exponent of CPU time in components, NormalWishart",
        ("targets", "ladder", "exponents", "cpu_time"),
        1.5,
        unit=EXPONENT,
    ),
    _growth("NormalWishart", "cpu_time", "CPU time in sites"),
    _growth("DiagonalGaussian", "cpu_time", "CPU time in sites"),
    _growth("NormalWishart", "memory_by_input", "memory in its input's, by sites"),
    _growth("DiagonalGaussian", "memory_by_input", "memory in its input's, by sites"),
)
_MILLION = ("batches", {"sites": 1_000_000})
STREAM = (
    Row("1,000,000 sites x 20, d = 5, in batches", (*_MILLION, "cpu_s"), 60.0),
    Row("the same, memory", (*_MILLION, "peak_bytes"), 8e8, unit="bytes"),
)


def fuse() -> str:
    """Return fusions of components, beside released code and alone."""
    return _table([*_of("fusion", FUSE), *_of("stream", STREAM)])


# --- federate ------------------------------------------------------------------------------------


def _walks(kind: str, what: str, peer: str, goal: float) -> Row:
    """Return the row of walks beside a loop."""
    place = ("speed", "points", kind)
    rates = (*place, "steps_per_s_cpu")
    return Row(
        what,
        (*rates, "simulate"),
        goal,
        peer,
        (*rates, "plain loop"),
        FAST,
        (*place, "ratio_cpu"),
        "steps a second",
    )


def _beside(place: Place, what: str, peer: str, goal: float | None) -> Row:
    """Return the row of what is measured in turns with plain JAX, or with a part of its own."""
    place = ("beside plain JAX", "points", *place)
    times = (*place, "cpu_s")
    ratio = (*place, "ratio_cpu")
    return Row(what, (*times, "posterity"), goal, peer, (*times, "plain"), LONG, ratio)


_NEAR = ("default to 1e-3 nats",)
_SURE = "`federate` until it is sure of 1e-3 nats"
_RELEASED = ("beside plain JAX", "points", "released PVI code")
_EXAMPLE = ("targets", "points", "cold example")
_MANY = ("targets", "points", "many conjugate sites")
_UNEQUAL = ("targets", "points", "sites of unequal size")
FEDERATE = (
    _walks("conjugate speed", "Beta-Bernoulli walks, sums at each visit", "plain loop", 200),
    _walks("conjugate speed, sums kept", "one walk, sums known before", "plain loop", 10),
    _walks("conjugate speed, NumPy in step", "all walks in step", "NumPy", 1),
    _walks("default speed", "Beta-exponential, default estimator", "loop of REINFORCE", 200),
    _walks("REINFORCE speed", "Beta-exponential, REINFORCE", "loop of REINFORCE", 200),
    _beside(
        ["REINFORCE beside its draws"], "a visit by REINFORCE", "limit: drawing its Betas", 2.0
    ),
    _beside(
        ["logistic round, diagonal"],
        "logistic round, 10 sites x 1,000 x 50, diagonal",
        "plain JAX",
        1.15,
    ),
    _beside(["logistic round, full"], "the same, full", "plain JAX", 1.15),
    _beside([*_NEAR, "20 steps a visit, rate 0.5"], _SURE, "plain JAX, 20 steps of rate .5", 3.0),
    _beside([*_NEAR, "5 steps a visit, rate 0.5"], _SURE, "plain JAX, 5 steps of rate .5", 3.0),
    _beside([*_NEAR, "2 steps a visit, rate 1.0"], _SURE, "plain JAX, 2 whole steps", 3.0),
    _beside([*_NEAR, "1 steps a visit, rate 1.0"], _SURE, "plain JAX, one whole step", 3.0),
    _beside(
        [*_NEAR, "1 steps a visit, rate 1.0", "passes alone"],
        "its passes alone, until it is there",
        "plain JAX, one whole step",
        3.0,
    ),
    _beside(
        ["network round", "float32 beside plain in float64"],
        "network 784-50-10 in float32",
        "plain JAX in float64",
        1 / 1.5,
    ),
    Row(
        "logistic round, diagonal",
        (*_RELEASED, "cpu_s", "posterity"),
        None,
        "MattAshman/pvi",
        (*_RELEASED, "cpu_s", "peer"),
        FAST,
        (*_RELEASED, "ratio_cpu"),
    ),
    Row("first example of docs/federate.md, cold", (*_EXAMPLE, "cpu_s"), 1.5),
    Row("the same, memory", (*_EXAMPLE, "peak_bytes"), 120e6, unit="bytes"),
    Row("100,000 conjugate sites", (*_MANY, "cpu_s"), 10.0),
    Row("one more pass", (*_MANY, "next pass", "cpu_s"), 3.0),
    Row(
        "1,000 logistic regressions of 5 to 2,500 records, d = 5",
        (*_UNEQUAL, "cpu_s"),
        5.0,
    ),
    Row("one more pass", (*_UNEQUAL, "next pass", "cpu_s")),
    Row(
        "100 hops among 100 sites",
        ("series", "series", "hops", "points", {"sites": 100}, "cpu_s"),
        100 * 0.3e-3,
    ),
)


def federate() -> str:
    """Return walks and rounds beside plain code, and times of whole federations."""
    return _table(_of("federation", FEDERATE))


# --- forget --------------------------------------------------------------------------------------


def _forgotten(place: Place, what: str) -> Row:
    """Return the row of forgetting beside training without the site."""
    again = (*place, "retrain", "cpu_s")
    return Row(what, (*place, "forget", "cpu_s"), None, "training anew", again, FAST)


_GROWING = ("series", "series", "conjugate forget")
FORGET = (
    *(
        _forgotten((*_GROWING, "points", {"records": records}), f"ten sites, {records:,} records")
        for records in (100, 10_000, 1_000_000)
    ),
    Row(
        "exponent of CPU time in records",
        (*_GROWING, "exponents", "forget_cpu_time"),
        0.1,
        unit=EXPONENT,
    ),
    _forgotten(
        ("forgetting", "points", "waiting forget"),
        "ten Beta-exponential sites, to a distance that is known",
    ),
    Row("one of 100,000 conjugate sites", (*_MANY, "forget", "cpu_s"), 0.01),
)


def forget() -> str:
    """Return forgetting beside training anew."""
    return _table(_of("federation", FORGET))


# --- save and load -------------------------------------------------------------------------------


def _file(verb: str, what: str) -> Row:
    """Return the row of a verb beside the package."""
    place = ("package", verb)
    return Row(
        what,
        (*place, "posterity_cpu_s"),
        2.0,
        "safetensors and SHA-256",
        (*place, "package_cpu_s"),
        LONG,
        (*place, "ratio_cpu"),
    )


FILES = (
    _file("save", "saving 104 MB"),
    _file("load", "loading 104 MB"),
    Row("memory of saving, in sizes of the posterior", ("memory", "save"), 0.15, unit=""),
    Row("memory of loading, in sizes of the posterior", ("memory", "load"), 1.15, unit=""),
    *(
        Row(
            f"100,000 sites of {family}, d = {d}: save, load and sum",
            ("ledgers", {"family": family}, "together_cpu_s"),
            3.0,
        )
        for family, d in (("DiagonalGaussian", 10), ("NormalWishart", 3))
    ),
)


def files() -> str:
    """Return saving and loading beside the safetensors package."""
    return _table(_of("artifact", FILES))


# --- distill -------------------------------------------------------------------------------------

OWN = ("Langevin", "SGLD", "SGHMC", "gradient", "PyTorch loop without")
"""How the names of all begin that are no sampler of someone else's."""
SCANNED = "BlackJAX in a scan"


def _steps(tree: Any, place: Place, what: str, goals: Mapping[str, float]) -> list[Row]:
    """Return a row for each sampler of someone else's; goals are by how names begin."""
    names = found(tree, [*place, "over_langevin_cpu"]) or {}
    spent = (*place, "cpu_s_a_chain_step")
    rows = []
    for name in names:
        if name.startswith(OWN):
            continue
        own = [goal for start, goal in goals.items() if name.startswith(start)]
        goal = own[0] if own else None
        ratio = (*place, "over_langevin_cpu", name)
        rows.append(Row(what, (*spent, "Langevin"), goal, name, (*spent, name), FAST, ratio))
    return rows


def distill() -> str:
    """Return steps of chains beside other samplers, and of chains with a student."""
    tree = results("distillation")
    large = ("large", "points", 0)
    spent = (*large, "cpu_s_a_chain_step")
    what = "step of one chain, 784-400-400-10"
    rows = [
        Row(
            what,
            (*spent, "Langevin"),
            1.5,
            "limit: its gradient alone",
            (*spent, "gradient"),
            LONG,
        ),
        *_steps(tree, large, what, {"": 2.5}),
    ]
    many = ("small", "points", -1)
    goals = {SCANNED: 4.0, "BlackJAX, Python loop": 200.0, "PyTorch": 200.0, "posteriors": 200.0}
    rows += _steps(tree, many, "step of one of many chains, 2-10-2", goals)
    student = ("student", "points", 0)
    rows.append(
        Row(
            "step of a chain and its student",
            (*student, "both_cpu_s"),
            2.3,
            "the chain alone",
            (*student, "teacher_cpu_s"),
            LONG,
            (*student, "ratio_cpu"),
        )
    )
    peaks = ("memory", "points")
    rows.append(
        Row(
            "memory of the longest run",
            (*peaks, -1, "peak_bytes"),
            1.1,
            "the shortest",
            (*peaks, 0, "peak_bytes"),
            MUCH,
            unit="bytes",
        )
    )
    return _table([_line(tree, row) for row in rows])


# --- pursue --------------------------------------------------------------------------------------

_MODES = "four modes, 2-d"
_REACHED = (
    *("speed", "points", {"target": _MODES}, "loops", "pursue"),
    *("seconds to", "0.01 nats"),
)
_RATIO = ("speed", "ratios", {"target": _MODES}, "peers", "NumPyro")
PURSUE = (
    Row("four modes in the plane to .01 nats, warm", (*_REACHED, "warm, CPU")),
    Row("the same, cold", (*_REACHED, "cold, CPU")),
    *(
        Row(
            f"to the lowest KL that the peer reached, {start}",
            (),
            1.0,
            "boosting on NumPyro",
            (),
            FAST,
            (*_RATIO, start, "ratio"),
        )
        for start in ("warm", "cold")
    ),
    Row(
        "exponent of seconds a component in the components there are",
        ("growth", "points", {"target": "banana"}, "exponent"),
        1.0,
        unit=WITHIN,
    ),
)


def pursue() -> str:
    """Return times of pursuits."""
    return _table(_of("pursuit", PURSUE))


# --- agents and threads --------------------------------------------------------------------------

_HOP = ("hops", "points", {"kind": "hop"})
ENGINE = (
    Row("a hop of 10,000 parameters", (*_HOP, "cpu_s"), 5e-3),
    Row(
        "the same between agents, wall",
        ("hops", "points", {"kind": "socket"}, "p50_s"),
        5e-3,
        "limit: a write that is forced",
        (*_HOP, "bare_commit_p50_s"),
        MORE,
    ),
    Row(
        "a killed agent answers again, wall",
        ("process", "points", {"kind": "process"}, "back_s"),
        10.0,
    ),
)
COURIERS = (Row("a hop over NVFlare with certificates, wall", ("p50_s",), 0.05),)


def engine() -> str:
    """Return hops between agents."""
    return _table([*_of("engine", ENGINE), *_of("couriers", COURIERS)])


def threads() -> str:
    """Return times of small problems beside a process that never waits, over those alone."""
    body = []
    for point in found(results("threads"), ["points", "points"]) or []:
        if point["kind"] == "scikit-learn" or "ratio_wall" not in point:
            continue
        sizes = [f"{point[name]:,} {name}" for name in ("records", "columns") if point[name]]
        sizes += [f"{point['levels']:,} levels"] if point["levels"] else []
        sizes += [f"{point['sites']:,} sites"] if point["sites"] > 1 else []
        ratios = [point["ratio_wall"], point["ratio_cpu"]]
        body.append(
            [
                f"{point['kind']}: {', '.join(sizes)}",
                _quantity(point["alone"]["wall_s"], "s"),
                *(_short(ratio) for ratio in ratios),
                "at most 2",
                "met" if max(ratios) <= 2 else "**missed**",
            ]
        )
    head = ["what", "alone, wall", "beside / alone, wall", "the same, CPU", "goal", "outcome"]
    return table(head, body)


# --- faults --------------------------------------------------------------------------------------


def faults() -> str:
    """Return how many runs and inputs there were, and how many promises they broke."""
    body = []
    for title, name in (("walk", "faults"), ("star", "faults_star")):
        for part, more in (("campaign", ""), ("silent members", ", members that are silent")):
            own = results(name).get(part)
            if own is not None:
                runs = f"{own['runs']:,}"
                body.append([f"runs of a {title}{more}", runs, f"{len(own['violations'])}"])
    fuzzed = results("fuzz")
    if fuzzed:
        inputs = f"{fuzzed['inputs']:,}"
        body.append(["bad inputs", inputs, f"{len(fuzzed['violations'])}"])
    return table(["what", "how many", "broken promises"], body)


def mutants() -> str:
    """Return how many defects that were put in were seen."""
    body = []
    for title, name in (("walk", "faults"), ("star", "faults_star")):
        seen = results(name).get("mutants", {})
        seeds = [own["seed"] for own in seen.values() if own]
        latest = f"{max(seeds)}" if seeds else ""
        body.append(
            [f"of the rules of a {title}, by runs", f"{len(seen)}", f"{len(seeds)}", latest]
        )
    every = results("mutants")
    tried = [own for name, own in every.items() if name != "made with"]
    caught = [own for own in tried if None not in own.values()]
    body.append(["of the source, by its test", f"{len(tried)}", f"{len(caught)}", ""])
    return table(["defects", "put in", "seen", "latest at seed"], body)
