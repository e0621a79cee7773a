"""What the folders of paper scenarios have in common."""

import re
from pathlib import Path


def named_assumptions(path: Path) -> list[str]:
    """The assumptions that the comments of a file name at their ends: (name) or (name, beginning_*)."""
    return [
        name.strip()
        for group in re.findall(r"#.*\(([a-z0-9_*, ]+)\)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        for name in group.split(",")
    ]
