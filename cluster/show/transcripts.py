"""Transcripts: every trajectory of a step as one line of JSON, with mask, log-prob, version and credit on its tokens.

A number that a token does not have (log-prob and credit of a token that the policy did not sample) is null, not 0.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from envs.errors import InputError
from rollout.types import Group, Trajectory

Decode = Callable[[Sequence[int]], str]
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LONGEST_CHARACTER = 4  # bytes of UTF-8, so at most as many byte-level tokens


def write_trajectories(
    path: Path,
    groups: Sequence[Group],
    credits: Sequence[Sequence[float]] | None = None,
    decode: Decode | None = None,
) -> None:
    """Write all trajectories of `groups` to `path`, atomically: the file is whole or it is not there.

    `credits` has one row a trajectory, in the order of the groups and their members, with one number for each SAMPLED token,
    as `learner.credit.credit` returns it. `decode` turns token ids into text; it adds the text of every single token.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    rows = [None] * len(trajectories) if credits is None else credits
    assert len(rows) == len(trajectories), f"{len(rows)} rows of credit for {len(trajectories)} trajectories"
    pieces = _Pieces(decode) if decode is not None else None
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            for trajectory, row in zip(trajectories, rows, strict=True):
                json.dump(_record(trajectory, row, pieces), file, allow_nan=False, ensure_ascii=False)
                file.write("\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_trajectories(path: Path) -> list[dict[str, Any]]:
    """The objects that `write_trajectories` wrote. Raises `InputError` if the file is missing or not such a file."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no {path}; expected a file of transcripts, such as runs/NAME/trajectories/STEP.jsonl")
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    except ValueError as error:
        raise InputError(f"{path} is not a file of transcripts ({error}); expected one JSON object a line") from error


def _record(trajectory: Trajectory, credit: Sequence[float] | None, pieces: "_Pieces | None") -> dict[str, Any]:
    mask = trajectory.action_mask
    record: dict[str, Any] = {
        "task": trajectory.task.id,
        "level": trajectory.task.level,
        "group": trajectory.group,
        "member": trajectory.member,
        "seed": trajectory.seed,
        "reward": trajectory.reward,
        "end": trajectory.end.value,
        "error": trajectory.error,
        "departures": [departure.value for departure in trajectory.departures],
        "turns": [
            {
                "start": turn.start,
                "length": len(turn.token_ids),
                "text": turn.text,
                "observation": turn.observation,
                "reward": turn.reward,
                "valid": turn.valid,
                "versions": [turn.first_version, turn.last_version],
            }
            for turn in trajectory.turns
        ],
        "token_ids": list(trajectory.token_ids),
        "action_mask": list(mask),
        "logp_old": [logp if sampled else None for logp, sampled in zip(trajectory.logp_old, mask, strict=True)],
        "summary": dict(trajectory.summary),
    }
    if credit is not None:
        assert len(credit) == sum(mask), f"{len(credit)} numbers of credit for {sum(mask)} sampled tokens"
        values: Iterator[float] = iter(credit)
        record["credit"] = [float(next(values)) if sampled else None for sampled in mask]
    if pieces is not None:
        record["tokens"] = pieces.split(trajectory.token_ids)
    return record


class _Pieces:
    """The text of each token. A character spread over several tokens belongs to the last of them; the others are empty."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._known: dict[tuple[int, ...], str] = {}

    def split(self, token_ids: Sequence[int]) -> list[str]:
        """One text a token."""
        texts = []
        pending: tuple[int, ...] = ()
        for token_id in token_ids:
            pending = (*pending, token_id)
            if pending not in self._known:
                self._known[pending] = self._decode(list(pending))
            text = self._known[pending]
            if text.endswith(_REPLACEMENT) and len(pending) < _LONGEST_CHARACTER:
                texts.append("")
                continue
            texts.append(text)
            pending = ()
        if pending:
            texts[-1] = self._known[pending]
        return texts
