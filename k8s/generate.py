"""Write what the chart repeats: its README from values.yaml, its alerts from docs/alerts.yaml.

python k8s/generate.py           # write
python k8s/generate.py --check   # end with 1 if something is not up to date
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

CHART = Path(__file__).parent / "fedfa"
DOCS = Path(__file__).parents[1] / "docs"
HEAD = """# The FedFa chart

Aggregator, scheduler and pools of trainers on Kubernetes 1.30 or newer. How to install, scale and
upgrade it, and the production checklist: [docs/kubernetes.md](../../docs/kubernetes.md). A file of
values for each common case: [ci](ci). Unknown and misspelt values are refused.

Generated from [values.yaml](values.yaml) by `k8s/generate.py`.

| value | default | meaning |
|---|---|---|
"""


def readme() -> str:
    text = (CHART / "values.yaml").read_text()
    lines = text.splitlines()
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    rows = [f"| `{name}` | `{default}` | {text} |" for name, default, text in _rows(root, lines)]
    return HEAD + "\n".join(rows) + "\n"


def _rows(node: yaml.MappingNode, lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """(dotted name, default as JSON, comment) of every value that is not just a group of values."""
    for key, value in node.value:
        comment = _comment_above(key.start_mark.line, lines)
        is_group = (
            isinstance(value, yaml.MappingNode)
            and bool(value.value)
            and not value.flow_style
            and key.value != "resources"  # Kubernetes' own
        )
        if comment or not is_group:
            default = json.dumps(yaml.safe_load(yaml.serialize(value))).replace("|", "\\|")
            yield key.value, "..." if is_group else default, comment.replace("|", "\\|")
        if is_group:
            for name, default, text in _rows(value, lines):
                yield f"{key.value}.{name}", default, text


def _comment_above(line: int, lines: list[str]) -> str:
    words: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        words.insert(0, lines[line].lstrip().removeprefix("#").strip())
    return " ".join(words)


def files() -> dict[Path, str]:
    return {
        CHART / "README.md": readme(),
        CHART / "files" / "alerts.yaml": (DOCS / "alerts.yaml").read_text(),
    }


if __name__ == "__main__":
    stale = [p for p, text in files().items() if not p.exists() or p.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path} is not up to date: python k8s/generate.py")
        raise SystemExit(1 if stale else 0)
    for path in stale:
        path.write_text(files()[path])
        print(path)
