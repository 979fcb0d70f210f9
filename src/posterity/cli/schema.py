"""The tables of a configuration that several verbs have: each option once, with its help.

``posterity VERB --help`` lists the flags of the same options.
"""

import dataclasses

from posterity.cli import kinds
from posterity.cli.options import Option

PARAMETERS = (
    "a",
    "b",
    "concentration",
    "covariance",
    "degrees_of_freedom",
    "inverse_scale",
    "mean",
    "mean_precision",
    "probabilities",
    "rate",
    "scale",
    "shape",
)
"""Standard parameters of families, beside ``variance``."""

OUTPUT = Option("output.file", kinds.OUTPUT, "Where the result goes.", "--output", "-o")
CHECKPOINT = Option(
    "output.checkpoint", kinds.OUTPUT, "Where the run is kept; beside the output if left out."
)
PLOT = Option("output.plot", kinds.OUTPUT, "Where to draw it: .png, .pdf or .svg.")
RANDOM = Option("seed", kinds.SEED, "Of all that is random.", default=0)

DATA = Option("data.file", kinds.FILE, "Records: a .csv with a header, or an .npz.", "--data")
TARGET = Option("model.target", kinds.TEXT, "The column to predict.")
NOISE = Option(
    "model.noise_variance", kinds.POSITIVE, "Of what is observed about its mean, for values."
)
LIKELIHOOD = Option(
    "model.likelihood", kinds.TEXT, "Of a network: categorical, bernoulli or gaussian."
)
INTERCEPT = Option("model.intercept", kinds.FLAG, "Whether there is a column of ones.")


RECIPE = (
    Option(
        "model.formula",
        kinds.TEXT,
        "Target and columns as R writes them: 'ill ~ age + C(sex) * log(dose)'.",
    ),
    Option("data.columns", kinds.NAMES, "The columns to use; all others if left out."),
    Option("data.without", kinds.NAMES, "Columns not to use."),
    Option("data.center", kinds.by_name(kinds.NUMBER), "What to take off a column."),
    Option("data.scale", kinds.by_name(kinds.POSITIVE), "What to divide it by after that."),
    Option(
        "data.unit",
        kinds.by_name(kinds.TEXT),
        "The unit that a column's numbers are in, as ldl=mg/dL.",
    ),
    Option(
        "data.like",
        kinds.FILE,
        "A site's file, whose model, columns, units and prior are taken in place of flags; --unit, "
        "--convert, --rename and --category say how this table differs.",
    ),
    Option(
        "model.event", kinds.TEXT, "Of survival: the column of whether the time ended by an event."
    ),
    Option("model.entry", kinds.TEXT, "Of survival: the column of when observation began; 0."),
    Option(
        "model.cuts",
        kinds.list_of(kinds.POSITIVE),
        "Of survival: times at which the hazard may change, or the knots of a spline.",
    ),
    Option(
        "model.hazard",
        kinds.words("weibull", "gompertz", "spline"),
        "Of survival, in place of one that is constant between cuts.",
    ),
    Option(
        "model.dispersion",
        kinds.either(kinds.POSITIVE, kinds.words("estimate")),
        "Of negative-binomial and gamma; estimated if left out.",
    ),
    Option(
        "model.own",
        kinds.NAMES,
        "Coefficients that each site has for itself, by name or column, such as intercept.",
    ),
    Option("model.exposure", kinds.TEXT, "The column of how long, or how much, was counted."),
    Option("model.offset", kinds.TEXT, "The column that is added to the linear predictor."),
    Option(
        "model.weights",
        kinds.TEXT,
        "The column of how many records like it one stands for.",
        "--record-weights",
    ),
    Option(
        "prior.sd",
        dataclasses.replace(kinds.by_name(kinds.POSITIVE), nameless=True),
        "Of the coefficients' prior about 0, or of one, as NAME=S; if left out 10 (of an "
        "intercept 1000), or 1e6 if linear.",
        "--prior-sd",
    ),
)
"""Options of a regression that are the same at every site."""
READING = (
    Option(
        "data.category",
        kinds.by_name(kinds.either(kinds.TEXT, kinds.NAMES)),
        "A column of texts by its levels A,B,..., the first of which is the reference; of a "
        "logistic target the level that is 0, and the one that is 1.",
    ),
    Option(
        "data.rename",
        kinds.by_name(kinds.TEXT),
        "By the model's column the name that it has in this table, as ldl=LDL_C.",
    ),
    Option(
        "data.convert",
        kinds.by_name(kinds.POSITIVE),
        "What to multiply a column of this table by to be in the model's unit, as ldl=38.67.",
    ),
    Option("data.decimal", kinds.words(".", ","), "The decimal mark, if numbers do not say it."),
)
"""Options of how one table's columns become those of the model."""
DROP = Option("data.drop_missing", kinds.FLAG, "Leave records out of which a value is missing.")
PREDICTING = (
    LIKELIHOOD,
    NOISE,
    Option("model.target", kinds.TEXT, "The column of the table that is predicted."),
    Option("inputs.array", kinds.TEXT, "Which array of an .npz, if several."),
    Option(
        "data.like", kinds.FILE, "A file whose model, columns and units are those of a posterior."
    ),
    *READING,
    Option(
        "data.site_column",
        kinds.TEXT,
        "Where sites have coefficients of their own: the column that names each record's site; all "
        "are of an unseen one if left out.",
    ),
    Option("times", kinds.list_of(kinds.POSITIVE), "Of survival: when; at its cuts if left out."),
    Option("level", kinds.SHARE, "Probability of the intervals.", default=0.9),
    Option(
        "samples",
        kinds.NATURAL,
        "Draws of a network's weights, 0: its mean; 100 if left out, of a fused one its mean.",
    ),
    Option("seed", kinds.SEED, "Of the draws; 0 if left out."),
)
"""Options of predictions."""

NETWORK = (
    *RECIPE,
    *READING,
    DROP,
    Option(
        "model.kind", kinds.TEXT, "A network, linear-regression or logistic-regression.", "--model"
    ),
    TARGET,
    INTERCEPT,
    LIKELIHOOD,
    NOISE,
    Option(
        "model.noise",
        kinds.words("constant", "varying"),
        "Of a network of values, learned; constant if noise_variance is left out.",
        "--model-noise",
    ),
    Option(
        "model.hidden",
        kinds.list_of(kinds.COUNT),
        "Units of a network's hidden layers.",
        "--model-hidden",
    ),
    Option("model.activation", kinds.TEXT, "Of a network's hidden layers."),
    Option("model.classes", kinds.COUNT, "Of a categorical likelihood; else the largest label."),
    Option(
        "prior.variance",
        kinds.either(kinds.POSITIVE, kinds.list_of(kinds.POSITIVE)),
        "Of a coefficient or weight before any data; of a network one, or one a layer.",
        "--prior-variance",
    ),
)
"""A model of one table, and its prior."""

FEDERATED = (
    *RECIPE,
    *READING,
    DROP,
    Option("model.kind", kinds.TEXT, "A model by its name; function, or network.", "--model"),
    TARGET,
    INTERCEPT,
    Option("model.function", kinds.TEXT, "The log likelihood of a batch, as module:function."),
    Option("model.categories", kinds.COUNT, "Of dirichlet-categorical."),
    Option("model.covariance", kinds.NUMBERS, "Of what is observed, known.", "--model-covariance"),
    NOISE,
    Option(
        "model.personal",
        kinds.either(
            kinds.FLAG,
            kinds.list_of(kinds.either(kinds.TEXT, kinds.NATURAL)),
            kinds.by_name(kinds.POSITIVE),
        ),
        "Columns whose coefficients differ between sites; all of them if true.",
    ),
    LIKELIHOOD,
    Option("model.outputs", kinds.COUNT, "Of a network."),
    Option("model.width", kinds.COUNT, "Units of each hidden layer of a network."),
    Option("model.depth", kinds.NATURAL, "Hidden layers of a network."),
    Option(
        "prior.file",
        kinds.FILE,
        "A posterior to start from, or a ledger, whose prior is taken.",
        "--prior",
    ),
    Option("prior.family", kinds.TEXT, "Of a prior that is given by its parameters."),
    Option(
        "prior.variance", kinds.NUMBERS, "Of a prior; of a network's weights.", "--prior-variance"
    ),
    *(
        Option(
            f"prior.{name}",
            kinds.NUMBERS,
            "Of a prior of this parameter.",
            f"--prior-{name.replace('_', '-')}",
        )
        for name in PARAMETERS
    ),
)
"""A model of many sites, and its prior."""
