"""Packages with entry points, as if they were installed."""

from pathlib import Path


def write_distribution(
    folder: Path, module: str, version: str, code: str, group: str, entry: str
) -> None:
    """Write a module with this code, and the metadata of its distribution.

    Args:
        folder: a folder on the path of modules.
        group: group of the entry point, such as "coexec.engines".
        entry: the name and the object in the module, "slow:Slow".
    """
    name, _, item = entry.partition(":")
    (folder / f"{module}.py").write_text(code)
    about = folder / f"{module}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:{item}\n")
