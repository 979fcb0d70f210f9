"""What the command line says: each report as plain data for JSON, and as text made from it."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from posterity.artifact import Inspection, Posterior, digest
from posterity.checks import check_proper
from posterity.cli.failures import printable
from posterity.errors import ParameterError
from posterity.families import ExponentialFamily, Plate
from posterity.federation.forget import Forgotten
from posterity.federation.run import Run
from posterity.fusion import Fusion
from posterity.fusion.diff import BlockDiff, Diff, Divergences, PlateDiff
from posterity.ledger import Ledger
from posterity.receipt import Receipt, Verification

Data = dict[str, Any]
MOST_ROWS, MOST_COLUMNS, MOST_NUMBERS = 24, 12, 8
"""How much of a matching, or of a row of numbers, a person is shown; JSON has all of it."""


# --- fuse ----------------------------------------------------------------------------------------


def fusion_data(
    fusion: Fusion, written: Inspection, inputs: Mapping[str, str], matching: str
) -> Data:
    """What ``posterity fuse --json`` prints; ``inputs`` are digests by site."""
    return {
        "output": written.path,
        "kind": written.kind,
        "digest": written.digest,
        "rule": fusion.rule.value,
        "divergence": fusion.divergence.value,
        "matching": matching,
        "sites": dict(sorted(inputs.items())),
        "plates": {
            path: {
                "components": plate.components,
                "cost": _number(plate.cost),
                "matching": {site: label.tolist() for site, label in plate.matching.items()},
            }
            for path, plate in fusion.plates.items()
        },
    }


def fusion_text(data: Data) -> RenderableType:
    """The same for people."""
    parts: list[RenderableType] = [
        Text(f"Fused {len(data['sites'])} sites ({data['rule']}, {data['divergence']} KL).")
    ]
    for path, plate in data["plates"].items():
        parts += ["", Text(_headline(path, plate)), _matching(plate)]
    return Group(*parts, "", Text(f"Wrote {data['kind']} to {printable(data['output'])}"))


def _headline(path: str, plate: Data) -> str:
    name = f"{printable(path)}: " if path else ""
    size, cost = plate["components"], _short(plate["cost"])
    return f"{name}{size} components, cost {cost} nats. Columns are fused, cells local ones."


def _matching(plate: Data) -> Table:
    """Rows are sites, columns fused components, cells the local indices that went there."""
    shown = list(range(min(plate["components"], MOST_COLUMNS)))
    table = Table("site", *(str(g) for g in shown), box=SIMPLE, padding=(0, 0, 0, 1))
    hidden = plate["components"] - len(shown)
    unused = any(-1 in labels for labels in plate["matching"].values())
    for header in (["more"] if hidden else []) + (["unused"] if unused else []):
        table.add_column(header)
    for site, labels in list(plate["matching"].items())[:MOST_ROWS]:
        cells = [_members(labels, g) for g in shown]
        cells += [str(sum(g > shown[-1] for g in labels))] if hidden else []  # how many
        cells += [_members(labels, -1)] if unused else []
        table.add_row(Text(printable(site)), *cells)
    if (more := len(plate["matching"]) - MOST_ROWS) > 0:
        table.add_row(f"and {more} more sites")
    return table


def _members(labels: Sequence[int], component: int) -> str:
    found = (str(index) for index, label in enumerate(labels) if label == component)
    return ",".join(found) or "."


# --- inspect -------------------------------------------------------------------------------------


def inspection_data(found: Inspection, posterior: Posterior) -> Data:
    """What ``posterity inspect --json`` prints."""
    data: Data = {
        "path": found.path,
        "kind": found.kind,
        "format": found.format,
        "bytes": found.bytes,
        "digest": found.digest,
        "provenance": dict(found.provenance),
    }
    if isinstance(posterior, Ledger):
        sites = {
            site: {
                "epoch": entry.epoch,
                "sequence": entry.sequence,
                "forgotten": entry.factor is None,
            }
            for site, entry in posterior.entries.items()
        }
        data |= {"prior_digest": digest(posterior.prior), "sites": sites}
    total = _total(posterior)
    return data | {"proper": _is_proper(total), "family": _outline(total)}


def _total(posterior: Posterior) -> Any:
    """The family that a file amounts to: a ledger's may be improper, and is shown all the same."""
    if not isinstance(posterior, Ledger):
        return posterior
    return sum((posterior.factor(site) for site in posterior.sites), start=posterior.prior)


def _is_proper(family: Any) -> bool:
    try:
        check_proper(family, "")
    except ParameterError:
        return False
    return True


def _outline(value: Any) -> Any:
    """A family as a tree: its type, the shapes of its parameters, what is in its blocks."""
    if value is None or isinstance(value, dict):
        return value and {name: _outline(child) for name, child in value.items()}
    if not dataclasses.is_dataclass(value):
        return list(np.shape(value))
    fields = {f.name: _outline(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return {"type": type(value).__name__, **_summary(value), "parameters": fields}


def _summary(value: Any) -> Data:
    if isinstance(value, Plate) and not value.batch_shape:
        weights = {} if value.weights is None else {"expected_weights": value.mean_weights()}
        return {"components": value.size, **{k: _numbers(w) for k, w in weights.items()}}
    if isinstance(value, ExponentialFamily):
        return {"batch": list(value.batch_shape)} if value.batch_shape else {}
    return {"components": len(value.log_weights), "expected_weights": _numbers(value.weights)}


def inspection_text(data: Data) -> RenderableType:
    """The same for people."""
    facts = Table.grid(padding=(0, 2))
    for name in ("path", "kind", "format", "bytes", "digest", "prior_digest", "proper"):
        if name in data:
            facts.add_row(name, Text(printable(data[name]), overflow="fold"))
    for name, value in data["provenance"].items():
        facts.add_row("provenance", Text(printable(f"{name}: {value}"), overflow="fold"))
    parts: list[RenderableType] = [facts, "", _tree(data["family"])]
    return Group(*parts, "", _sites(data["sites"])) if "sites" in data else Group(*parts)


def _sites(sites: Data) -> Table:
    table = Table("site", "epoch", "sequence", "contributes")
    for site, entry in sites.items():
        contributes = "no (forgotten)" if entry["forgotten"] else "yes"
        numbers = (str(entry["epoch"]), str(entry["sequence"]))
        table.add_row(Text(printable(site)), *numbers, contributes)
    return table


def _tree(node: Data, name: str = "") -> Tree:
    tree = Tree(Text(f"{printable(name)}: {_label(node)}" if name else _label(node)))
    for key, child in _children(node).items():
        if isinstance(child, dict):
            tree.add(_tree(child, key))
        elif child is not None:
            tree.add(Text(f"{printable(key)} {tuple(child)}"))
    return tree


def _children(node: Data) -> Data:
    children = dict(node["parameters"])
    return {**children.pop("blocks"), **children} if "blocks" in children else children


def _label(node: Data) -> str:
    label = node["type"]
    if "components" in node:
        label += f" of {node['components']} components"
    if "batch" in node:
        label += f", batch {tuple(node['batch'])}"
    if "expected_weights" in node:
        numbers = node["expected_weights"]
        more = " ..." if len(numbers) > MOST_NUMBERS else ""
        label += f", expected weights {' '.join(map(_short, numbers[:MOST_NUMBERS]))}{more}"
    return label


# --- diff ----------------------------------------------------------------------------------------


def diff_data(found: Diff) -> Data:
    """What ``posterity diff --json`` prints, in nats."""
    return {
        **_both(found.kl),
        "blocks": {block.path: _block_data(block) for block in found.blocks},
        "sites_a": None if found.sites_a is None else list(found.sites_a),
        "sites_b": None if found.sites_b is None else list(found.sites_b),
    }


def _block_data(block: BlockDiff) -> Data:
    own: Data = {"family": block.family, **_both(block.kl)}
    return own if block.plate is None else own | _plate_data(block.plate)


def _plate_data(plate: PlateDiff) -> Data:
    return {
        "components": [{"a": pair.a, "b": pair.b, **_both(pair.kl)} for pair in plate.pairs],
        "weights": None if plate.weights is None else _both(plate.weights),
        "only_in_a": [_alone(item) for item in plate.only_in_a.items()],
        "only_in_b": [_alone(item) for item in plate.only_in_b.items()],
    }


def _alone(item: tuple[int, float]) -> Data:
    return {"component": item[0], "expected_weight": _number(item[1])}


def _both(kl: Divergences) -> Data:
    return {"kl_ab": _number(kl.ab), "kl_ba": _number(kl.ba)}


def diff_text(data: Data) -> RenderableType:
    """The same for people."""
    table = Table("block", "in a", "in b", "KL(a || b)", "KL(b || a)")
    for path, block in data["blocks"].items():
        table.add_row(Text(printable(path) or block["family"]), "", "", *_cells(block))
        for row in _plate_rows(block):
            table.add_row("", *row)
    table.add_section()
    table.add_row("total, in nats", "", "", *_cells(data))
    return Group(table, *_site_lines(data))


def _plate_rows(block: Data) -> list[tuple[str, ...]]:
    pairs, only = _farthest(block.get("components", [])), ("only_in_a", "only_in_b")
    rows = [(str(p["a"]), str(p["b"]), *_cells(p)) for p in pairs]
    if block.get("weights"):
        rows.append(("weights", "weights", *_cells(block["weights"])))
    lone_a, lone_b = (block.get(name, [])[:MOST_ROWS] for name in only)
    rows += [(_weighted(lone), "-", "only in a", "") for lone in lone_a]
    rows += [("-", _weighted(lone), "only in b", "") for lone in lone_b]
    lists = [(block.get(name, [])) for name in ("components", *only)]
    hidden = sum(max(0, len(found) - MOST_ROWS) for found in lists)
    return [*rows, (f"and {hidden} more", "", "", "")] if hidden else rows


def _farthest(pairs: list[Data]) -> list[Data]:
    """The pairs that differ most, in their order; what overflowed differs most of all."""
    size = lambda p: sum(np.inf if p[k] is None else p[k] for k in ("kl_ab", "kl_ba"))
    kept = sorted(range(len(pairs)), key=lambda i: -size(pairs[i]))[:MOST_ROWS]
    return [pairs[i] for i in sorted(kept)]


def _weighted(lone: Data) -> str:
    return f"{lone['component']} (weight {_short(lone['expected_weight'])})"


def _cells(data: Data) -> tuple[str, str]:
    return _short(data["kl_ab"]), _short(data["kl_ba"])


def _site_lines(data: Data) -> list[Text]:
    lines = []
    for name in ("a", "b"):
        if (sites := data[f"sites_{name}"]) is not None:
            lines.append(Text(printable(f"sites of {name}: {', '.join(sites) or 'none'}")))
    return lines


# --- numbers -------------------------------------------------------------------------------------


def _number(value: Any) -> float | None:
    """JSON has no infinity and no NaN: null stands for what overflowed, or is not known."""
    return float(value) if value is not None and np.isfinite(value) else None


def _numbers(values: Any) -> list[float | None]:
    return [_number(value) for value in values]


def _short(value: float | None) -> str:
    return "overflow" if value is None else f"{value:.4g}"


# --- federate, forget, verify --------------------------------------------------------------------


def federation_data(run: Run, written: Inspection, resumed: int) -> Data:
    """What ``posterity federate --json`` prints; ``resumed`` is the step it went on from."""
    outcomes = Counter((visit.site, visit.outcome) for visit in run.history)
    last = {visit.site: visit.residual for visit in run.history}
    return {
        "output": written.path,
        "digest": written.digest,
        "schedule": type(run.schedule).__name__,
        "unit": run.schedule.unit,
        "steps": run.state.step,
        "resumed": resumed,
        "exact": run.exact,
        "sites": {
            site: {
                "records": records.size,
                "updates": outcomes[site, "updated"],
                "failures": outcomes[site, "failed"] + outcomes[site, "refused"],
                "residual": _number(last.get(site)),
            }
            for site, records in run.problem.sites.items()
        },
    }


def federation_text(data: Data) -> RenderableType:
    """The same for people."""
    table = Table("site", "records", "updates", "failures", "residual", box=SIMPLE)
    for site, told in data["sites"].items():
        residual = "" if told["residual"] is None else f"{told['residual']:.1e}"
        counts = (str(told[name]) for name in ("records", "updates", "failures"))
        table.add_row(printable(site), *counts, residual)
    went_on = f", from {data['resumed']} on" if data["resumed"] else ""
    headline = f"Federated {len(data['sites'])} sites: {data['steps']} {data['unit']}{went_on}."
    return Group(Text(headline), table, Text(f"Wrote the ledger to {printable(data['output'])}"))


def forgetting_data(done: Forgotten, written: Inspection, receipt: str) -> Data:
    """What ``posterity forget --json`` prints."""
    return {
        "output": written.path,
        "receipt": receipt,
        "digest": written.digest,
        "sites": list(done.receipt.sites),
        "left": list(done.ledger.sites),
        "exact": done.exact,
        "distance": _number(done.distance),
    }


def forgetting_text(data: Data) -> RenderableType:
    """The same for people."""
    names = ", ".join(map(printable, data["sites"]))
    if data["exact"]:
        how = "Exact: the posterior is, to the last bit, that of a ledger that never saw them."
    elif data["distance"] is None:
        how = "Not exact: the factors that stay were fitted in their company. Refine by --config."
    else:
        how = f"Not exact: about {data['distance']:.2g} nats from training without them."
    lines = [
        f"Forgot {names}; {len(data['left'])} sites are left.",
        how,
        f"Wrote the ledger to {printable(data['output'])}, "
        f"the receipt to {printable(data['receipt'])}",
    ]
    return Text("\n".join(lines))


def verification_data(receipt: Receipt, verification: Verification) -> Data:
    """What ``posterity verify --json`` prints."""
    return {
        "sites": list(receipt.sites),
        "exact": receipt.exact,
        "time": receipt.time,
        "claims": dict(verification.claims),
    }


def verification_text(data: Data) -> RenderableType:
    """The same for people."""
    names = ", ".join(map(printable, data["sites"]))
    kind = "exactly" if data["exact"] else "not exactly"
    lines = [f"The receipt holds: {names} forgotten {kind}, {printable(data['time'])}."]
    return Text("\n".join(lines + [f"  {claim}" for claim in data["claims"]]))
