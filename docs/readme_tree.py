"""Write the tree of both packages into README.md: a line for each file, its first docstring line.

``make docs`` runs it; a test holds that README.md is what it would write.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PACKAGES = ("trainer", "otel_training")
BEGIN = "<!-- tree: written by docs/readme_tree.py -->\n"
END = "<!-- end of tree -->\n"
WIDTH = 24


def tree() -> str:
    """Return the tree as a fenced block."""
    lines = [line for package in PACKAGES for line in folder_lines(ROOT / package, depth=0)]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def folder_lines(folder: Path, depth: int) -> Iterator[str]:
    """Yield a line for the package in ``folder``, for its modules, and for the packages inside it."""
    yield entry(f"{folder.name}/", folder / "__init__.py", depth)
    for path in sorted(folder.glob("*.py")):
        if path.name not in ("__init__.py", "__main__.py"):
            yield entry(path.name, path, depth + 1)
    for inside in sorted(path.parent for path in folder.glob("*/__init__.py")):
        yield from folder_lines(inside, depth + 1)


def entry(name: str, path: Path, depth: int) -> str:
    """Return the line of one file: its name and what the first line of its docstring says."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    summary = docstring.partition("\n")[0].replace("``", "").removesuffix(".")
    return f"{'  ' * depth + name:<{WIDTH}} {summary}".rstrip()


def with_tree(readme: str) -> str:
    """Return the text of the README with the tree of today.

    Raises:
        ValueError: A marker is missing.
    """
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{tree()}{END}{after}"


if __name__ == "__main__":
    README.write_text(with_tree(README.read_text(encoding="utf-8")), encoding="utf-8")
