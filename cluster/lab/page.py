"""The page of `pickaxe lab weights`: the same four episodes under every method, so that one sees that only the weight differs."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from cluster.lab.weights import GUESSES, SECRET, Episodes, Weighted, by_position, spread
from learner.explain import formula
from rollout.tiny_tokenizer import TURN_START
from rollout.types import Trajectory


def write_page(path: Path, episodes: Episodes, methods: Sequence[Weighted]) -> None:
    """Write one HTML file without any address or script in it."""
    template = Template((files("cluster") / "assets" / "lab_weights.html").read_text(encoding="utf-8"))
    first = episodes.group.trajectories[0]
    prompt = "".join(_given(piece, position) for position, piece in enumerate(episodes.pieces[0][: episodes.prompt_tokens]))
    page = template.substitute(
        secret=SECRET,
        count=len(GUESSES),
        limit=episodes.generation_limit,
        prompt_tokens=episodes.prompt_tokens,
        prompt=prompt,
        heads="".join(f"<th>{_name(trajectory)}</th>" for trajectory in episodes.group.trajectories),
        overview="".join(_overview(weighted) for weighted in methods),
        blocks="".join(_block(episodes, weighted) for weighted in methods),
        task=escape(first.task.id),
    )
    path.write_text(page, encoding="utf-8")


def _name(trajectory: Trajectory) -> str:
    guesses = " ".join(str(guess) for guess in GUESSES[trajectory.member])
    return f'{guesses} <span class="soft">· R = {trajectory.reward:g}</span>'


def _overview(weighted: Weighted) -> str:
    row = weighted.plan.method
    cells = []
    for weights in weighted.weights:
        middle = sum(weights) / len(weights)
        cells.append(f'<td class="{_sign(middle)}" style="--a:{_strength(middle, weighted.largest)}">{spread(weights)}</td>')
    return f'<tr><td><a href="#{escape(row.name)}">{escape(row.name)}</a></td>{"".join(cells)}</tr>'


def _block(episodes: Episodes, weighted: Weighted) -> str:
    row = weighted.plan.method
    lines = []
    for trajectory, pieces, weights in zip(episodes.group.trajectories, episodes.pieces, weighted.weights, strict=True):
        laid = list(zip(pieces, by_position(trajectory, weights), strict=True))
        spans: list[list[str]] = [[]]
        for position, (piece, weight) in list(enumerate(laid))[episodes.prompt_tokens :]:
            if piece == TURN_START:
                spans.append([])
            spans[-1].append(_given(piece, position) if weight is None else _sampled(piece, position, weight, weighted.largest))
        tokens = "".join(f'<span class="turn">{"".join(span)}</span>' for span in spans)
        head = f'<div class="who">{_name(trajectory)} · {len(weights)} sampled tokens · w = {spread(weights)}</div>'
        lines.append(f'<div class="episode">{head}<div class="tokens"><span class="given">[prompt]</span> {tokens}</div></div>')
    return (
        f'<section class="card" id="{escape(row.name)}" data-method="{escape(row.name)}"><h3>{escape(row.name)}'
        f' <span class="soft">{escape(row.summary)}</span></h3>{"".join(lines)}'
        f"<details><summary>The formula</summary><pre>{escape(formula(weighted.plan))}</pre></details></section>"
    )


def _given(piece: str, position: int) -> str:
    return f'<span class="t given" title="token {position}: given, not sampled; no weight">{_shown(piece)}</span>'


def _sampled(piece: str, position: int, weight: float, largest: float) -> str:
    tip = f"token {position}: sampled; weight {weight:+.6g}"
    style = f' style="--a:{_strength(weight, largest)}"' if weight else ""
    return f'<span class="t {_sign(weight)}"{style} data-w="{weight!r}" title="{tip}">{_shown(piece)}</span>'


def _shown(piece: str) -> str:
    return escape(piece).replace("\n", "↵")


def _sign(weight: float) -> str:
    return "up" if weight > 0 else "down" if weight < 0 else "zero"


def _strength(weight: float, largest: float) -> str:
    """Opacity of the colour: the largest weight of the method is full, so that blocks compare by pattern and not by scale."""
    return f"{0.12 + 0.43 * abs(weight) / largest:.2f}" if weight else "0"
