"""``posterity predict``: predictions of a student, or a network, for new inputs."""

import functools
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterity.cli import files
from posterity.cli.failures import printable
from posterity.cli.options import NATURAL, SEED, TEXT, Option, Settings, verb
from posterity.cli.report import Data, short
from posterity.cli.schema import LIKELIHOOD, OUTPUT
from posterity.cli.streams import bar
from posterity.errors import StructureError, UsageError

if TYPE_CHECKING:
    import numpy as np

FORMATS = (".csv", ".npz", ".json")
PARTS = ("entropy", "mutual_information", "variance", "noise_variance")
"""Parts of a prediction beside the mean or the probabilities, each where it is known."""
UNITS = {"entropy": " nats", "mutual_information": " nats"}


def _report(data: Data) -> str:
    what = f"{data['kind']} in {printable(data['file'])}"
    means = (
        f"  mean {name.replace('_', ' ')}: {short(value)}{UNITS.get(name, '')}"
        for name, value in data["means"].items()
    )
    names = data["columns"]  # not all of a hundred classes
    names = names if len(names) <= 12 else [*names[:4], "...", *names[-4:]]
    wrote = f"Wrote {', '.join(names)} to {printable(data['output'])}"
    return "\n".join([f"Predicted {data['records']:,} records by the {what}.", *means, wrote])


@verb(
    LIKELIHOOD,
    Option("model.target", TEXT, "The column of INPUTS that is predicted: left out."),
    Option("inputs.array", TEXT, "Which array of an .npz, if several."),
    Option(
        "samples",
        NATURAL,
        "Draws of a network's weights, 0: its mean; 100 if left out, of a fused one its mean.",
    ),
    Option("seed", SEED, "Of the draws; 0 if left out."),
    OUTPUT,
    files="A student, or a posterior or ledger of a network; then INPUTS, records as .csv with a "
    "header, .npz or .npy.",
    report=_report,
    examples=[
        "posterity predict student.safetensors new.csv -o predictions.csv",
        "posterity predict network.safetensors new.npz -o predictions.npz --samples 200",
    ],
)
def predict(settings: Settings) -> Data:
    """Predict, and say how unsure of what: a row a record.

    Columns of the output: p0, p1, ... are probabilities of the classes, p that of the label 1,
    mean an expected value; entropy is all uncertainty of a label and mutual_information the part
    that more data would take away, in nats; variance is that of the mean, noise_variance that of
    what is observed about it.
    """
    from posterity.artifact.provenance import unnamed
    from posterity.cli.records import read_inputs, reordered

    if len(settings.files) != 2:
        raise UsageError(
            found=f"{len(settings.files)} files",
            expected="two: a student or network, and a file of inputs",
            fix="Name both, in this order.",
        )
    (file, inputs), output = settings.files, settings.output
    files.check_outputs([output], [file, inputs])
    files.check_ending(output, FORMATS)
    places = {"samples": "samples", "likelihood": "model.likelihood", "seed": "seed"}
    asked = {name: settings[place] for name, place in places.items() if place in settings.values}
    with bar("Predicting"):
        predictor, names, kind = _predictor(file, asked)
        records = read_inputs(inputs, settings["inputs.array"], settings["model.target"])
        x = reordered(records, names, str(inputs), str(file))
        try:
            prediction = predictor(x)
        except StructureError as error:
            raise error.at(f"inputs {str(inputs)!r}") from error
    parts = {name: getattr(prediction, name) for name in ("mean", *PARTS)}
    parts = {name: value for name, value in parts.items() if value is not None}
    table = _columns(parts)
    _write(output, parts, table)
    return {
        "output": str(output),
        "file": str(file),
        "kind": kind,
        "records": len(x),
        "columns": list(table),
        "means": {name: float(parts[name].mean()) for name in PARTS if name in parts},
        "notes": unnamed({str(inputs): records.names} if names else {}, names),
    }


def _predictor(file: Path, asked: Data) -> tuple[Any, tuple[str, ...], str]:
    """The function that predicts, the names of the columns that it takes, and its kind."""
    import jax

    from posterity.distillation import Student
    from posterity.ledger import Ledger
    from posterity.networks import describe

    value, about = files.read_any(file)
    if isinstance(value, Student):
        if asked:
            raise UsageError(
                found=f"--{' --'.join(asked)} for the student in {str(file)!r}",
                expected="none of them: a student knows what it predicts, and draws nothing",
                fix="Leave them out.",
            )
        return value.predict, files.inputs_of(value, about), about.kind
    network: Any = value.posterior if isinstance(value, Ledger) else value
    if getattr(network, "network_layers", None) is None:
        raise StructureError(
            found=f"a {type(network).__name__} in {str(file)!r}",
            expected="a student, or a posterior or ledger of a network",
            fix="Make a student of it: posterity distill FILE -o student.safetensors.",
        )
    if "likelihood" not in asked and network.layers.outputs == 1:
        raise files.no_likelihood(file)
    key = jax.random.key(asked.pop("seed", 0))
    return functools.partial(describe, network, key=key, **asked), (), about.kind


# --- what is written ------------------------------------------------------------------------------


def _columns(parts: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    """Columns of one number a record: p0, p1 of classes, mean_0, mean_1 of several values."""
    table = {}
    for name, value in parts.items():
        label, joint = ("p", "") if name == "mean" and "entropy" in parts else (name, "_")
        flat = value.reshape(len(value), -1)
        for place, column in enumerate(flat.T):
            table[f"{label}{joint}{place}" if flat.shape[1] > 1 else label] = column
    return table


def _write(
    output: Path, parts: "Mapping[str, np.ndarray]", table: "Mapping[str, np.ndarray]"
) -> None:
    """A table as text, or whole arrays as NumPy has them."""
    import numpy as np

    from posterity.files import write_file

    ending = output.suffix.lower()
    if ending == ".npz":
        file = io.BytesIO()
        np.savez(file, **parts)  # pyright: ignore[reportArgumentType]
        content = file.getvalue()
    elif ending == ".json":
        rows = {name: column.tolist() for name, column in table.items()}
        content = (json.dumps(rows, allow_nan=False) + "\n").encode()
    else:
        text, header = io.StringIO(), ",".join(table)
        columns = np.column_stack(list(table.values()))
        np.savetxt(text, columns, fmt="%.9g", delimiter=",", header=header, comments="")
        content = text.getvalue().encode()
    write_file(output, content)
