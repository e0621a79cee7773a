"""Writes fitted entries into the lists of `hardware_db/links/<id>.yaml`, and leaves every other line as it is."""

from collections.abc import Mapping, Sequence
from pathlib import Path

LINKS = Path("hardware_db/links")
Entry = Mapping[str, str]


def quantity(value: str, source: str, locator: str = "", spread: float | None = None, kind: str = "measured") -> str:
    """A number as the link files write it.

    Examples
    --------
    >>> quantity("5.91 us", "x", "a: b", 0.026)
    '{value: 5.91 us, kind: measured, source: x, locator: "a: b", spread: 0.026}'
    """
    text = f"{{value: {value}, kind: {kind}, source: {source}"
    if locator:
        text += f', locator: "{locator}"'
    return text + (f", spread: {spread:.2g}}}" if spread is not None else "}")


def write_entries(link: str, block: str, labels: Sequence[str], entries: Sequence[Entry]) -> None:
    """Replace the entries of a list that have the same labels; keep the others; add what is new.

    Parameters
    ----------
    link : str
        Id of the link.
    block : str
        Key of the list: ``collectives`` or ``exchanges``.
    labels : sequence of str
        Keys that name an entry, such as ``collective`` and ``ranks``.
    entries : sequence of mapping
        Key -> text, in the order written.
    """
    path = LINKS / f"{link}.yaml"
    lines = path.read_text(encoding="utf-8").splitlines()
    start, end = _block(lines, block)
    known: list[Entry] = [*_entries(lines[start:end])]
    merged = {tuple(entry[label] for label in labels): entry for entry in [*known, *entries]}
    text = [f"{block}:"]
    for entry in merged.values():
        for number, (key, value) in enumerate(entry.items()):
            text += f"{'    ' if number else '  - '}{key}: {value}".replace(": \n", ":\n").splitlines()
    lines[max(start - 1, 0) if start <= len(lines) and end > start else start : end] = text
    part = path.with_suffix(".part")
    part.write_text("\n".join(lines) + "\n", encoding="utf-8")
    part.replace(path)


def _block(lines: Sequence[str], block: str) -> tuple[int, int]:
    """First line behind the key of a list and the first that no longer belongs to it; both the end if there is none."""
    if f"{block}:" not in lines:
        return len(lines), len(lines)
    start = lines.index(f"{block}:") + 1
    end = start
    while end < len(lines) and lines[end].startswith(" "):
        end += 1
    return start, end


def _entries(lines: Sequence[str]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    key = ""
    for line in lines:
        if line.startswith("  - "):
            found.append({})
        if line.startswith("      "):  # inside the mapping above
            found[-1][key] += f"\n{line}"
            continue
        key, _, value = line[4:].partition(":")
        found[-1][key] = value.strip()
    return found
