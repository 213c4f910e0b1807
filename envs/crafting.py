"""Crafting: gather, mine, craft and smelt up a technology tree until the goal is in stock, in twice the shortest plan and four turns.

One action a turn executes one recipe once. The world is new in every task, so that its recipes must be read, not remembered.
`envs.crafting_world` draws worlds, `envs.crafting_plan` solves them, `envs.crafting_tasks` has settings, levels and splits.
"""

from collections.abc import Mapping

from envs.contract import End, EnvSpec, Message, Step, Task
from envs.crafting_actions import GRAMMARS, Action
from envs.crafting_players import PLAYERS
from envs.crafting_state import Problem, Refusal
from envs.crafting_tasks import CraftingParams, at_level, levels, max_turns, read, tasks
from envs.crafting_text import Voice, view, voice
from envs.metrics import Reduction

MAX_UNPARSABLE = 3
_GRAIN = 1024
"""Potentials are multiples of 1/1024, which floats add without rounding, so that a success scores exactly 1.0."""
_NOTES = {
    End.SOLVED: "goal reached",
    End.FAILED: "dead end: the goal is out of reach with what is left",
    End.OUT_OF_TURNS: "out of turns",
    End.INVALID_ACTIONS: f"{MAX_UNPARSABLE} turns in a row without an action",
}


class Crafting:
    """One episode. The rewards of a failure add up to `shaping * progress` at most, those of a success to 1.0."""

    def __init__(self, task: Task) -> None:
        self._state, self._names = read(task)
        self._items = {name: item for item, name in self._names.items()}
        self._parse, write = GRAMMARS[task.data["grammar"]]
        example = write(Action(verb="craft", item=self._names[self._state.goal]))
        ready, asked = task.data["ready"], task.data["asked"]
        self._voice: Voice = voice(task.data["grammar"], self._names, ready=ready, asked=asked, example=example)
        self._known = [] if asked else list(reversed(self._state.recipes))
        self._turns_left: int = task.data["turns"]
        self._shaping: float = task.data["shaping"]
        self._length = sum(self._state.plan().values())
        self._paid = 0.0
        self._executed = self._refused = self._unparsable = self._in_a_row = self._lookups = 0
        self._ended = False

    def start(self) -> tuple[Message, ...]:
        """One user message: the goal, the recipes from the highest tier down, the stock, the turns."""
        return (Message(role="user", content=self._voice.prompt(self._state, self._known, self._turns_left)),)

    def step(self, text: str) -> Step:
        """Take one action. Refused and unparsable ones change nothing and cost their turn like any other."""
        assert not self._ended, "step was called after the episode had ended"
        self._turns_left -= 1
        action = self._parse(text)
        if isinstance(action, str):
            self._unparsable += 1
            self._in_a_row += 1
            return self._answer(action, valid=False)
        self._in_a_row = 0
        if action.verb == "stock":
            return self._answer(self._voice.stock(self._state))
        item = self._items.get(action.item, "")
        if action.verb == "info":
            return self._tell(item)
        done = self._state.execute(action.verb, item)
        if isinstance(done, Refusal):
            return self._refuse(done)
        self._executed += 1
        return self._answer(self._voice.done(self._state, done))

    def summary(self) -> Mapping[str, float]:
        """How the episode went. An action is wasted if it was executed and the shortest plan did not become shorter."""
        done = self._length - sum(self._state.plan().values())
        return {
            "progress": max(done, 0) / self._length,
            "wasted": float(self._executed - done),
            "refused": float(self._refused),
            "unparsable": float(self._unparsable),
            "lookups": float(self._lookups),
            "dead_end": float(not self._state.is_solvable()),
        }

    def view(self) -> str:
        """The state as a person reads it."""
        return view(self._state, self._known, self._names, self._turns_left)

    def _tell(self, item: str) -> Step:
        recipe = self._state.by_item.get(item)
        if recipe is None:
            return self._refuse(Refusal(problem=Problem.UNKNOWN_ITEM))
        self._lookups += 1
        if recipe not in self._known:
            self._known.append(recipe)
        return self._answer(self._voice.recipe(self._state, recipe))

    def _refuse(self, refusal: Refusal) -> Step:
        self._refused += 1
        return self._answer(self._voice.refused(self._state, refusal), valid=False)

    def _answer(self, reply: str, *, valid: bool = True) -> Step:
        end = self._end()
        if end is not None:
            self._ended = True
            reply = f"{reply}\n{_NOTES[end]}"
        return Step(observation=reply, reward=self._reward(end), end=end, valid=valid)

    def _end(self) -> End | None:
        if self._state.reached:
            return End.SOLVED
        if self._in_a_row == MAX_UNPARSABLE:
            return End.INVALID_ACTIONS
        if not self._state.is_solvable():
            return End.FAILED
        return End.OUT_OF_TURNS if self._turns_left == 0 else None

    def _reward(self, end: End | None) -> float:
        """The change of the potential `shaping * share of the shortest plan that is done`; on success, what is missing to 1.

        Potential-based shaping (Ng, Harada and Russell 1999, equation 2, without discount): the rewards of a part of an episode depend on
        where it begins and ends alone, so that no detour pays.
        """
        if end is End.SOLVED:
            return 1.0 - self._paid
        if not self._shaping:
            return 0.0
        done = max(self._length - sum(self._state.plan().values()), 0) / self._length
        reward = int(self._shaping * done * _GRAIN) / _GRAIN - self._paid
        self._paid += reward
        return reward


def hint(task: Task) -> str:
    """What the shortest plan does most often, and how often: a quantity, without an order.

    >>> hint(next(tasks(CraftingParams(levels="L2"), "train", 0)))
    'Hint: gather oak log 2 times.'
    """
    state, names = read(task)
    item, times = max(state.plan().items(), key=lambda pair: pair[1])
    return f"Hint: {state.by_item[item].verb} {names[item]} {times} {'time' if times == 1 else 'times'}."


def _best_success(params: CraftingParams) -> float:
    """1: every task comes with a plan that fits its turns, which its generator proves."""
    return 1.0


SPEC = EnvSpec(
    name="crafting",
    summary="Gather, craft and smelt up a technology tree until you hold the goal.",
    params=CraftingParams,
    tasks=tasks,
    make=Crafting,
    players=PLAYERS,
    metrics={
        "progress": Reduction.MEAN,
        "wasted": Reduction.MEAN,
        "refused": Reduction.MEAN,
        "unparsable": Reduction.MEAN,
        "lookups": Reduction.MEAN,
        "dead_end": Reduction.MEAN,
    },
    max_turns=max_turns,
    best_success=_best_success,
    hint=hint,
    view=Crafting.view,
    levels=levels,
    at_level=at_level,
)
