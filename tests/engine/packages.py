"""Installed packages that provide models, as `importlib.metadata` finds them."""

from pathlib import Path


def provide(folder: Path, monkeypatch, version: str = "1.0", **points: str) -> None:
    """Install the package `acme` in a folder on the path, with entry points of models."""
    about = folder / f"acme-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme\nVersion: {version}\n")
    lines = [f"{name} = {value}\n" for name, value in points.items()]
    (about / "entry_points.txt").write_text("".join(["[posterity.models]\n", *lines]))
    monkeypatch.syspath_prepend(folder)
