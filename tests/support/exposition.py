"""Prometheus' text format 0.0.4, read as strictly as it is specified, so that a test sees what a scraper would stumble over."""

import re
from collections import defaultdict
from collections.abc import Mapping

import attrs

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SAMPLE = re.compile(rf"({_NAME.pattern})(?:\{{(.*)\}})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(?:,|$)')
_PARTS = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}

Labels = tuple[tuple[str, str], ...]


@attrs.define
class Family:
    """One metric: its kind, and its samples by the suffix of their name and by their labels."""

    kind: str
    samples: dict[tuple[str, Labels], float] = attrs.field(factory=dict)

    def value(self, suffix: str = "", **labels: str) -> float:
        """The sum of all samples that have these labels among theirs."""
        wanted = set(labels.items())
        found = [value for (part, own), value in self.samples.items() if part == suffix and wanted <= set(own)]
        assert found, (suffix, labels, list(self.samples))
        return sum(found)


def read_exposition(text: str) -> Mapping[str, Family]:
    """All families by name. Fails where the text is not what the format or Prometheus' conventions demand."""
    families: dict[str, Family] = {}
    helped, current = "", ""
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            helped = line.split(" ")[2]
            assert helped not in families, line
        elif line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            assert (current, kind in _PARTS) == (helped, True), line
            families[current] = Family(kind)
        else:
            _add(families[current], current, line)
    for name, family in families.items():
        assert family.samples, name
        if family.kind == "histogram":
            _check_histogram(name, family)
    return families


def _add(family: Family, name: str, line: str) -> None:
    match = _SAMPLE.fullmatch(line)
    assert match, line
    suffix = match[1].removeprefix(name)
    assert match[1] == name + suffix, line
    assert suffix in _PARTS[family.kind], line
    assert "".join(found[0] for found in _LABEL.finditer(match[2] or "")) == (match[2] or ""), line
    labels = tuple((found[1], found[2]) for found in _LABEL.finditer(match[2] or ""))
    assert (suffix, labels) not in family.samples, line
    family.samples[suffix, labels] = float(match[3])


def _check_histogram(name: str, family: Family) -> None:
    buckets: defaultdict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for (suffix, labels), value in family.samples.items():
        if suffix == "_bucket":
            bounds = dict(labels)
            others = tuple(label for label in labels if label[0] != "le")
            buckets[others].append((float(bounds["le"]), value))
    assert buckets, name
    for others, found in buckets.items():
        assert [bound for bound, _ in found] == sorted({bound for bound, _ in found}), name
        assert [value for _, value in found] == sorted(value for _, value in found), name
        assert found[-1] == (float("inf"), family.samples["_count", others]), name
        assert ("_sum", others) in family.samples, name
