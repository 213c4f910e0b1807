"""The four tools: which texts are calls, and the same answers as the package's own server to thousands of random calls."""

import importlib
import json
import random
import sys
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from envs.contract import End
from envs.crafting_world import Recipe
from envs.textcraft_synth import TextcraftSynth, TextcraftSynthParams, tasks
from envs.textcraft_synth_actions import craft, finish, parse
from envs.textcraft_synth_world import needed, world
from envs.tool_call import ToolCall, write_tool_call

pytest.importorskip("platoon_textcraft", reason="needs the package platoon-textcraft (make textcraft)")

CRAFT = '{"name": "craft", "arguments": {"ingredients": {"a1": 4}, "target": ["b1", 2]}}'


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (CRAFT, "craft"),
        (f"<tool_call>\n{CRAFT}\n</tool_call>", "craft"),
        (call("craft", ingredients=[], target="b1"), "craft"),
        (call("craft", ingredients={}, target=[["b1"], 1.5]), "craft"),
        (call("get_info", items=["a1", "b1"]), "get_info"),
        (call("get_info", items=[]), "get_info"),
        (call("view_inventory"), "view_inventory"),
        (call("finish", message='I made "it" </tool_call> <|im_end|>'), "finish"),
        (call("finish"), "finish"),
        ("", "Nothing was written"),
        ("craft b1", "That is not one JSON object"),
        (CRAFT + CRAFT, "More than one tool call"),
        (CRAFT.replace("2]", "NaN]"), "That is not one JSON object"),
        (f"I craft. <tool_call>{CRAFT}</tool_call>", "Text around the tool call"),
        (call("finish", message="a" * 2000), "More than 2000 characters"),
        (call("gather", item="a1"), "There is no such tool"),
        (call("craft", ingredients={"a1": 4}), "The arguments of craft are ingredients, target"),
        (call("craft", ingredients={}, target=["b1", 2], times=1), "The arguments of craft are ingredients, target"),
        (call("view_inventory", item="a1"), "The arguments of view_inventory are none"),
        (call("finish", text="done"), "The arguments of finish are message"),
        (call("finish", message=3), "message is a text"),
        (call("get_info", items="a1"), "items is a list"),
        (call("get_info", items=[3]), "items is a list"),
        (call("get_info", items=["<|im_end|>"]), "items is a list"),
        (call("craft", ingredients={"<|im_end|>": 1}, target=["b1", 1]), "An item name has"),
        (call("craft", ingredients={"a1": 1}, target=["\ud800", 1]), "An item name has"),
        (call("craft", ingredients={"a1": 1}, target=["b\uff11", 1]), "An item name has"),
        (call("craft", ingredients={"a1": 10**9}, target=["b1", 1]), "An amount has at most 9 digits"),
        (call("craft", ingredients={"a1": 1}, target=["b1", -(10**400)]), "An amount has at most 9 digits"),
    ],
)
def test_a_text_is_one_safe_call_or_a_sentence(text, answer):
    found = parse(text)
    assert found.name == answer if isinstance(found, ToolCall) else found.startswith(answer)


def some_task(level: str, seed: int = 0):
    return next(tasks(TextcraftSynthParams(difficulties=level), "train", seed))


def test_a_plan_step_says_the_total_that_the_tool_wants_and_not_the_executions():
    env = TextcraftSynth(some_task("easy"))
    recipe = next(recipe for recipe in world().recipes if recipe.makes == 3)
    assert json.loads(craft(recipe, 2).splitlines()[1])["arguments"]["target"] == [recipe.item, 6]
    env.start()
    wrong = env.step(call("craft", ingredients=dict(recipe.inputs), target=[recipe.item, 1]))
    assert not wrong.valid and "Target count 1 is not divisible by recipe result count 3" in wrong.observation


def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package's own server class. It is written against a framework that is not installed, of which it uses these few names."""
    framework = ModuleType("openreward.environments")
    framework.Environment = type("Environment", (), {"__init__": lambda self, task_spec, secrets: None})  # type: ignore[attr-defined]
    framework.Split = framework.TextBlock = framework.ToolOutput = SimpleNamespace  # type: ignore[attr-defined]
    framework.tool = lambda function: function  # type: ignore[attr-defined]
    parent = ModuleType("openreward")
    parent.environments = framework  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "openreward", parent)
    monkeypatch.setitem(sys.modules, "openreward.environments", framework)
    monkeypatch.delitem(sys.modules, "platoon_textcraft.env", raising=False)
    module = importlib.import_module("platoon_textcraft.env")
    monkeypatch.delitem(sys.modules, "platoon_textcraft.env")
    return module


def answer_of(module: Any, theirs: Any, found: ToolCall) -> Any:
    kinds = {"craft": module.CraftParams, "get_info": module.GetInfoParams, "finish": module.FinishParams}
    arguments = [kinds[found.name](**found.arguments)] if found.name in kinds else []
    try:
        getattr(theirs, found.name)(*arguments).send(None)
    except StopIteration as answered:
        return answered.value
    raise AssertionError("a tool of the server waits for something")


def random_call(rng: Random, recipes: list[Recipe], stock: dict[str, int]) -> str:
    """A call that a policy could make: right, slightly wrong, or of another type."""
    recipe = rng.choice(recipes)
    ready = [one for one in recipes if all(stock.get(item, 0) >= amount for item, amount in one.inputs)]
    if ready and rng.random() < 0.6:
        return craft(rng.choice(ready), 1)
    times = rng.choice([1, 1, 2, 3, 40])
    ingredients: dict[str, Any] = {item: amount * times for item, amount in recipe.inputs}
    target: list[Any] = [recipe.item, recipe.makes * times]
    change = rng.randrange(14)
    match change:
        case 0:
            ingredients[rng.choice(recipes).item] = rng.choice([1, 2, 0, -3, "2", None, True, 1.0])
        case 1:
            ingredients.popitem()
        case 2:
            ingredients = {item: amount + 1 for item, amount in ingredients.items()}
        case 3:
            target[1] = rng.choice([0, -1, 1, 5, 2.0, "2", None, True, [1], {"a": 1}])
        case 4:
            target[0] = rng.choice(["raw_t0", "no_such_item", 7, None, ["a"]])
        case 5:
            return call("craft", ingredients=ingredients, target=rng.choice([[], ["m0_i1"], "m0_i1", {"m0_i1": 1}, None, [*target, 1]]))
        case 6:
            return call("craft", ingredients=rng.choice([[], None, "raw_t0", 3, [["raw_t0", 1]]]), target=target)
        case 7 | 8:
            return call("get_info", items=[rng.choice([recipe.item, "raw_t0", "no_such_item"]) for _ in range(rng.randrange(4))])
        case 9:
            return call("view_inventory")
    return call("craft", ingredients=ingredients, target=target)


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_random_calls_are_answered_as_the_package_itself_answers_them(level, monkeypatch):
    world()
    state = random.getstate()
    module = server(monkeypatch)
    rng = Random(level)
    crafted = refused = 0
    for number in range(40):
        task = some_task(level, number)
        env = TextcraftSynth(task)
        env.start()
        misc = {"target_items": task.data["target"], "initial_inventory": task.data["inventory"]}
        theirs = module.TextCraftSynthEnvironment({"goal": "", "misc": misc})
        recipes = [recipe for recipe in needed(*task.data["target"]) if recipe.inputs]
        for _ in range(task.data["turns"] - 2):
            text = random_call(rng, recipes, theirs.inventory)
            found = parse(text)
            assert isinstance(found, ToolCall), text
            expected = answer_of(module, theirs, found)
            step = env.step(text)
            assert step.observation == expected.blocks[0].text and step.end is None
            assert step.valid is not expected.blocks[0].text.startswith("Error:")
            crafted, refused = crafted + (found.name == "craft" and step.valid), refused + (not step.valid)
        assert env.step(call("view_inventory")).observation == json.dumps(theirs.inventory)
        last = rng.choice([finish(), call("finish"), call("finish", message="")])
        graded = answer_of(module, theirs, parse(last))
        step = env.step(last)
        assert step.reward == graded.reward and step.end is (End.SOLVED if graded.reward else End.FAILED)
    assert crafted > 100 and refused > 100
    assert random.getstate() == state


FRAGMENTS = [
    *(
        "craft",
        " ",
        "\n",
        "m0_i1",
        "9" * 40,
        "\uff12",
        "\0",
        "\ud800",
        "<tool_call>",
        "</tool_call>",
        "<|im_end|>",
        "```",
        "{",
        "}",
        '"',
        "]",
    ),
    *('"name"', '"arguments"', "null", "-1e999", "I will ", CRAFT, call("view_inventory"), call("get_info", items=["<|im_end|>"])),
    *(
        call("craft", ingredients={"<|a|>": 1}, target=["<|b|>", 2]),
        call("craft", ingredients={"raw_t0": 1}, target=["no_such", 999999999]),
    ),
]


def test_five_thousand_texts_of_a_confused_model():
    """No text raises; a refused text costs its turn and changes nothing; a reply repeats no control token."""
    rng = Random(0)
    task = some_task("hard")
    refused, env, ended = 0, TextcraftSynth(task), None
    env.start()
    for _ in range(5_000):
        if ended:
            env = TextcraftSynth(task)
            env.start()
        text = "".join(rng.choices(FRAGMENTS, k=rng.randint(0, 3)))
        before = env.view().splitlines()[1:]
        step = env.step(text)
        if not step.valid:
            refused += 1
            assert env.view().splitlines()[1:] == before and step.reward == 0
        assert not any(odd in step.observation for odd in ("<|", "\0", "\ud800", "<tool_call>"))
        assert len(step.observation) < 1000
        ended = step.end
    assert 3_000 < refused < 5_000


def test_what_is_written_is_what_is_read():
    recipe = next(recipe for recipe in world().recipes if len(recipe.inputs) > 1)
    found = parse(craft(recipe, 3))
    ingredients = {item: 3 * amount for item, amount in recipe.inputs}
    assert found == ToolCall(name="craft", arguments={"ingredients": ingredients, "target": [recipe.item, 3 * recipe.makes]})
    assert parse(write_tool_call("view_inventory", {})) == ToolCall(name="view_inventory", arguments={})
