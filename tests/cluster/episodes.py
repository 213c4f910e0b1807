"""Two invented episodes of one group, with texts that would harm a page that trusted them."""

from envs.contract import End, Task
from rollout.types import Group, Trajectory, Turn

HOSTILE = '</pre><script>alert("x")</script><img src=https://example.org onerror=alert(1)>'
WORDS = {5: "<|user|>", 6: "find ", 7: HOSTILE, 40: "guess", 2: "<end>", 8: "\n", 9: "higher", 41: "8"}


def trajectory(*, group: int, member: int, reward: float, text: str = "guess") -> Trajectory:
    """The worked example of `rollout.types.Trajectory`, with an action of two tokens, a reply of two, and another action."""
    turns = (
        Turn(start=3, token_ids=(40, 2), logp_old=(-0.7, -0.01), text=text, observation="higher", reward=0.0, valid=True,
             first_version=3, last_version=3),
        Turn(start=7, token_ids=(41, 2), logp_old=(-1.5, -0.02), text=text, observation=HOSTILE, reward=reward, valid=False,
             first_version=3, last_version=4),
    )  # fmt: skip
    return Trajectory(
        task=Task(id=f"toy/{HOSTILE}", env="toy", split="train", level="1", seed=0),
        group=group,
        member=member,
        seed=11,
        token_ids=(5, 6, 7, 40, 2, 8, 9, 41, 2),
        action_mask=(0, 0, 0, 1, 1, 0, 0, 1, 1),
        logp_old=(0.0, 0.0, 0.0, -0.7, -0.01, 0.0, 0.0, -1.5, -0.02),
        turns=turns,
        end=End.SOLVED if reward else End.OUT_OF_TURNS,
        summary={"repeats": 1.0},
    )


GROUP = Group(trajectories=(trajectory(group=0, member=0, reward=1.0), trajectory(group=0, member=1, reward=0.0, text=HOSTILE)))
CREDITS = [[0.5, 0.5, 0.5, 0.5], [-0.5, -0.25, 0.0, -0.5]]
