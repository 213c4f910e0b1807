"""The contract checker: silent on the built-in environments, and each broken rule is found under its own name."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from envs.catalog import ENVS
from envs.check import check_env
from envs.contract import End, EnvSpec, Message, Step, Task
from envs.errors import InputError
from envs.metrics import Reduction
from envs.number_search import SPEC, NumberSearchParams


class Params(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Needy(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    size: int


class Loose(BaseModel):
    model_config = ConfigDict(frozen=True)


class Door:
    """A sound tiny environment: open the one door of five, in three turns, without any clue."""

    shared_turns = 0

    def __init__(self, task: Task) -> None:
        self.door: Any = task.data["door"]
        self.turns = 0
        self.refused = 0

    def start(self) -> Any:
        return (Message(role="user", content="Open a door, 0-4."),)

    def step(self, text: str) -> Any:
        self.turns += 1
        if not self.read(text):
            self.refused += 1
            end = End.INVALID_ACTIONS if self.refused == 3 else self.late()
            return Step(observation="write open and a digit", end=end, valid=False)
        self.refused = 0
        return self.answer(text == f"open {self.door}")

    def read(self, text: str) -> bool:
        return text in {f"open {door}" for door in range(5)}

    def answer(self, solved: bool) -> Any:
        return Step(observation="open", reward=1.0, end=End.SOLVED) if solved else Step(observation="shut", end=self.late())

    def late(self) -> End | None:
        return End.OUT_OF_TURNS if self.turns == 3 else None

    def summary(self) -> Any:
        return {"turns": float(self.turns)}


@dataclass
class Opener:
    """Opens the doors that `doors` gives, one after another."""

    doors: Iterator[int]

    def act(self, observation: str | None) -> str:
        return f"open {next(self.doors)}"


def tasks(params: Params, split: str, seed: int) -> Iterator[Task]:
    doors = {"train": iter(random.Random(seed).choices(range(5), k=100)), "eval": iter(range(5))}
    if split not in doors:
        raise InputError(f"no split {split!r}")
    return (Task(id=f"door/{door}", env="door", split=split, level="", seed=seed, data={"door": door}) for door in doors[split])


def in_any_order(task: Task, seed: int) -> Opener:
    return Opener(iter(random.Random(seed).sample(range(5), 5)))


DOOR = EnvSpec(
    name="door",
    summary="Open the right door.",
    params=Params,
    tasks=tasks,
    make=Door,
    players={"oracle": lambda task, seed: Opener(iter([int(task.data["door"])])), "plausible": in_any_order, "random": in_any_order},
    metrics={"turns": Reduction.MEAN},
    max_turns=lambda params: 3,
    best_success=lambda params: 1.0,
)


def rules_of(spec: EnvSpec, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setitem(ENVS, "door", spec)
    return {violation.rule: violation.message for violation in check_env(spec, episodes=16)}


@pytest.mark.parametrize("name", sorted(ENVS))
def test_the_built_in_environments_keep_the_contract(name):
    if name == "textcraft_synth":
        pytest.importorskip("platoon_textcraft", reason="needs the package platoon-textcraft (make textcraft)")
    assert check_env(ENVS[name], episodes=16) == []


@pytest.mark.parametrize(("numbers", "guesses", "shaping"), [(2, 1, 0), (16, 5, 0.5), (100, 7, 0)])
def test_number_search_keeps_it_in_other_sizes(numbers, guesses, shaping):
    assert check_env(SPEC, params=NumberSearchParams(numbers=numbers, guesses=guesses, shaping=shaping)) == []


def test_a_sound_environment_has_no_violation(monkeypatch):
    assert rules_of(DOOR, monkeypatch) == {}


class WrongRole(Door):
    def start(self) -> Any:
        return (Message(role="human", content="Open a door."),)


class NoMessages(Door):
    def start(self) -> Any:
        return ()


class RaisesAtStart(Door):
    def start(self) -> Any:
        raise RuntimeError("no map")


class ReturnsTuple(Door):
    def answer(self, solved: bool) -> Any:
        return ("open", 1.0, True)


class BoolReward(Door):
    def answer(self, solved: bool) -> Any:
        return replace(super().answer(solved), reward=solved)


class NanReward(Door):
    def answer(self, solved: bool) -> Any:
        return replace(super().answer(solved), reward=float("nan"))


class NumberAsObservation(Door):
    def answer(self, solved: bool) -> Any:
        return replace(super().answer(solved), observation=7)


class TextAsEnd(Door):
    def answer(self, solved: bool) -> Any:
        return replace(super().answer(solved), end="solved")


class EndOfTheCaller(Door):
    def answer(self, solved: bool) -> Any:
        return replace(super().answer(solved), end=End.ENV_ERROR)


class NeverEnds(Door):
    def late(self) -> End | None:
        return None


class OneTurnTooMany(Door):
    def late(self) -> End | None:
        return End.OUT_OF_TURNS if self.turns == 4 else None


class HalfReward(Door):
    def answer(self, solved: bool) -> Any:
        return replace(super().answer(solved), reward=0.5 * solved)


class GenerousFailure(Door):
    def answer(self, solved: bool) -> Any:
        return super().answer(solved) if solved or self.turns < 3 else Step(observation="shut", reward=1.0, end=End.OUT_OF_TURNS)


class OtherSummary(Door):
    def summary(self) -> Any:
        return {"steps": 1.0}


class TextSummary(Door):
    def summary(self) -> Any:
        return {"turns": "three"}


class Unseeded(Door):
    generator = random.Random(0)

    def answer(self, solved: bool) -> Any:
        return super().answer(solved) if solved else Step(observation=f"shut {self.generator.random()}", end=self.late())


class SharedState(Door):
    """Sound when played alone: every start clears what all instances share."""

    def start(self) -> Any:
        SharedState.shared_turns = 0
        return super().start()

    def answer(self, solved: bool) -> Any:
        SharedState.shared_turns += 1
        return super().answer(solved) if solved else Step(observation=f"shut {SharedState.shared_turns}", end=self.late())


class GlobalRandom(Door):
    def start(self) -> Any:
        random.seed(1)
        return super().start()


class TupleData(Door):
    """A tuple becomes a list in JSON."""

    def start(self) -> Any:
        return (Message(role="user", content=f"Open a door: {self.door!r}"),)


class RaisesOnNonsense(Door):
    def read(self, text: str) -> bool:
        return 0 <= int(text.removeprefix("open ")) < 5


class Lenient(Door):
    def read(self, text: str) -> bool:
        return text.split(" please")[0] in {f"open {door}" for door in range(5)}


class Echoes(Door):
    def step(self, text: str) -> Any:
        step = super().step(text)
        return step if step.valid else replace(step, observation=f"what is {text}?")


class Patient(Door):
    def step(self, text: str) -> Any:
        step = super().step(text)
        return step if step.end is not End.INVALID_ACTIONS else replace(step, end=End.OUT_OF_TURNS)


@pytest.mark.parametrize(
    ("broken", "rule", "words"),
    [
        (WrongRole, "messages", "role 'human'; expected one of system, user, assistant, tool"),
        (NoMessages, "messages", "expected a non-empty tuple of Message"),
        (RaisesAtStart, "raises", "RuntimeError: no map"),
        (ReturnsTuple, "step", "object of type tuple; expected a Step"),
        (BoolReward, "step", "(bool); expected a finite number"),
        (NanReward, "step", "the reward is nan"),
        (NumberAsObservation, "step", "the observation is 7 (int); expected text"),
        (TextAsEnd, "step", "expected a member of End"),
        (EndOfTheCaller, "step", "an environment that fails raises"),
        (NeverEnds, "ends", "no end after max_turns = 3"),
        (OneTurnTooMany, "ends", "no end after max_turns = 3"),
        (HalfReward, "reward", "a success scores exactly 1.0"),
        (GenerousFailure, "reward", "no failure may reach"),
        (OtherSummary, "summary", "summary has ['steps'], spec.metrics has ['turns']"),
        (TextSummary, "summary", "expected a name and a finite number"),
        (Unseeded, "deterministic", "the same actions gave another transcript"),
        (SharedState, "independent", "share no state"),
        (GlobalRandom, "global_random", "random.Random(seed)"),
        (RaisesOnNonsense, "hostile", "with empty text raised ValueError"),
        (Lenient, "hostile", "trailing text"),
        (Echoes, "hostile", "repeat no token"),
        (Patient, "invalid_actions", "ended as out_of_turns after 3"),
    ],
)
def test_a_broken_environment_is_found(broken, rule, words, monkeypatch):
    rules = rules_of(replace(DOOR, make=broken), monkeypatch)
    assert words in rules[rule]


def with_data(change: Callable[[int], Mapping[str, Any]]) -> Callable[[Params, str, int], Iterator[Task]]:
    return lambda params, split, seed: (replace(task, data=change(task.data["door"])) for task in tasks(params, split, seed))


@dataclass
class Counter:
    """A stream that goes on where the last caller left it."""

    calls: list[str] = field(default_factory=list)

    def __call__(self, params: Params, split: str, seed: int) -> Iterator[Task]:
        self.calls.append(split)
        return tasks(params, split, seed + len(self.calls))


def with_levels(params: Params, split: str, seed: int) -> Iterator[Task]:
    return (replace(task, level="even" if task.data["door"] % 2 == 0 else "odd") for task in tasks(params, split, seed))


def the_same(params: Params, level: str) -> Params:
    return params


@pytest.mark.parametrize(
    ("change", "rule", "words"),
    [
        ({"players": {"oracle": in_any_order}}, "players", "no scripted player plausible, random"),
        ({"players": {**DOOR.players, "oracle": lambda task, seed: Opener(iter([7, 7, 7]))}}, "players", "'open 7', which the environment"),
        ({"players": {**DOOR.players, "oracle": lambda task, seed: Opener(iter([]))}}, "players", "the player raised StopIteration"),
        ({"players": {**DOOR.players, "oracle": lambda task, seed: Opener(iter([0, 0, 0]))}}, "oracle", "oracle succeeds in 0.200"),
        ({"best_success": lambda params: 0.5}, "optimum", "an off-by-one or a leak"),
        ({"best_success": lambda params: 1.5}, "limits", "best_success is 1.5"),
        ({"max_turns": lambda params: 0}, "limits", "max_turns is 0"),
        ({"name": "dor"}, "name", "did you mean 'door'"),
        ({"params": Needy}, "params", "every field needs a default"),
        ({"params": Loose}, "params", "extra='forbid'"),
        ({"hint": lambda task: f"Hint: <|{task.data['door']}|>"}, "hint", "expected a sentence without control tokens"),
        ({"hint": lambda task: ""}, "hint", "the hint is ''"),
        ({"hint": lambda task: f"Hint: {random.random()}"}, "hint", "make it from the task alone"),
        ({"levels": lambda params: ("",)}, "levels", "the spec has one of levels and at_level"),
        ({"levels": lambda params: ["a"], "at_level": the_same}, "levels", "expected a tuple of different names"),
        ({"levels": lambda params: ("a", "a"), "at_level": the_same}, "levels", "expected a tuple of different names"),
        (
            {"levels": lambda params: ("odd",), "at_level": the_same, "tasks": with_levels},
            "levels",
            "of level 'even', which levels does not",
        ),
        (
            {"levels": lambda params: ("odd", "even"), "at_level": the_same, "tasks": with_levels},
            "levels",
            "at_level 'odd' gave task door/",
        ),
        (
            {"levels": lambda params: ("odd", "even"), "at_level": lambda params, level: 1 / 0, "tasks": with_levels},
            "levels",
            "ZeroDivision",
        ),
        ({"metrics": {"turns": "mean"}}, "metrics", "not a Reduction"),
        ({"tasks": lambda params, split, seed: tasks(params, "train", seed)}, "tasks", "an unknown split was accepted"),
        ({"tasks": Counter()}, "tasks", "other tasks for the same seed"),
        ({"tasks": with_data(lambda door: {"door": {door}})}, "json", "not plain JSON"),
        ({"tasks": with_data(lambda door: {"door": (door,)}), "make": TupleData}, "json", "after a JSON round trip"),
    ],
)
def test_a_broken_spec_is_found(change, rule, words, monkeypatch):
    rules = rules_of(replace(DOOR, **change), monkeypatch)
    assert words in rules[rule]


def test_another_spec_under_the_same_name_is_found(monkeypatch):
    monkeypatch.setitem(ENVS, "door", DOOR)
    (violation,) = check_env(replace(DOOR))
    assert str(violation).startswith("name: find('door') is another spec")


def test_the_check_leaves_the_global_generator_as_it_was(monkeypatch):
    state = random.getstate()
    rules_of(replace(DOOR, make=GlobalRandom), monkeypatch)
    assert random.getstate() == state
