"""Tables of this folder's README."""

import functools
from collections.abc import Mapping
from typing import Any

from experiments import goals
from experiments.pages import At, at, figure, figures, results, table


def classes() -> str:
    """Return table 2: divergence from the true predictive, of toy classes."""
    file = results("dark_knowledge/toy2d")
    paper = file["paper"]["KL, table 2"]
    ours = file["KL to the true predictive, grid"]
    body = [
        [
            name if name == "SGLD" else f"student {name}",
            figure(published),
            figure(at(ours, [f"{name}, ours"])),
            figure(ours[f"{name}, ours, split"]) if f"{name}, ours, split" in ours else "",
        ]
        for name, published in paper.items()
        if f"{name}, ours" in ours
    ]
    return table(["nats", "the paper", "ours", "kept apart"], body)


def curves() -> str:
    """Return divergences from HMC, of a toy regression."""
    scores = results("dark_knowledge/toy1d")["scores"]
    columns: Mapping[str, At] = {
        "where records are": ["from -4 to 4", "KL to HMC"],
        "beyond": ["beyond", "KL to HMC"],
    }
    return figures(scores, "nats", {name: [name] for name in scores}, columns)


def digits() -> str:
    """Return table 3: errors and log likelihoods of MNIST."""
    files = {
        "the paper's run": results("dark_knowledge/mnist-paper"),
        "22,000 steps at temperature .01": results("dark_knowledge/mnist"),
    }
    paper = files["the paper's run"]["paper"]["test error in %"]
    body = []
    for method, (mean, error) in paper.items():
        row = [method, f"{mean} ± {error:.3f}"]
        for file in files.values():
            found = file["test"][method]
            row += [figure(found["error"], 2), figure(found["log likelihood"], 4)]
        body.append(row)
    seeds = {name: file["seeds finished"] for name, file in files.items()}
    head = ["error in %, log likelihood", "the paper, 10 runs"]
    for name, count in seeds.items():
        head += [f"{name}: {'one seed' if count == 1 else f'{count} seeds'}", ""]
    return table(head, body)


def _uci() -> dict[tuple[str, str], dict[str, Any]]:
    tables = results("dark_knowledge/regression")["tables"]
    names = (name.split(", ") for name in tables if "climbs" not in name)
    return {(name, noise): tables[f"{name}, {noise}"] for name, noise in names}


def _splits(row: Mapping[str, Any]) -> str:
    return str(row["splits run, of"][0])


def uci() -> str:
    """Return table 5 and eight more: log likelihoods of chains and of their students."""
    rows = _uci()
    body = []
    for name in dict.fromkeys(name for name, _ in rows):
        cells = [name]
        for noise in ("constant noise", "varying noise"):
            row = rows[name, noise]
            scores = [figure(row[who]["log likelihood"], 2) for who in ("chains", "distilled")]
            cells += [_splits(row), *scores]
        body.append(cells)
    head = ["nats", "splits", "chains, constant noise", "student"]
    return table([*head, "splits", "chains, noise that varies", "student"], body)


def laws() -> str:
    """Return the same predictions by normal laws and by t laws."""
    body = []
    for (name, noise), row in _uci().items():
        if "degrees of freedom" in row:
            cells = [f"{name}, {noise}", figure(row["degrees of freedom"]["mean"], 1)]
            for score, decimals in (("log likelihood", 2), ("in intervals of 50 %", 2)):
                for who in ("chains", "distilled"):
                    normal = row[who][f"{score}, normal law"]["mean"]
                    own = row[who][score]["mean"]
                    cells.append(f"{figure(normal, decimals)}, {figure(own, decimals)}")
            body.append(cells)
    head = ["normal, t", "degrees of freedom", "chains", "student"]
    return table([*head, "chains' intervals of 50 % hold", "student's"], body)


def worth() -> str:
    """Return accuracy and log likelihood beside CPU seconds, on Fashion-MNIST and on MNIST."""
    parts = results("dark_knowledge/worth")["parts"]
    body = [
        [
            name,
            figure(part["CPU seconds"]["mean"], 1),
            figure(part["accuracy"], 2),
            figure(part["log likelihood"], 3),
        ]
        for name, part in parts.items()
        if "accuracy" in part
    ]
    return table(["images, method", "CPU s", "accuracy %", "log likelihood"], body)


def doubt() -> str:
    """Return areas under the curve of letters against test images."""
    body = []
    for inputs, found in results("dark_knowledge/doubt")["inputs"].items():
        for who in ("teacher", "student"):
            row = found[who]
            areas = row["AUROC by"]
            body.append(
                [
                    f"{who}, {inputs} inputs",
                    figure(areas["mutual information"]["letters"], 3),
                    figure(areas["entropy"]["letters"], 3),
                    figure(at(found, ["gap", "letters"]), 3) if who == "student" else "",
                    figure(row["accuracy"], 2),
                ]
            )
    head = ["", "by mutual information", "by entropy", "gap at letters, nats", "accuracy %"]
    return table(head, body)


def pipeline() -> str:
    """Return students of a fused network, by what they were shown."""
    parts = results("dark_knowledge/pipeline")["table"]
    columns: Mapping[str, At] = {
        "units": ["units"],
        "accuracy %": ["accuracy"],
        "log likelihood": ["log likelihood"],
    }
    return figures(parts, "network", {name: [name] for name in parts}, columns)


missed = functools.partial(goals.missed, "dark_knowledge")
