"""One line on a law or a ledger: what ``repr`` says, quickly and whatever it holds.

Numbers are said where they are known and cheap: of one member, in up to 64 dimensions where a
matrix would have to be inverted. Else it is the family with its dimensions and batch.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from posterity.arrays.tree import LABEL, map_leaves

MOST = 200
"""Characters of a line."""
SHOWN = 3
"""Numbers that are said of a law."""
MOST_SOLVED = 64
"""Dimensions up to which a matrix is inverted to be described."""
MOST_READ = 10_000
"""Numbers of a law up to which all are looked at."""
LONGEST = 24
"""Letters of a name."""


def short(law: Any) -> str:
    """One line below 200 characters on a law; never an error."""
    for numbers in (True, False):
        try:
            with np.errstate(all="ignore"):
                text = _law(law, numbers)
        except Exception:  # of tracers, of what is half built: a description is no place to fail
            continue
        if len(text) <= MOST:
            return text
    try:
        return cut(_law(law, numbers=False))
    except Exception:
        return cut(f"{type(law).__name__}({_shapes(law)})")


def short_ledger(ledger: Any) -> str:
    """One line on a ledger: its sites and its posterior."""
    try:
        held, gone = ledger.sites, len(ledger.forgotten)
        left = f", {gone} forgotten" if gone else ""
        count = f"{len(held)} site{'' if len(held) == 1 else 's'}"
        told = f"{count}{': ' + _listed(held) if held else ''}{left}"
        return cut(f"Ledger({told}; {_sum(ledger.prior, held, lambda: ledger.total)})")
    except Exception:
        return f"{type(ledger).__name__}(?)"


def short_run(run: Any) -> str:
    """One line on a run, without its history."""
    try:
        sites = run.sites
        told = f"{len(sites)} sites" + (f": {_listed(sites)}" if sites else "")
        step = f"step {run.state.step} of {type(run.schedule).__name__}"
        law = _sum(run.state.prior, sites, lambda: run.posterior)
        return cut(f"Run({step}, {told}; {law})")
    except Exception:
        return f"{type(run).__name__}(?)"


def _sum(prior: Any, sites: Any, total: Any) -> str:
    """The posterior of so many sites where it is summed in no time, else what kind it is."""
    from posterity.families.names import names_of, with_names

    if len(sites) > MOST_SOLVED or prior.dimension > MOST_READ:
        return _kind(prior)
    return short(with_names(total(), names_of(prior)))


def short_fusion(fusion: Any) -> str:
    """One line on a fusion: how many components, at which cost."""
    try:
        parts = [_kind(fusion.posterior)]
        for path, plate in fusion.plates.items():
            name = f"{path}: " if path else ""
            parts.append(f"{name}{plate.components} components of {len(plate.matching)} sites, "
                         f"cost {plate.cost:.3g}")  # fmt: skip
            if fusion.posterior.dimension <= MOST_READ and len(plate.matching) <= MOST_SOLVED:
                parts.append(str(fusion.scales[path]))  # of more it takes a while
        return cut(f"{type(fusion).__name__}({'; '.join(map(clean, parts))})")
    except Exception:
        return f"{type(fusion).__name__}(?)"


def clean(text: str) -> str:
    """On one line, whatever names hold."""
    escape = lambda c: c.encode("unicode_escape").decode()
    return "".join(c if c.isprintable() else escape(c) for c in text)


def cut(text: str) -> str:
    """No longer than a message may repeat."""
    return text if len(text) <= MOST else f"{text[: MOST - 4]}...)"


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(_name(name) for name in names[:SHOWN]) + more


def _name(name: str) -> str:
    name = clean(name)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."


def _shapes(law: Any) -> str:
    """What there is, of what is no whole law."""
    found = (
        f"{name}={type(value).__name__}{tuple(getattr(value, 'shape', ()))}"
        for name, value in law.__dict__.items()
        if name != LABEL
    )
    return ", ".join(found) or "nothing"


def _law(law: Any, numbers: bool) -> str:
    """A law with its parts, in a line of any length."""
    from posterity.families import Mixture, Network, Plate, Product, Transformed

    name = type(law).__name__
    if isinstance(law, Product):
        parts = [f"{_name(key)}={_law(part, numbers)}" for key, part in law.blocks.items()]
        return f"{name}({', '.join(parts)})"
    if isinstance(law, Plate):
        told = [_many(law, law.members), *_batch(law)]
        if law.weights is not None:
            told.append(_weights(law.weights, numbers))
        return f"{name}({', '.join(told)})"
    if isinstance(law, Mixture):
        told = [_many(law, law.components)]
        if numbers:
            told.append(f"weights {_few(np.asarray(_known(law.log_weights, True)), _exp)}")
        return f"{name}({', '.join(told)})"
    if isinstance(law, Transformed):
        return f"{name}({_law(law.law, numbers)} onto {_places(law.supports.tree)})"
    own = [f"d={law.named_size}"] if _has_size(law) else []
    if isinstance(law, Network):
        own, numbers = [law.layers.summary], False
    own += _batch(law)
    if numbers and not law.batch_shape:
        own += _numbers(law)
    return f"{name}({', '.join(own)})" if own else name


def _kind(law: Any) -> str:
    """A law without its numbers; never an error."""
    try:
        return _law(law, numbers=False)
    except Exception:
        return type(law).__name__


def _has_size(law: Any) -> bool:
    """Whether a member has an axis, which one number has not."""
    return law.named_size is not None and any(
        coordinate.axes for coordinate in getattr(law, "coordinates", {"": _Vector}).values()
    )


class _Vector:
    axes = 1


def _batch(law: Any) -> list[str]:
    return [f"batch={tuple(law.batch_shape)}"] if law.batch_shape else []


def _many(law: Any, members: Any) -> str:
    """How many of what: members without their own batch."""
    names = law.__dict__.get(LABEL, ())
    kind = _law(members[(0,) * len(members.batch_shape)], numbers=False)
    labels = f" {_listed(names)}" if names else ""
    return f"{law.size} x {kind}{labels}"


def _exp(log_weights: np.ndarray) -> np.ndarray:
    weights = np.exp(log_weights - log_weights.max())
    return weights / weights.sum()


def _weights(weights: Any, numbers: bool) -> str:
    kind = f"{type(weights).__name__} weights"
    if not numbers or weights.batch_shape[:-1]:
        return kind
    mean = np.asarray(_known(weights, False).mean_weights())
    return f"{kind} {_few(mean)}" if np.isfinite(mean).all() else f"improper {kind}"


def _few(values: np.ndarray, rule: Any = lambda values: values) -> str:
    more = " ..." if len(values) > SHOWN else ""
    return " ".join(f"{value:.2g}" for value in rule(values)[:SHOWN]) + more


def _places(tree: Any) -> str:
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{_name(k)}: {_places(part)}" for k, part in tree.items()) + "}"
    if isinstance(tree, tuple):
        return "(" + ", ".join(map(_places, tree)) + ")"
    return type(tree).__name__


def _known(law: Any, array: bool) -> Any:
    """With leaves of NumPy; an error for what stands for no numbers."""
    return np.asarray(law) if array else map_leaves(np.asarray, law)


def _numbers(law: Any) -> list[str]:
    """Means and standard deviations of the first few coordinates, if they are cheap."""
    from posterity.families import DiagonalGaussian
    from posterity.summary.tables import _marginals, _quantities

    size = law.named_size or 1
    if isinstance(law, DiagonalGaussian):
        first = slice(0, SHOWN)
        precision = np.asarray(law.precision[first], float)
        mean = np.asarray(law.precision_mean[first], float) / precision
        sd, labels = precision**-0.5, law.__dict__.get(LABEL, ())[first]
    else:
        total = sum(math.prod(np.shape(leaf)) for leaf in law.children())
        if total > MOST_READ or size > MOST_SOLVED:
            return []
        known = _known(law, False)
        if not np.all(known.is_proper()):
            return ["improper"]
        names = law.__dict__.get(LABEL, ())
        _, labels = next(_quantities(law, names))
        found = _marginals(known)[0]
        labels = labels if names else ()
        mean, sd = found.mean, found.sd
    if not np.isfinite(mean[:SHOWN]).all() or not (sd[:SHOWN] >= 0).all():
        return ["improper"] if np.isnan(sd[:SHOWN]).any() else []
    pairs = zip(mean[:SHOWN], sd[:SHOWN], strict=True)
    told = [f"{m:.3g} ± {s:.2g}" for m, s in pairs]
    told = [f"{_name(n)}={text}" for n, text in zip(labels, told, strict=False)] or told
    more = (size if isinstance(law, DiagonalGaussian) else len(mean)) - SHOWN
    return [*told, f"{more} more"] if more > 0 else told
