"""Draws as variables: checked arrays of chains, draws and own axes, with one label per coordinate.

They are read from arrays, dictionaries, tables, and the results of samplers.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posterity.arguments import COUNT, Constraint, one_of
from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Shape
from posterity.errors import StructureError, UsageError
from posterity.families import supports
from posterity.families.coordinates import check_inside
from posterity.families.names import entry_names, some, unfit
from posterity.families.unconstrained import Supports
from posterity.models.tables import array, check_numbers, distinct

Array = np.ndarray
Chains = int | str | None
SUPPORTS: dict[str, type[supports.Continuous]] = {
    "real": supports.RealNumbers,
    "positive": supports.PositiveNumbers,
    "unit": supports.UnitInterval,
    "simplex": supports.Simplex,
    "positive-definite": supports.PositiveDefiniteMatrices,
}
"""Supports by the words of ``support=``."""
WORD = Constraint(
    one_of(*SUPPORTS).expected,
    lambda word: word in SUPPORTS,
    fix="Intervals other than from zero to one have to be scaled to it first.",
)
CHAINS = Constraint(
    "None, a whole number, 'first' or 'second'",
    lambda value: value in (None, "first", "second") or COUNT.allows(value),
    fix="Say which axis holds the chains, or how many there are: see from_samples.",
)
EVENT = "z"
"""Name, in reports, of an array without one."""
CHAIN = ("chain", ".chain", "chain__", "chain_id")
"""Columns of tables that hold the chain of a row."""
ORDER = ("draw", ".draw", ".iteration", "iteration", "iter__", "draw__")
"""Columns that hold the number of the draw in its chain."""


@dataclasses.dataclass(frozen=True)
class Variable:
    """One variable: ``values`` (chains, n, *shape) and a label for each coordinate."""

    name: str
    values: Array
    labels: tuple[str, ...]
    support: supports.Continuous

    @property
    def shape(self) -> Shape:
        """The variable's own axes."""
        return self.values.shape[2:]

    @functools.cached_property
    def free(self) -> Array:
        """Unconstrained draws (chains, n, free d)."""
        bijection = Supports(self.support)
        return bijection.ravel(bijection.inverse(self.values))

    @property
    def free_labels(self) -> tuple[str, ...]:
        """Labels of the unconstrained coordinates."""
        free = self.support.free_shape
        return self.labels if free == self.shape else entry_names(self.name or EVENT, free)


def variable(name: str, values: object, chains: Chains, coords: Sequence[Any] = ()) -> Variable:
    """Return a variable of given draws, on the real numbers until another support is requested."""
    called = name or EVENT
    draws = runs(numbers(values, name or "draws"), chains, name or "draws")
    check_numbers(draws, f"draws of {called!r} by chain", "Find out why the sampler diverged.")
    labels = entry_names(called, draws.shape[2:], coords)
    return Variable(name, draws, labels, supports.RealNumbers(draws.shape[2:]))


def numbers(values: object, name: str) -> Array:
    """Convert to float64; a StructureError for values that are not real numbers."""
    return array(values, None, f"draws of {name!r}").astype(np.float64)


def runs(values: Array, chains: Chains, name: str) -> Array:
    """Return draws as (chains, n, *shape), where ``chains`` describes the first axes."""
    CHAINS.check(chains=chains)
    two = isinstance(chains, str)
    count = 1 if chains is None or two else int(chains)
    if values.ndim < 1 + two or 0 in values.shape or len(values) % count:
        raise StructureError(
            found=f"draws of {name!r} of shape {values.shape} with chains={chains!r}",
            expected="(chains, draws, ...)" if two else "(draws, ...), as many in each chain",
        )
    if two:
        return values if chains == "first" else np.swapaxes(values, 0, 1)
    return values.reshape(count, -1, *values.shape[1:])


def with_supports(variables: Sequence[Variable], asked: Any) -> list[Variable]:
    """Return the variables on the requested supports, for all or by name."""
    if asked is None:
        return list(variables)
    known = [v.name for v in variables]
    asked = asked if isinstance(asked, Mapping) else dict.fromkeys(known, asked)
    strange = [name for name in asked if name not in known]
    if strange:
        raise UsageError(
            found=f"supports for {some(strange)}",
            expected=f"variables among {some(known)}; columns of an array as a dictionary by name",
        )
    return [on(v, asked[v.name]) if v.name in asked else v for v in variables]


def on(own: Variable, support: Any) -> Variable:
    """Return a variable on another support, a word or a ``Support``, which must hold all draws."""
    support = type(support) if isinstance(support, supports.Continuous) else support
    called = own.name or EVENT
    if not isinstance(support, type):
        WORD.check(**{f"support of {called!r}": support})
        support = SUPPORTS[support]
    values = own.values
    axes = support.axes
    wrong = axes > len(own.shape) or (axes == 1 and own.shape[-1] < 2)
    if wrong or (axes == 2 and own.shape[-1] != own.shape[-2]):
        raise StructureError(
            found=f"draws of {called!r} of shape {own.shape} each",
            expected=f"{support.name} on the last {axes} axes" if axes > 1 else support.name,
        )
    if support is supports.Simplex:
        total = values.sum(-1, keepdims=True)  # larger errors than float32 rounding are refused
        near = abs(total - 1) < 1e-4
        values = np.where(near, values / np.where(total == 0, 1, total), values)
    if support is supports.PositiveDefiniteMatrices:
        values = (values + np.swapaxes(values, -1, -2)) / 2
    made = support(own.shape)
    inside = made.holds(namespace(values), values)
    check_inside(inside, values, f"a draw of {called!r} outside of the support", support.name)
    return dataclasses.replace(own, values=values, support=made)


# --- where they are read from ---------------------------------------------------------------------


def variables_of(
    draws: Any, chains: Chains, named: bool, wide: float = 3
) -> tuple[list[Variable], list[str]]:
    """Return the variables in any container of draws, and notes on how they were read.

    ``named`` tells that coordinates have names, which axes of chains would not. Above ``wide``
    coordinates without names a draw, axes are more likely chains and draws.
    """
    package = type(draws).__module__.partition(".")[0]
    run = package == "numpyro" and hasattr(draws, "get_samples")
    if run or package in ("arviz", "xarray", "arviz_base"):
        if chains is not None:
            raise UsageError(
                found=f"chains={chains!r} beside {type(draws).__name__}", expected="an array"
            )
        return _numpyro(draws) if run else (_dataset(draws), [])
    if package == "pandas" or hasattr(draws, "draws_pd"):  # as in CmdStanPy's fits
        return _table(draws if package == "pandas" else draws.draws_pd(), chains), []
    # A list of arrays may be one of variables or of chains.
    several = isinstance(draws, list) and any(hasattr(part, "shape") for part in draws)
    nameless = isinstance(draws, Mapping) and (not draws or unfit(list(draws)))
    if draws is None or isinstance(draws, str | bytes | tuple) or several or nameless:
        raise _unknown(draws)
    if isinstance(draws, Mapping):
        variables = [variable(name, values, chains) for name, values in draws.items()]
    else:
        values = numbers(draws, "draws")
        if chains is None and values.ndim == 3:  # (chains, n, d)
            chains = "first"
        one = variable("", values, chains)
        variables = [one if one.shape else variable("", values[..., None], chains)]
    own = variables[0]
    shapes = {v.name: v.values.shape[:2] for v in variables}
    # If second axes differ, or a variable has none, the first axis is that of draws.
    tops = {v.values.shape[1:3] for v in variables}
    count = own.values.shape[1]
    size = own.shape[0] if own.shape else 0
    swapped = (chains, named, len(tops), len(own.values)) == (None, False, 1, 1)
    deep = not own.name and len(own.shape) > 1
    if len(set(shapes.values())) > 1 or deep or (swapped and size > wide * count):
        raise StructureError(
            found=f"draws of shape {own.values.shape[swapped:]}"
            + (f" of {own.name!r}; chains and draws {shapes}" if own.name else ""),
            expected="draws on the first axis, as many of each variable, then one of coordinates",
            fix="Say chains='first' if chains come before draws; chains=1 of few draws of many "
            "coordinates. Events of more axes go into a dictionary by name.",
        )
    return variables, []


def _table(table: Any, chains: Chains) -> list[Variable]:
    """Return one variable per column, without the sampler's (``lp__``) and ``chain``."""
    import pandas as pd

    if isinstance(table, pd.Series):
        table = table.to_frame(name=table.name or "x")
    if any(name in (*CHAIN, *ORDER) for name in table.index.names):
        table = table.reset_index()
    texts = distinct(table.columns)
    wrong = ""
    kept = [name for name in texts if not name.endswith("__") and name not in (*CHAIN, *ORDER)]
    if not kept or not len(table):
        wrong = f"a table of {len(table)} rows and the columns {some(texts)}"
    for name, kind in table[kept].dtypes.items():
        if not pd.api.types.is_numeric_dtype(kind) or pd.api.types.is_bool_dtype(kind):
            wrong = wrong or f"column {name!r} of type {kind}"
    column = next((name for name in CHAIN if name in table), None)
    if chains is None and column is not None:  # then rows in order, or as numbered
        counts = table[column].value_counts()
        wrong = wrong or f"chains of {sorted(counts.tolist())} rows" * (counts.nunique() > 1)
        order = [name for name in ORDER if name in table][:1]
        table = table.sort_values([column, *order], kind="stable")
        chains = len(counts)
    if wrong:
        raise StructureError(
            found=wrong,
            expected="a row a draw, equally many a chain, and numeric columns",
        )

    def of(name):
        return table[name].to_numpy(dtype=float, na_value=np.nan)

    return [variable(name, of(name), chains) for name in kept]


def _dataset(data: Any) -> list[Variable]:
    group = data
    wrong = ""
    if not hasattr(data, "data_vars") or getattr(data, "children", {}):
        try:
            group = data["posterior"]
        except (KeyError, TypeError):
            wrong = f"{type(data).__name__} without a group 'posterior'"
    axes = {} if wrong else {name: array.dims for name, array in group.data_vars.items()}
    for name, own in axes.items():
        if not {"chain", "draw"} <= {*own}:
            wrong = f"variable {name!r} with the axes {list(own)}"
    if wrong:
        raise StructureError(
            found=wrong, expected="draws of a posterior, of variables with axes chain and draw"
        )
    variables = []
    for name, own in group.data_vars.items():
        own = own.transpose("chain", "draw", ...)

        def has(axis, own=own):
            return axis in own.coords

        axes = own.dims[2:]
        words = [own.coords[a].values if has(a) else range(own.sizes[a]) for a in axes]
        variables.append(variable(str(name), own.values, "first", words))
    if not variables:
        raise _unknown(data)
    return variables


def _numpyro(mcmc: Any) -> tuple[list[Variable], list[str]]:
    """Return latent sites on the supports that the model gives them, then deterministic ones.

    With them comes a note for each site on whose support the library has no map.
    """
    from posterity.adapters.numpyro.models import latent_sites, library, support_of

    if getattr(mcmc, "last_state", None) is None:
        raise UsageError(found="an MCMC that has not been run", expected="one that has draws")
    drawn = mcmc.get_samples(group_by_chain=True)
    model = getattr(mcmc.sampler, "model", None)
    if model is None:  # a sampler with a potential function only
        drawn = drawn if isinstance(drawn, dict) else {"": drawn}
        return [variable(name, values, "first") for name, values in drawn.items()], []
    import jax

    handlers = library().handlers
    seeded = handlers.seed(model, jax.random.key(0))
    # A run keeps its arguments in private attributes; ArviZ reads them there too.
    trace = handlers.trace(seeded).get_trace(*mcmc._args, **mcmc._kwargs)
    variables = []
    notes = []
    for name, site in latent_sites(trace).items():
        if name not in drawn:
            continue
        own = variable(name, drawn[name], "first")
        try:
            own = on(own, support_of(name, site))
        except UsageError as error:
            if site["fn"].support.is_discrete:
                raise
            notes.append(f"{error.found} is treated as any real number")
        variables.append(own)
    return variables, notes


def _unknown(draws: object) -> UsageError:
    return UsageError(
        found=f"draws as {type(draws).__name__}",
        expected="an array, arrays by name, a DataFrame, InferenceData or MCMC, not empty",
        fix="Files are read by their own libraries: arviz.from_netcdf, numpy.load. Of a sampler's "
        "states pass the positions, as a dictionary: draws._asdict() of a named tuple.",
    )
