"""The pieces of report.html: pure functions from data to HTML in which every text from a run is escaped.

A transcript is what a model and an environment wrote, so it is never trusted: it is escaped here, and the page's content
security policy forbids every script but the page's own, and every address.
"""

from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any

from cluster.show.format import MISSING, duration, fixed, number

Trajectory = Mapping[str, Any]

# The last name is a part that lies inside this one: an environment answers while the generators are waited for.
_TIMES = (
    ("generate", "time/generate_s", "#2f9e44", "time/environment_s"),
    ("environment", "time/environment_s", "#f08c00", None),
    ("learn", "time/learn_s", "#1971c2", None),
    ("push weights", "time/push_s", "#ae3ec9", "time/attest_s"),
    ("attest weights", "time/attest_s", "#e64980", None),
    ("controller", "time/controller_s", "#868e96", "time/credit_s"),
    ("credit", "time/credit_s", "#0c8599", None),
)
_OTHER_COLOUR = "#adb5bd"
_SHOWN_TOKENS = 4000


def rows_table(rows: Sequence[tuple[str, str]]) -> str:
    """Two columns: a name and its value."""
    return f"<table>{''.join(f'<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>' for name, value in rows)}</table>"


def tile(name: str, value: str, note: str = "") -> str:
    """One large number."""
    small = [f'<span class="soft">{escape(text)}</span>' for text in (name, note)]
    return f'<div class="card tile">{small[0]}<b>{escape(value)}</b>{small[1]}</div>'


def time_split(records: Sequence[Mapping[str, Any]]) -> str:
    """One stacked bar: the mean seconds of each part of a step; what the parts do not explain is called other."""
    means: dict[str, float] = {}
    for name in [*(name for _, name, _, _ in _TIMES), "time/step_s"]:
        measured = [value for record in records if (value := number(record, name)) is not None]
        if measured:
            means[name] = fmean(measured)
    parts = [(label, max(means[name] - means.get(inner or "", 0.0), 0.0), colour) for label, name, colour, inner in _TIMES if name in means]
    step_seconds = means.get("time/step_s", 0.0)
    rest = step_seconds - sum(seconds for _, seconds, _ in parts)
    if rest > 0.001 * step_seconds:
        parts.append(("other", rest, _OTHER_COLOUR))
    whole = sum(seconds for _, seconds, _ in parts)
    if whole <= 0:
        return '<span class="soft">No times were measured.</span>'
    cells = "".join(
        f'<div style="width:{100 * seconds / whole:.3f}%;background:{colour}" data-t="{label}: {duration(seconds)}"></div>'
        for label, seconds, colour in parts
    )
    rows = "".join(
        f'<tr><td><span class="swatch" style="background:{colour}"></span>{label}</td>'
        f'<td class="soft">{seconds / whole:.1%}</td><td>{duration(seconds)}</td></tr>'
        for label, seconds, colour in parts
    )
    step = f"<tr><td>a step, on average</td><td></td><td>{duration(step_seconds)}</td></tr>" if step_seconds else ""
    return f'<div class="stack">{cells}</div><table>{rows}{step}</table>'


def choose(trajectories: Sequence[Trajectory], groups: int = 2, members: int = 3) -> list[Trajectory]:
    """A few telling trajectories: groups whose rewards differ come first, and of each group its best and worst members."""
    by_group: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_group.setdefault(trajectory["group"], []).append(trajectory)
    mixed_first = sorted(by_group.values(), key=lambda group: len({member["reward"] for member in group}) == 1)
    chosen: list[Trajectory] = []
    for group in mixed_first[:groups]:
        ranked = sorted(group, key=lambda member: -(member["reward"] or 0.0))
        chosen += ranked if len(ranked) <= members else [*ranked[: members - 1], ranked[-1]]
    return chosen


def transcript(trajectory: Trajectory, *, opened: bool) -> str:
    """One trajectory, folded: chat bubbles whose tokens say id, log-prob, mask, version and credit when pointed at."""
    solved = "solved" if trajectory["end"] == "solved" else ""
    head = (
        f'<b>{escape(str(trajectory["task"]))}</b> <span class="badge {solved}">{escape(str(trajectory["end"]))}</span> '
        f'<span class="soft">level {escape(str(trajectory["level"]))} · group {trajectory["group"]} · member {trajectory["member"]} · '
        f"reward {fixed(trajectory['reward'], '.4g')} · {len(trajectory['turns'])} turns</span>"
    )
    summary = " · ".join(f"{escape(str(name))} {fixed(number(trajectory['summary'], name), '.4g')}" for name in trajectory["summary"])
    foot = f'<div class="soft">{summary}</div>' if summary else ""
    body = f'<div class="chat">{"".join(_bubbles(trajectory))}</div>{foot}'
    return f'<details class="card"{" open" if opened else ""}><summary>{head}</summary>{body}</details>'


def _bubbles(trajectory: Trajectory) -> list[str]:
    turns = trajectory["turns"]
    largest = max((abs(credit) for credit in trajectory.get("credit", ()) if credit is not None), default=0.0)
    first = turns[0]["start"] if turns else len(trajectory["token_ids"])
    bubbles = [_bubble("prompt", "", "", _tokens(trajectory, 0, first, None, largest))]
    # A text is shown beside the tokens only where the tokens have no text of their own.
    written = "tokens" in trajectory
    for position, turn in enumerate(turns):
        start, stop = turn["start"], turn["start"] + turn["length"]
        who = f"policy · turn {position + 1} · reward {fixed(number(turn, 'reward'), '.4g')}{'' if turn['valid'] else ' · invalid action'}"
        tokens = _tokens(trajectory, start, stop, turn["versions"], largest)
        bubbles.append(_bubble(who, "policy", "" if written else turn["text"], tokens))
        if position + 1 < len(turns):
            tokens = _tokens(trajectory, stop, turns[position + 1]["start"], None, largest)
            bubbles.append(_bubble("environment", "", "" if written else turn["observation"], tokens))
        elif turn["observation"]:
            bubbles.append(_bubble("environment · the episode ended here, so the policy never read this", "", turn["observation"], ""))
    return bubbles


def _bubble(who: str, kind: str, said: str, tokens: str) -> str:
    words = f'<div class="said">{escape(said)}</div>' if said else ""
    strip = f'<div class="tokens">{tokens}</div>' if tokens else ""
    return f'<div class="bubble {kind}"><span class="who">{escape(who)}</span>{words}{strip}</div>'


def _tokens(trajectory: Trajectory, start: int, stop: int, versions: Sequence[int] | None, largest: float) -> str:
    """The tokens start..stop-1: coloured by credit if the policy sampled them, grey if they were given to it."""
    shown = range(start, min(stop, start + _SHOWN_TOKENS))
    spans = [_token(trajectory, position, versions, largest) for position in shown]
    rest = f'<span class="given"> … {stop - shown.stop} more tokens</span>' if stop > shown.stop else ""
    return "".join(spans) + rest


def _token(trajectory: Trajectory, position: int, versions: Sequence[int] | None, largest: float) -> str:
    token_id, sampled = trajectory["token_ids"][position], trajectory["action_mask"][position]
    credit = trajectory["credit"][position] if "credit" in trajectory else None
    text = trajectory["tokens"][position] if "tokens" in trajectory else f"{token_id} "
    tip = f"token    {token_id}\nmask     {sampled}"
    kind, style = "t given", ""
    if not sampled and position and trajectory["action_mask"][position - 1]:
        text = text.replace("\n", "↵", 1)  # the template's line break after an action would open the bubble with an empty line
    if sampled:
        text = text.replace("\n", "↵\n") or "∅"
        version = MISSING if versions is None else str(versions[0]) if versions[0] == versions[1] else f"{versions[0]}..{versions[1]}"
        tip += f"\nlog-prob {fixed(trajectory['logp_old'][position], '.4f')}\nversion  {version}\ncredit   {fixed(credit, '+.4f')}"
        kind = "t"
        if credit:
            kind, style = ("t up" if credit > 0 else "t down"), f' style="--a:{0.12 + 0.43 * abs(credit) / largest:.2f}"'
    return f'<span class="{kind}"{style} data-t="{escape(tip)}">{escape(text)}</span>'
