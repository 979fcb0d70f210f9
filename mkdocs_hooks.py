"""What the documentation is made of beside its pages: the reference, and links of citations.

Pages under ``api/`` list every public name: those in the ``__all__`` of a module or package, else
those that it imports as themselves, else its classes and functions. Methods without a docstring
have that of a base. ``references.md`` is made from ``docs/references.bib``. Keys of that file in
pages and docstrings become links, and so do the names that docstrings put into roles
(``:func:`fuse```).
"""

import ast
import json
import re
import textwrap
from html import unescape
from pathlib import Path
from typing import Any

import griffe
import latex2mathml.converter
from mkdocs.structure.files import File

ROOT = Path(__file__).parent
SOURCE = ROOT / "src" / "posterity"
ADAPTERS = (
    *("samples", "numpyro", "arviz", "statsmodels", "sklearn", "torch"),
    *("torch_posterior", "flax", "onnx", "gensim", "hmmlearn"),
)
MODULES = (
    *("families", "fusion", "ledger", "receipt", "federation", "graphs", "pursuit"),
    *("pursuit.learning", "distillation", "models", "inference", "networks", "artifact"),
    *("tabular", "tabular.tables", "tabular.estimators"),
    *(f"adapters.{name}" for name in ADAPTERS),
    *("runtime.progress", "reporting.summary", "reporting", "errors"),
    "engine.privacy.noise",
)
VERBS = {
    "fuse": "fusion.fuse",  # modules of the same names stand beside the first five
    "federate": "federation.federate",
    "forget": "federation.forget",
    "pursue": "pursuit.pursue",
    "distill": "distillation.distill",
    **{"save": "artifact", "load": "artifact", "inspect": "artifact", "verify": "receipt"},
    "report": "reporting",
}
"""What the reference opens with, on a page of its own, and the modules that it is in."""
BASES = (
    "ExponentialFamily",
    "Distribution",
    "Model",
    "Estimator",
    "at_rest",
    "concatenate",
    "stack",
)
"""What is for those who extend the library, and comes last on its page."""
ENTRY = re.compile(r"^@(\w+)\{(\w+),\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"(\w+)\s*=\s*\{(.*?)\},?\s*\n(?=\s*\w+\s*=|\Z)", re.DOTALL)
ROLE = re.compile(r":(?:func|class|meth|attr|mod|data):`~?([^`]+)`")
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
ACCENTS = {"'": "\u0301", "`": "\u0300", '"': "\u0308", "^": "\u0302", "~": "\u0303", "c": "\u0327"}


def public(module: str) -> list[str]:
    """The public names of a module, in the order in which it gives them."""
    path = SOURCE.joinpath(*module.split("."))
    tree = ast.parse(
        (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    )
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id == "__all__":
            return [element.value for element in node.value.elts]  # pyright: ignore
    imported = [
        alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    own = [alias.asname for alias in imported if alias.asname == alias.name]
    made = [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name[0] != "_"
    ]
    return [name for name in own if name] or made


def entries() -> dict[str, dict[str, str]]:
    """What the bibliography holds, by key."""
    text = (ROOT / "docs" / "references.bib").read_text(encoding="utf-8")
    return {
        key: {name.lower(): _plain(value) for name, value in FIELD.findall(body)}
        for _, key, body in ENTRY.findall(text)
    }


def _plain(value: str) -> str:
    """TeX's accents as letters, without braces."""

    def accent(found):
        return found[2] + ACCENTS[found[1]]

    value = re.sub(r"\\(['`\"^~c])\s*\{?(\w)\}?", accent, value)
    return (
        " ".join(re.sub(r"[{}]", "", value).split())
        .replace("--", "\u2013")
        .replace("\\&", "&")
        .replace("~", " ")
    )


def _reference(key: str, entry: dict[str, str]) -> str:
    where = next(
        (entry[k] for k in ("journal", "booktitle", "publisher", "note") if k in entry), ""
    )
    at = f" {entry['volume']}" if "volume" in entry else ""
    pages = f", {entry['pages']}" if "pages" in entry else ""
    found = (f"https://doi.org/{entry['doi']}" if "doi" in entry else "") or entry.get("url", "")
    title = f"[{entry['title']}]({found})" if found else entry["title"]
    people = entry.get("author", entry.get("organization", "")).replace(" and ", "; ")
    told = [people, f"*{title}*", f"{where}{at}{pages}", entry.get("year", "")]
    return f"### {key} {{#ref-{key}}}\n\n{'. '.join(part for part in told if part)}.\n"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made."""
    listed = "\n".join(_reference(key, entry) for key, entry in sorted(entries().items()))
    made = {"references.md": f"# References\n\n{listed}"}
    verbs = "\n\n".join(f"::: posterity.{home}.{name}" for name, home in VERBS.items())
    made["api/verbs.md"] = (
        "# The verbs\n\nFive verbs, and what saves, loads, inspects and verifies a file. All of "
        f"them are in `posterity` itself.\n\n{verbs}\n"
    )
    for module in MODULES:
        shown = [n for n in public(module) if VERBS.get(n, "").partition(".")[0] != module]
        shown.sort(key=BASES.__contains__)
        names = "\n\n".join(f"::: posterity.{module}.{name}" for name in shown)
        made[f"api/{module.replace('.', '-')}.md"] = f"# posterity.{module}\n\n{names}\n"
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def cited(text: str) -> str:
    """Citations in brackets as links."""
    keys = "|".join(entries())

    def link(found):
        return f"[[{found[1]}][ref-{found[1]}]{found[2]}]"

    parts = CODE.split(text)
    parts[::2] = [re.sub(rf"\[({keys})\b([^\]\[]*)\](?![\[(])", link, part) for part in parts[::2]]
    return "".join(parts)


def measured(markdown: str) -> str:
    """Numbers in the place of ``{{experiment: key/of/it}}``, from the experiment's results, and of
    ``{{experiment/file: key/of/it}}``, from another file of them.
    """

    def number(found: Any) -> str:
        path = ROOT / f"experiments/{found[1]}/results/{found[2] or 'expected'}.json"
        value = json.loads(path.read_text())
        for part in found[3].split("/"):
            value = value[int(part) if isinstance(value, list) else part]
        return f"{value:.3g}"

    return re.sub(r"\{\{(\w+)(?:/([\w-]+))?: (.+?)\}\}", number, markdown)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Link the citations of a page, and fill in the paper's numbers."""
    if page.file.src_path == "paper.md":
        markdown = measured(markdown)
    return markdown if page.file.src_path == "references.md" else cited(markdown)


FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw by themselves: nothing is fetched."""
    return FORMULA.sub(_formula, html)


def _formula(found: Any) -> str:
    display = "block" if found[2] == "[" else "inline"
    return latex2mathml.converter.convert(unescape(found[3]), display=display)


def fenced(docstring: str) -> str:
    """Examples as blocks of code, which Markdown would take for quotations."""
    parts = re.split(r"\n[ \t]*\n", docstring)
    run = [f"```pycon\n{textwrap.dedent(p)}\n```" if p.lstrip()[:3] == ">>>" else p for p in parts]
    return "\n\n".join(run)


class Docstrings(griffe.Extension):
    """Roles and sources in docstrings as links, and docstrings that methods inherit."""

    def __init__(self) -> None:
        self.keys = "|".join(entries())
        homes = {n: m for m in reversed(MODULES) for n in public(m)} | VERBS
        self.known = {name: f"posterity.{home}.{name}" for name, home in homes.items()}

    def on_instance(self, *, node: Any, obj: Any, **_: Any) -> None:
        """After a class, function or attribute was read."""
        if obj.docstring is not None:
            text = ROLE.sub(self._name, fenced(obj.docstring.value))
            obj.docstring.value = re.sub(r"(Source:(?:.|\n)*)", self._source, text)

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        """After a package was read."""
        homes = [pkg]
        for home in homes:
            own = [member for member in home.members.values() if not member.is_alias]
            homes += [member for member in own if member.is_module or member.is_class]
            if home.is_class:
                for method in own:
                    if method.docstring is None and method.is_function | method.has_labels(
                        "property"
                    ):
                        method.docstring = self._inherited(method)

    def _inherited(self, method: Any) -> Any:
        """The docstring of a method in the first base that has one."""
        for base in method.parent.mro():
            known = base.members.get(method.name)
            if known is not None and not known.is_alias and known.docstring is not None:
                text = known.docstring
                options = {"parser": text.parser, "parser_options": text.parser_options}
                return griffe.Docstring(text.value, parent=method, **options)
        return None

    def _name(self, found: Any) -> str:
        name = found[1]
        home = self.known.get(name.rpartition(".")[2] if name.startswith("posterity") else name)
        return f"[`{name.rpartition('.')[2]}`][{home}]" if home else f"`{name}`"

    def _source(self, found: Any) -> str:
        return re.sub(rf"\b({self.keys})\b", r"[\1][ref-\1]", found[1])
