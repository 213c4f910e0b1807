"""Numbers as a person reads them: in the live view, in the summary table and in the report.

A number that is missing, null or not finite is shown as a dash and never as 0: "not measured" is not "none".
"""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

MISSING = "–"  # noqa: RUF001 - an en dash, so that it is not read as a minus sign
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"


def number(metrics: Mapping[str, Any], name: str) -> float | None:
    """The value of `name`; None if it is missing, not a number, or not finite."""
    value = metrics.get(name)
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        return None
    return float(value)


def fixed(value: float | None, spec: str = ".3f") -> str:
    """The value in one format specification, or a dash."""
    return MISSING if value is None else format(value, spec)


def count(value: float | None) -> str:
    """A count or a rate with about three digits: 7.25, 345, 12.3k, 4.56M."""
    if value is None:
        return MISSING
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scaled = value / (1e3 if suffix == "k" else limit)
            return f"{scaled:.3g}{suffix}" if abs(scaled) < 999.5 else f"{scaled:.0f}{suffix}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def duration(seconds: float | None, *, coarse: bool = False) -> str:
    """A time span: 0.042 s, 0.51 s, 32.0 s, 2 min 05 s, 1 h 03 min; `coarse` leaves fractions of a second out."""
    if seconds is None:
        return MISSING
    if seconds < 59.5:
        return f"{seconds:.{0 if coarse else 3 if seconds < 0.1 else 2 if seconds < 10 else 1}f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def bar(share: float | None, width: int) -> str:
    """A horizontal bar of `width` cells, filled from the left in eighths of a cell."""
    eighths = round(min(max(share or 0.0, 0.0), 1.0) * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[part] if part else "")).ljust(width)


def sparkline(values: Sequence[float | None], width: int, *, low: float = 0.0, high: float = 1.0) -> str:
    """The newest `width` values as one line of bars between `low` and `high`; a missing value is a gap."""
    span = (high - low) or 1.0
    cells = []
    for value in list(values)[-width:] if width > 0 else []:
        share = None if value is None else min(max((value - low) / span, 0.0), 1.0)
        cells.append(" " if share is None else _LEVELS[round(share * (len(_LEVELS) - 1))])
    return "".join(cells)
