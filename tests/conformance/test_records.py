"""What every verb makes of every kind of records: the numbers of the plain array, or an error.

The table has a row for each verb and a column for each kind of input. All values are 0 and 1, which
every type of number holds exactly, so that results agree to the last bit.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from cli.commands import document, succeed

import posterity
from posterity.distillation import Draws, Head, Independent, Langevin, Perturbed, Student
from posterity.distillation.distill import set_up
from posterity.distillation.inputs import as_inputs
from posterity.distillation.sampling.target import target
from posterity.engine.privacy.noise import record_contributions
from posterity.errors import ParameterError, StructureError
from posterity.families import Gaussian, Network
from posterity.federation import Site
from posterity.federation.agreement import Agreement
from posterity.models import (
    FunctionModel,
    LinearRegression,
    LogisticRegression,
    NeuralNetwork,
    padded,
)
from posterity.networks import Layers, predict
from posterity.networks.training import checked_records
from posterity.pursuit import Joint
from posterity.pursuit.learning import ConjugateLearner, VectorFeatures
from posterity.tabular.estimators import FederatedLinearRegression

pytestmark = pytest.mark.filterwarnings("ignore:The posterior has not converged:UserWarning")

NAMES = ["one", "age", "dose"]
RNG = np.random.default_rng(0)
X = np.column_stack([np.ones(12), np.arange(12) % 2, np.arange(12) // 3 % 2])
Y = np.arange(12) // 2 % 2.0
ZERO = np.zeros(3)
PRIOR = Gaussian.from_standard(ZERO, 4 * np.eye(3)).named(NAMES)
LINEAR, LOGISTIC = LinearRegression(), LogisticRegression()

# --- verbs ---------------------------------------------------------------------------------------


@functools.cache
def run() -> Any:
    frame = pd.DataFrame(X, columns=NAMES)
    sites = {"north": (frame, Y), "south": (frame[NAMES[::-1]], 1 - Y)}
    return posterity.federate(sites, LOGISTIC, PRIOR, personal=["age"], steps=1)


@functools.cache
def near(name: str | None) -> Any:
    return run().new_site() if name is None else run().site(name)


@functools.cache
def student() -> Student:
    layers, head = Layers.dense(3, 4, 1), Head("bernoulli", 1)
    return Student(layers, RNG.normal(size=layers.size), head, columns=tuple(NAMES))


@functools.cache
def learner() -> ConjugateLearner:
    features = VectorFeatures(3, width=0)
    return ConjugateLearner(2, features).observe("first", pd.DataFrame(X, columns=NAMES), Y)


def federated(x: Any, y: Any) -> Any:
    return posterity.federate({"north": (x, y)}, LINEAR, PRIOR).posterior.natural_parameters


def at_site(x: Any, y: Any) -> Any:
    return Site.of(Agreement.of(LINEAR, PRIOR), "north", (x, y)).exact.natural_parameters


def joint(x: Any, y: Any) -> Any:
    with jax.enable_x64(True):
        return np.asarray(Joint(LOGISTIC, PRIOR, (x, y)).log_density(np.ones(3)))


def chains(x: Any, y: Any) -> Any:
    return np.column_stack(target(LOGISTIC, PRIOR, (x, y), batch_size=None).data)


def distilled(x: Any, y: Any) -> Any:
    del y
    return as_inputs(x, set_up(PRIOR, model=LOGISTIC, inputs=X).columns).x


def learned(x: Any, y: Any) -> Any:
    grown = learner().observe("second", x, y)
    return grown.ledger.posterior.natural_parameters  # type: ignore[union-attr]


def network(x: Any, y: Any) -> Any:
    del y
    prior = Network.prior(Layers.dense(3, 4, 1), 1.0)
    return predict(prior, x, samples=0, likelihood="bernoulli")


def trained(x: Any, y: Any) -> Any:
    return np.column_stack(checked_records((x, y), Layers.dense(3, 4, 1), "bernoulli"))


def estimator(x: Any, y: Any) -> Any:
    known = FederatedLinearRegression(noise_variance=1.0, fit_intercept=False)
    return known.fit(pd.DataFrame(X, columns=NAMES), Y).predict(x)


INPUTS: dict[str, Callable[[Any], Any]] = {
    "run.site().predict": lambda x: near("north").predict(x),
    "run.new_site().predict": lambda x: near(None).predict(x),
    "Student.predict": lambda x: student().predict(x).mean,
    "Draws.predict": lambda x: Draws(LOGISTIC, np.eye(3), columns=NAMES).predict(x).mean,
    "ConjugateLearner.predict": lambda x: learner().predict(x).mean,
}
"""Verbs that predict, and know the names of columns."""
LEARN: dict[str, Callable[[Any, Any], Any]] = {
    "Joint": joint,
    "Langevin": chains,
    "ConjugateLearner.observe": learned,
    "record_contributions": lambda x, y: record_contributions(LINEAR, PRIOR, (x, y)),
    "log_predictive": lambda x, y: near("south").log_predictive((x, y)),
    "federate": federated,
    "Site.of": at_site,
}
"""Verbs that take pairs of inputs and observations, and know the names of columns."""
NAMELESS = {"networks.predict": network, "networks.train": trained}
VERBS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: lambda x, _, verb=verb: verb(x) for name, verb in INPUTS.items()},
    **LEARN,
    "distill": distilled,
    **NAMELESS,
}

# --- kinds ---------------------------------------------------------------------------------------

SAME = "the numbers of the plain array"
COUNTS = np.arange(12)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of input, made from plain inputs and observations; what is to come of it."""

    make: Callable[[Any, Any], tuple[Any, Any]]
    outcome: Any = SAME
    says: str = ""
    rows: int = 12
    frame: bool = False


def of_x(make: Callable[[Any], Any], *outcome: Any, **options: Any) -> Kind:
    """Return a kind of inputs beside plain observations."""
    return Kind(lambda x, y: (make(x), y), *outcome, **options)


def of_both(make: Callable[[Any], Any], *outcome: Any) -> Kind:
    """Return a kind of inputs and observations."""
    return Kind(lambda x, y: (make(x), make(y)), *outcome)


def framed(change: Callable[[Any], Any], *outcome: Any, **options: Any) -> Kind:
    """Return a kind of data frame of pandas, beside plain observations."""
    return of_x(lambda x: change(pd.DataFrame(x, columns=NAMES)), *outcome, frame=True, **options)


def polars(x: np.ndarray) -> Any:
    """Return a data frame of polars, with its columns in another order."""
    library = pytest.importorskip("polars")
    return library.DataFrame(dict(zip(NAMES, x.T, strict=True)))[NAMES[::-1]]


def series(x: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    """Return a frame and a series with the same labels of rows."""
    labels = COUNTS[::-1]
    return pd.DataFrame(x, labels, NAMES)[NAMES[::-1]], pd.Series(y, labels)


def locked(array: np.ndarray) -> np.ndarray:
    """Return a read-only copy."""
    array = array.copy()
    array.flags.writeable = False
    return array


TYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "longdouble",
]
ODD, HIDDEN = (StructureError, "real numbers"), (ParameterError, "masked values")
KINDS = {
    "NumPy": of_both(np.array),
    "JAX": of_both(jnp.asarray),
    "lists": of_both(np.ndarray.tolist),
    **{name: of_both(lambda a, name=name: a.astype(name)) for name in TYPES},
    "Fortran order": of_x(np.asfortranarray),
    "strided": of_x(lambda x: np.repeat(x, 2, axis=1)[:, ::2]),
    "read-only": of_both(locked),
    "no masked value": of_both(np.ma.asarray),
    "masked inputs": of_x(lambda x: np.ma.masked_equal(x, 0), *HIDDEN),
    "list of masked rows": of_x(lambda x: [*np.ma.masked_equal(x, 0)], *HIDDEN),
    "sparse matrix": of_x(scipy.sparse.csr_matrix, StructureError, "toarray"),
    "sparse array": of_x(scipy.sparse.coo_array, StructureError, "toarray"),
    "dates": of_x(lambda x: x.astype("M8[D]"), StructureError, "days"),
    "durations": of_x(lambda x: x.astype("m8[D]"), StructureError, "unit"),
    "complex numbers": of_x(lambda x: x + 0j, StructureError, "imaginary"),
    "texts": of_x(lambda x: x.astype(str), *ODD),
    "objects": of_x(lambda x: x.astype(object), *ODD),
    "ragged lists": of_x(lambda x: [[1.0], *x[1:].tolist()], StructureError, "different lengths"),
    "NaN": of_x(lambda x: np.where(x == 0, np.nan, x), ParameterError, "NaN"),
    "pandas": framed(lambda frame: frame),
    "pandas in another order": framed(lambda frame: frame[NAMES[::-1]]),
    "pandas with labels": Kind(series, frame=True),
    "nullable integers": framed(lambda frame: frame[NAMES[::-1]].astype("Int64")),
    "columns of several types": framed(lambda frame: frame.astype({"age": bool, "one": "int8"})),
    "sparse columns": framed(lambda frame: frame.astype(pd.SparseDtype(float, 0.0))),
    "missing integers": framed(
        lambda frame: frame.astype("Int64").mask(frame == 0), ParameterError, "NaN"
    ),
    "categories": framed(lambda frame: frame.astype({"age": "category"}), *ODD),
    "a column of dates": framed(
        lambda frame: frame.assign(dose=pd.Timestamp("2020")), StructureError, r"\['dose'\].*days"
    ),
    "a column of texts": framed(lambda frame: frame.assign(age="1"), StructureError, r"\['age'\]"),
    "a column less": framed(lambda frame: frame[NAMES[:2]], StructureError, r"\['dose'\] missing"),
    "a column more": framed(
        lambda frame: frame.assign(bp=1.0), StructureError, r"\['bp'\] unknown"
    ),
    "a column twice": framed(
        lambda frame: frame[[*NAMES, "age"]], StructureError, r"\['age'\] come twice"
    ),
    "numbered columns": framed(
        lambda frame: frame.set_axis([0, 1, 2], axis=1), StructureError, r"\['0', '1', '2'\] unkn"
    ),
    "polars": of_x(polars, frame=True),
    "one record": framed(lambda frame: frame[NAMES[::-1]], rows=1),
}


@functools.cache
def plain(verb: str, rows: int) -> np.ndarray:
    """Return what a verb makes of the first rows as plain arrays of float64."""
    return np.asarray(VERBS[verb](X[:rows], Y[:rows]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_reads_a_kind(verb: str, kind: str) -> None:
    own = KINDS[kind]
    given = own.make(X[: own.rows], Y[: own.rows])
    outcome, says = own.outcome, own.says
    if own.frame and verb in NAMELESS:
        outcome, says = StructureError, "frame"
    if outcome is SAME:
        np.testing.assert_array_equal(VERBS[verb](*given), plain(verb, own.rows))
        return
    with pytest.raises(outcome, match=says):
        VERBS[verb](*given)


NONE = X[:0], Y[:0]
"""No records, as a filtered table gives."""


@pytest.mark.parametrize("verb", [*INPUTS, "log_predictive", "record_contributions"])
def test_no_records_give_empty_arrays(verb: str) -> None:
    frame = pd.DataFrame(NONE[0], columns=NAMES)[NAMES[::-1]]
    found = VERBS[verb](frame, NONE[1])
    assert len(found) == 0 and found.shape[1:] == plain(verb, 12).shape[1:]


@pytest.mark.parametrize("verb", ["networks.predict"])
def test_no_records_of_a_network(verb: str) -> None:
    assert VERBS[verb](*NONE).shape == (0,)


@pytest.mark.parametrize("verb", ["Joint", "Langevin", "ConjugateLearner.observe", "distill"])
def test_no_records_to_learn_from(verb: str) -> None:
    with pytest.raises(StructureError):
        VERBS[verb](*NONE)


def test_a_site_without_records_contributes_nothing() -> None:
    np.testing.assert_array_equal(federated(*NONE), PRIOR.natural_parameters)


@pytest.mark.parametrize("verb", [*LEARN, "estimator"])
def test_rows_in_another_order_are_refused(verb: str) -> None:
    learn = {**LEARN, "estimator": FederatedLinearRegression().fit}[verb]
    with pytest.raises(StructureError, match=r"y\.loc\[x\.index\]"):
        learn(pd.DataFrame(X, columns=NAMES), pd.Series(Y).sample(frac=1, random_state=0))


def test_huge_integers_keep_their_size() -> None:
    huge = np.uint64(2**63) * X.astype(np.uint64)
    np.testing.assert_array_equal(federated(huge, Y), federated(huge.astype(float), Y))
    np.testing.assert_array_equal(joint(huge, Y), joint(huge.astype(float), Y))


def test_laws_of_inputs_keep_names() -> None:
    frame = pd.DataFrame(X, columns=NAMES)
    law = Perturbed(frame)
    assert law.columns == as_inputs(frame).columns == tuple(NAMES)
    assert set_up(PRIOR, model=LOGISTIC, inputs=law).columns == tuple(NAMES)
    with pytest.raises(StructureError, match=r"frame\[names\]"):
        set_up(PRIOR, model=LOGISTIC, inputs=Perturbed(frame[NAMES[::-1]]))
    with pytest.raises(StructureError, match=r"frame\[names\]"):
        set_up(
            PRIOR,
            model=LOGISTIC,
            inputs=Perturbed(frame.assign(age=1).set_axis(list("abc"), axis=1)),
        )


PARAMETERS = {
    "masked": (np.ma.masked_equal([1.0, 2.0, 999.0], 999.0), "masked"),
    "dates": (np.zeros(3, "M8[D]"), "datetime64"),
    "texts": (np.array(["1", "2", "3"]), "real numbers"),
    "sparse": (scipy.sparse.csr_array([[1.0, 2.0, 3.0]]), "object"),
}


@pytest.mark.parametrize("kind", PARAMETERS)
def test_parameters_are_real_numbers(kind: str) -> None:
    value, says = PARAMETERS[kind]
    for law in (posterity.DiagonalGaussian, posterity.Gamma, posterity.Beta, posterity.Dirichlet):
        other = () if law is posterity.Dirichlet else (np.ones(3),)
        with pytest.raises(ParameterError, match=says):
            law.from_standard(value, *other)


def test_an_estimator_goes_by_scikit_learn_s_names() -> None:
    frame = pd.DataFrame(X, columns=NAMES)
    np.testing.assert_array_equal(estimator(frame, Y), estimator(frame.astype("int8"), Y))
    with pytest.raises(ValueError, match="same order"):
        estimator(frame[NAMES[::-1]], Y)


@pytest.mark.parametrize("kind", ["masked inputs", "dates", "durations", "a column of dates"])
def test_an_estimator_reads_no_masks_and_no_dates(kind: str) -> None:
    own = KINDS[kind]
    for act in (estimator, FederatedLinearRegression().fit):
        with pytest.raises(own.outcome, match=own.says.replace(r"\['dose'\].*", "")):
            act(*own.make(X, Y))


# --- names that are kept, and names that are not known -------------------------------------------

TURNED = pd.DataFrame(X, columns=NAMES)[NAMES[::-1]]


def test_names_are_kept_in_files(tmp_path: Any) -> None:
    for name, make in (("student", student), ("learner", learner)):
        path = tmp_path / f"{name}.safetensors"
        posterity.save(make(), path)
        again: Any = posterity.load(path)
        assert again.columns == tuple(NAMES)
        np.testing.assert_array_equal(again.predict(TURNED).mean, make().predict(X).mean)


def test_a_distillation_by_frames_keeps_their_names() -> None:
    unnamed = Gaussian.from_standard(ZERO, np.eye(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a few steps do not converge
        made = posterity.distill(unnamed, model=LOGISTIC, inputs=TURNED, probe=TURNED, steps=5)
    assert made.student.columns == tuple(NAMES[::-1])
    frame = TURNED[NAMES]
    np.testing.assert_array_equal(
        made.student.predict(frame).mean, made.student.predict(TURNED.to_numpy()).mean
    )
    np.testing.assert_array_equal(made.probe, X[:, ::-1])


def test_chains_and_draws_keep_names() -> None:
    net = NeuralNetwork.of_layers(Layers.dense(3, 2), likelihood="categorical")
    teacher = Langevin(net, net.prior(), (TURNED, Y))
    assert teacher.columns == tuple(NAMES[::-1])
    draws = Draws(net, np.ones((2, net.size)), x=TURNED)
    assert draws.columns == draws.traced().columns == teacher.columns
    assert Independent(PRIOR, LOGISTIC, x=TURNED).columns == tuple(NAMES)
    np.testing.assert_array_equal(Independent(PRIOR, LOGISTIC, x=TURNED).inputs(), X)


def unnamed_site() -> Any:
    prior = Gaussian.from_standard(ZERO, np.eye(3))
    run = posterity.federate({"a": (X, Y)}, LINEAR, prior, personal=[1], steps=1)
    return run.site("a")


def unnamed_learner() -> ConjugateLearner:
    return ConjugateLearner(2, VectorFeatures(3, width=0)).observe("first", X, Y)


UNKNOWN: dict[str, Callable[[], Any]] = {
    "a student": lambda: dataclasses.replace(student(), columns=()).predict(TURNED),
    "draws": lambda: Draws(LOGISTIC, np.eye(3)).predict(TURNED),
    "a learner": lambda: unnamed_learner().predict(TURNED),
    "a later task": lambda: unnamed_learner().observe("second", TURNED, Y),
    "a site": lambda: unnamed_site().predict(TURNED),
    "a sequence": lambda: padded([TURNED]),
    "observations": lambda: joint(X, pd.DataFrame({"y": Y})),
    "a dictionary": lambda: Joint(FunctionModel(lambda z, d: d["x"] @ z), PRIOR, {"x": TURNED}),
}


@pytest.mark.parametrize("place", UNKNOWN)
def test_frames_are_refused_where_names_are_not_known(place: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(StructureError, match=r"frame\[names\]\.to_numpy"):
            UNKNOWN[place]()


def test_a_prior_without_names_takes_the_order_of_the_frame() -> None:
    prior = Gaussian.from_standard(ZERO, 4 * np.eye(3))
    with jax.enable_x64(True):
        found = Joint(LOGISTIC, prior, (TURNED, Y)).log_density(np.array([1.0, 0.0, 0.0]))
        plain = Joint(LOGISTIC, prior, (X[:, ::-1], Y)).log_density(np.array([1.0, 0.0, 0.0]))
    assert float(found) == float(plain)


def test_learners_of_other_columns_are_not_merged() -> None:
    features = VectorFeatures(3, width=0)
    other = ConjugateLearner(2, features).observe("second", TURNED, Y)
    with pytest.raises(StructureError, match="same columns in the same order"):
        learner().merge(other)
    merged = learner().merge(unnamed_learner().forget("first").observe("third", X, Y))
    assert merged.columns == tuple(NAMES)


@pytest.mark.parametrize("names", [["a", "a", "b"], ["a", "", "b"], ["a", 1, "b"], "abc"])
def test_names_of_columns_are_distinct_texts(names: Any) -> None:
    for make in (student, learner):
        with pytest.raises(StructureError, match="a name for each column"):
            dataclasses.replace(make(), columns=names)


def test_files_go_by_names_at_the_command_line(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(X, columns=NAMES).drop(columns="one").assign(ill=Y.astype(int))
    frame.to_csv("t.csv", index=False)
    frame[["ill", "dose", "age"]].to_csv("turned.csv", index=False)
    succeed("fit", "t.csv", "--model", "logistic", "--target", "ill", "-o", "m.safetensors")
    scores = [
        document("evaluate", "m.safetensors", name)["all"] for name in ("t.csv", "turned.csv")
    ]
    assert scores[0] == scores[1]
