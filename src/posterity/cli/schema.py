"""The tables of a configuration that several verbs have: each option once, with its help.

``posterity VERB --help`` lists the flags of the same options.
"""

import dataclasses

from posterity.cli.options import (
    COUNT,
    FILE,
    FLAG,
    NAMES,
    NATURAL,
    NUMBER,
    NUMBERS,
    POSITIVE,
    SEED,
    SHARE,
    TEXT,
    Option,
    by_name,
    either,
    list_of,
    words,
)

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

OUTPUT = Option("output.file", FILE, "Where the result goes.", "--output", "-o")
CHECKPOINT = Option(
    "output.checkpoint", FILE, "Where the run is kept; beside the output if left out."
)
PLOT = Option("output.plot", FILE, "Where to draw it: .png, .pdf or .svg.")
RANDOM = Option("seed", SEED, "Of all that is random.", default=0)

DATA = Option("data.file", FILE, "Records: a .csv with a header, or an .npz.", "--data")
TARGET = Option("model.target", TEXT, "The column to predict.")
NOISE = Option("model.noise_variance", POSITIVE, "Of what is observed about its mean, for values.")
LIKELIHOOD = Option("model.likelihood", TEXT, "Of a network: categorical, bernoulli or gaussian.")
INTERCEPT = Option("model.intercept", FLAG, "Whether there is a column of ones.")


RECIPE = (
    Option(
        "model.formula",
        TEXT,
        "Target and columns as R writes them: 'ill ~ age + C(sex) * log(dose)'.",
    ),
    Option("data.columns", NAMES, "The columns to use; all others if left out."),
    Option("data.without", NAMES, "Columns not to use."),
    Option("data.center", by_name(NUMBER), "What to take off a column."),
    Option("data.scale", by_name(POSITIVE), "What to divide it by after that."),
    Option("data.unit", by_name(TEXT), "The unit that a column's numbers are in, as ldl=mg/dL."),
    Option(
        "data.like",
        FILE,
        "A site's file, whose model, columns, units and prior are taken in place of flags; --unit, "
        "--convert, --rename and --category say how this table differs.",
    ),
    Option("model.event", TEXT, "Of survival: the column of whether the time ended by an event."),
    Option("model.entry", TEXT, "Of survival: the column of when observation began; 0."),
    Option(
        "model.cuts",
        list_of(POSITIVE),
        "Of survival: times at which the hazard may change, or the knots of a spline.",
    ),
    Option(
        "model.hazard",
        words("weibull", "gompertz", "spline"),
        "Of survival, in place of one that is constant between cuts.",
    ),
    Option(
        "model.dispersion",
        either(POSITIVE, words("estimate")),
        "Of negative-binomial and gamma; estimated if left out.",
    ),
    Option(
        "model.own",
        NAMES,
        "Coefficients that each site has for itself, by name or column, such as intercept.",
    ),
    Option("model.exposure", TEXT, "The column of how long, or how much, was counted."),
    Option("model.offset", TEXT, "The column that is added to the linear predictor."),
    Option(
        "model.weights",
        TEXT,
        "The column of how many records like it one stands for.",
        "--record-weights",
    ),
    Option(
        "prior.sd",
        dataclasses.replace(by_name(POSITIVE), nameless=True),
        "Of the coefficients' prior about 0, or of one, as NAME=S; if left out 10 (of an "
        "intercept 1000), or 1e6 if linear.",
        "--prior-sd",
    ),
)
"""Options of a regression that are the same at every site."""
READING = (
    Option(
        "data.category",
        by_name(either(TEXT, NAMES)),
        "A column of texts by its levels A,B,..., the first of which is the reference; of a "
        "logistic target the level that is 0, and the one that is 1.",
    ),
    Option(
        "data.rename",
        by_name(TEXT),
        "By the model's column the name that it has in this table, as ldl=LDL_C.",
    ),
    Option(
        "data.convert",
        by_name(POSITIVE),
        "What to multiply a column of this table by to be in the model's unit, as ldl=38.67.",
    ),
    Option("data.decimal", words(".", ","), "The decimal mark, if numbers do not say it."),
)
"""Options of how one table's columns become those of the model."""
DROP = Option("data.drop_missing", FLAG, "Leave records out of which a value is missing.")
PREDICTING = (
    LIKELIHOOD,
    NOISE,
    Option("model.target", TEXT, "The column of the table that is predicted."),
    Option("inputs.array", TEXT, "Which array of an .npz, if several."),
    Option("data.like", FILE, "A file whose model, columns and units are those of a posterior."),
    *READING,
    Option(
        "data.site_column",
        TEXT,
        "Where sites have coefficients of their own: the column that names each record's site; all "
        "are of an unseen one if left out.",
    ),
    Option("times", list_of(POSITIVE), "Of survival: when; at its cuts if left out."),
    Option("level", SHARE, "Probability of the intervals.", default=0.9),
    Option(
        "samples",
        NATURAL,
        "Draws of a network's weights, 0: its mean; 100 if left out, of a fused one its mean.",
    ),
    Option("seed", SEED, "Of the draws; 0 if left out."),
)
"""Options of predictions."""

NETWORK = (
    *RECIPE,
    *READING,
    DROP,
    Option("model.kind", TEXT, "A network, linear-regression or logistic-regression.", "--model"),
    TARGET,
    INTERCEPT,
    LIKELIHOOD,
    NOISE,
    Option(
        "model.noise",
        words("constant", "varying"),
        "Of a network of values, learned; constant if noise_variance is left out.",
        "--model-noise",
    ),
    Option("model.hidden", list_of(COUNT), "Units of a network's hidden layers.", "--model-hidden"),
    Option("model.activation", TEXT, "Of a network's hidden layers."),
    Option("model.classes", COUNT, "Of a categorical likelihood; else the largest label."),
    Option(
        "prior.variance",
        either(POSITIVE, list_of(POSITIVE)),
        "Of a coefficient or weight before any data; of a network one, or one a layer.",
        "--prior-variance",
    ),
)
"""A model of one table, and its prior."""

FEDERATED = (
    *RECIPE,
    *READING,
    DROP,
    Option("model.kind", TEXT, "A model by its name; function, or network.", "--model"),
    TARGET,
    INTERCEPT,
    Option("model.function", TEXT, "The log likelihood of a batch, as module:function."),
    Option("model.categories", COUNT, "Of dirichlet-categorical."),
    Option("model.covariance", NUMBERS, "Of what is observed, known.", "--model-covariance"),
    NOISE,
    Option(
        "model.personal",
        either(FLAG, list_of(either(TEXT, NATURAL)), by_name(POSITIVE)),
        "Columns whose coefficients differ between sites; all of them if true.",
    ),
    LIKELIHOOD,
    Option("model.outputs", COUNT, "Of a network."),
    Option("model.width", COUNT, "Units of each hidden layer of a network."),
    Option("model.depth", NATURAL, "Hidden layers of a network."),
    Option(
        "prior.file",
        FILE,
        "A posterior to start from, or a ledger, whose prior is taken.",
        "--prior",
    ),
    Option("prior.family", TEXT, "Of a prior that is given by its parameters."),
    Option("prior.variance", NUMBERS, "Of a prior; of a network's weights.", "--prior-variance"),
    *(
        Option(
            f"prior.{name}",
            NUMBERS,
            "Of a prior of this parameter.",
            f"--prior-{name.replace('_', '-')}",
        )
        for name in PARAMETERS
    ),
)
"""A model of many sites, and its prior."""
