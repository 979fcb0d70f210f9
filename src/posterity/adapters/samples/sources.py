"""Read draws from arrays, dictionaries, tables, and the results of samplers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from posterity.adapters.samples.variables import Chains, Variable, numbers, on, variable
from posterity.errors import StructureError, UsageError
from posterity.families.names import unfit

CHAIN = ("chain", ".chain", "chain__", "chain_id")
"""Columns of tables that say which chain a row is of."""
ORDER = ("draw", ".draw", ".iteration", "iteration", "iter__", "draw__")
"""Columns that say which draw of it."""
SEPARATOR = "/"
"""Between the names of a part and of what is in it."""


MANY = 3
"""Times as many coordinates as draws, from where the axes are more likely chains and draws."""


def variables_of(draws: Any, chains: Chains, named: bool) -> tuple[list[Variable], list[str]]:
    """The variables in whatever holds draws, and what is to be said of how they were read.

    ``named`` says that coordinates have names, as draws of chains would not.
    """
    package = type(draws).__module__.partition(".")[0]
    run = package == "numpyro" and hasattr(draws, "get_samples")
    if run or package in ("arviz", "xarray", "arviz_base"):
        if chains is not None:
            found, fix = f"chains={chains!r} beside {type(draws).__name__}", "Leave chains= out."
            raise UsageError(found=found, expected="draws that say what an axis is", fix=fix)
        return _numpyro(draws) if run else (_dataset(draws), [])
    if package == "pandas" or hasattr(draws, "draws_pd"):  # as CmdStanPy's fits have it
        return _table(draws if package == "pandas" else draws.draws_pd(), chains), []
    draws = getattr(draws, "position", draws)  # of states of BlackJAX
    if isinstance(draws, str | bytes) or draws is None:
        raise _unknown(draws)
    if isinstance(draws, Mapping) or _is_parts(draws):
        variables = [variable(name, values, chains) for name, values in _parts(draws, "")]
    else:
        values = numbers(draws, "draws")
        if chains is None and values.ndim == 3:  # (chains, n, d)
            chains = "first"
        one = variable("", values, chains)
        variables = [one if one.shape else variable("", values[..., None], chains)]
    own, shapes = variables[0], {v.name: v.values.shape[:2] for v in variables}
    # Where the second axes differ, or one variable has none, the first axis is that of draws.
    tops = {v.values.shape[1:3] for v in variables}
    count, size = own.values.shape[1], own.shape[0] if own.shape else 0
    swapped = (chains, named, len(tops), len(own.values)) == (None, False, 1, 1)
    deep = not own.name and len(own.shape) > 1
    if len(set(shapes.values())) > 1 or deep or (swapped and size > MANY * count):
        raise StructureError(
            found=f"draws of shape {own.values.shape[swapped:]}"
            + (f" of {own.name!r}; chains and draws {shapes}" if own.name else ""),
            expected="draws on the first axis, as many of each variable, then one of coordinates",
            fix="Say chains='first' if chains come before draws; chains=1 of few draws of many "
            "coordinates. Events of more axes go into a dictionary by name.",
        )
    return variables, []


def _is_parts(draws: object) -> bool:
    """A tuple or list of arrays, as pytrees are; lists of numbers are arrays."""
    if not isinstance(draws, tuple | list) or not any(np.ndim(part) > 0 for part in draws):
        return False
    holds = lambda part: hasattr(part, "shape") or isinstance(part, Mapping)
    return hasattr(draws, "_fields") or all(map(holds, draws))


def _parts(draws: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(draws, Mapping):
        parts = list(draws.items())
    elif hasattr(draws, "_fields"):
        parts = list(zip(draws._fields, draws, strict=True))
    elif _is_parts(draws):
        parts = [(str(number), part) for number, part in enumerate(draws)]
    else:
        return [(path, draws)]
    if not parts or not all(isinstance(name, str) and name for name, _ in parts):
        raise _unknown(draws)
    under = lambda name: f"{path}{SEPARATOR}{name}" if path else name
    return [result for name, part in parts for result in _parts(part, under(name))]


def _table(table: Any, chains: Chains) -> list[Variable]:
    """Columns are variables; sampler's own (``lp__``) stay behind, ``chain`` says which chain."""
    import pandas as pd

    if isinstance(table, pd.Series):
        table = table.to_frame(name=table.name or "x")
    if any(name in (*CHAIN, *ORDER) for name in table.index.names):
        table = table.reset_index()
    texts = list(table.columns)
    if wrong := unfit(texts):
        expected, fix = "a text for each column, no two alike", "Rename them."
        raise UsageError(found=f"columns of which {wrong}", expected=expected, fix=fix)
    column = next((name for name in CHAIN if name in table), None)
    if chains is None and column is not None:  # then rows as they come or are numbered
        counts = table[column].value_counts()
        if counts.nunique() > 1:
            found, fix = f"chains of {sorted(counts.tolist())} rows", "Cut the longer ones."
            raise StructureError(found=found, expected="as many draws in each", fix=fix)
        order = [name for name in ORDER if name in table][:1]
        table, chains = table.sort_values([column, *order], kind="stable"), len(counts)
    kept = [name for name in texts if not name.endswith("__") and name not in (*CHAIN, *ORDER)]
    if not kept or not len(table):
        found = f"a table of {len(table)} rows and the columns {texts}"
        expected = "a row a draw and a column a variable"
        raise StructureError(found=found, expected=expected, fix="Pass the draws.")
    for name in kept:
        column = table[name]
        if not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
            found, fix = f"column {name!r} of type {column.dtype}", "Leave it out: table.drop()."
            raise StructureError(found=found, expected="columns of numbers", fix=fix)
    of = lambda name: table[name].to_numpy(dtype=float, na_value=np.nan)
    return [variable(name, of(name), chains) for name in kept]


def _dataset(data: Any) -> list[Variable]:
    """The group ``posterior``, its coordinates as labels."""
    group = data
    if not hasattr(data, "data_vars") or getattr(data, "children", {}):
        try:
            group = data["posterior"]
        except (KeyError, TypeError) as error:
            found = f"{type(data).__name__} without a group 'posterior'"
            fix = "Pass the group that has them, as a Dataset."
            raise StructureError(found=found, expected="draws of a posterior", fix=fix) from error
    variables = []
    for name, array in group.data_vars.items():
        if not {"chain", "draw"} <= set(array.dims):
            found, fix = f"variable {name!r} with the axes {list(array.dims)}", "Leave it out."
            raise StructureError(found=found, expected="the axes chain and draw", fix=fix)
        array = array.transpose("chain", "draw", ...)
        has = lambda axis, own=array: axis in own.coords
        axes = array.dims[2:]
        words = [array.coords[a].values if has(a) else range(array.sizes[a]) for a in axes]
        variables.append(variable(str(name), array.values, "first", words))
    if not variables:
        raise _unknown(data)
    return variables


def _numpyro(mcmc: Any) -> tuple[list[Variable], list[str]]:
    """Latent sites on the supports that the model gives them; deterministic ones follow.

    With them comes a note for each site whose support has no map of the library.
    """
    from posterity.adapters.numpyro.models import latent_sites, library, support_of

    if getattr(mcmc, "last_state", None) is None:
        found, fix = "an MCMC that has not been run", "Call mcmc.run(key, ...) first."
        raise UsageError(found=found, expected="one with draws", fix=fix)
    drawn = mcmc.get_samples(group_by_chain=True)
    model = getattr(mcmc.sampler, "model", None)
    if model is None:  # a sampler of a potential alone
        drawn = drawn if isinstance(drawn, dict) else {"": drawn}
        return [variable(name, values, "first") for name, values in drawn.items()], []
    import jax

    handlers = library().handlers
    seeded = handlers.seed(model, jax.random.key(0))
    # What a run was made with it keeps for itself alone; ArviZ reads it there too.
    trace = handlers.trace(seeded).get_trace(*mcmc._args, **mcmc._kwargs)
    variables, notes = [], []
    for name, site in latent_sites(trace).items():
        if name not in drawn:
            continue
        own = variable(name, drawn[name], "first")
        try:
            own = on(own, support_of(name, site))
        except UsageError as error:
            if site["fn"].support.is_discrete:
                raise
            notes.append(f"{error.found} is taken for any real number")
        variables.append(own)
    return variables, notes


def _unknown(draws: object) -> UsageError:
    """The error of what holds no draws."""
    return UsageError(
        found=f"draws as {type(draws).__name__}",
        expected="arrays, a DataFrame, InferenceData, MCMC or states, with something in it",
        fix="Pass draws; files are read by their own libraries: arviz.from_netcdf, numpy.load.",
    )
