"""The tables of a configuration that several verbs have: each option once, with its help.

``posterity VERB --help`` lists the flags of the same options.
"""

from posterity.cli.options import (
    COUNT,
    FILE,
    FLAG,
    NATURAL,
    NUMBERS,
    POSITIVE,
    SEED,
    TEXT,
    Option,
    by_name,
    either,
    list_of,
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

NETWORK = (
    Option("model.kind", TEXT, "A network, linear-regression or logistic-regression.", "--model"),
    TARGET,
    INTERCEPT,
    LIKELIHOOD,
    NOISE,
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
