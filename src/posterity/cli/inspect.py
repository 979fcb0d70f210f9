"""``posterity inspect``: the contents of a file."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.tree import Tree

from posterity.cli import files
from posterity.cli.options import Settings
from posterity.cli.report import MOST_ROWS, Group, filled, group, table
from posterity.cli.streams import Data, verb
from posterity.errors import ArtifactError, StructureError
from posterity.reporting.contents import of_posterior, without_posterior
from posterity.tabular.sites import in_words


def report(data: Data) -> Group:
    """Return facts, then the tree of the file and its sites."""
    facts = Table.grid("", "", padding=(0, 2))
    facts.columns[1].overflow = "fold"
    for name, value in _facts(data):
        facts.add_row(name, str(value))
    parts: list[Any] = [facts, "", _tree(data["content"] if "content" in data else data["family"])]
    if "sites" in data:
        rows = (
            [site, own["epoch"], own["sequence"], "no (forgotten)" if own["forgotten"] else "yes"]
            for site, own in data["sites"].items()
        )
        parts += ["", filled(table("site", "epoch", "sequence", "contributes"), rows)]
    return group(*parts)


def _facts(data: Data) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the facts about a file."""
    for name in ("path", "kind", "format", "bytes", "digest", "prior_digest", "proper"):
        if name in data:
            yield name, data[name]
    yield from (("about", line) for line in data.get("about", ()))
    for name, value in data["provenance"].items():
        if name not in ("columns", "recipe", "sites"):  # printed in words
            yield "provenance", f"{name}: {value}"
    for name, value in data.get("student", {}).items():
        if isinstance(value, dict):
            value = ", ".join(part for part, is_so in value.items() if is_so) or None
        if value is not None:
            yield name.replace("_", " "), value
    if data.get("inputs"):
        yield "columns", in_words(data["inputs"], MOST_ROWS)


def _tree(node: Data, name: str = "") -> Tree:
    tree = Tree(f"{name}: {node['type']}" if name else node["type"])
    children = dict(node["parameters"])
    blocks = children.get("blocks")
    if isinstance(blocks, dict) and blocks["type"] == "dict":
        del children["blocks"]
        children = {**blocks["parameters"], **children}  # those of a product, of any name
    for key, child in children.items():
        if isinstance(child, dict):
            tree.add(_tree(child, key))
        elif isinstance(child, str):
            tree.add(f"{key}: {child[:60]}")
        else:
            tree.add(f"{key} {tuple(child)}")
    return tree


@verb(report)
def inspect(settings: Settings) -> Data:
    """Check a file and print its contents."""
    (file,) = settings.arguments("a file")
    try:
        return of_posterior(*files.read(file))
    except (ArtifactError, StructureError):
        contents = without_posterior(file)
        if contents is None:
            raise
        return contents
