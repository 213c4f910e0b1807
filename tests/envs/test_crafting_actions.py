"""The grammars of crafting: one action or a sentence, for every text, and the same action from both."""

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.crafting import SPEC, Crafting, CraftingParams
from envs.crafting_actions import GRAMMARS, VERBS, Action, parse_call, parse_line, write_call, write_line

CRAFT = Action(verb="craft", item="oak plank")
CALL = '{"name": "craft", "arguments": {"item": "oak plank"}}'


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("craft oak plank", CRAFT),
        ("mine m2_i5", Action(verb="mine", item="m2_i5")),
        ("info oak plank", Action(verb="info", item="oak plank")),
        ("stock", Action(verb="stock")),
        ("", "Nothing was written"),
        (" ", "No action was found"),
        ("plank", "No action was found"),
        ("Craft oak plank", "No action was found"),
        ("craft", "That is no item name"),
        ("craft ", "That is no item name"),
        ("craft  oak plank", "That is no item name"),
        ("craft oak plank ", "That is no item name"),
        ("craft oak plank\n", "That is no item name"),
        ("craft oak plank.", "That is no item name"),
        ("craft Oak plank", "That is no item name"),
        ("craft m\uff12_i5", "That is no item name"),
        ("craft m2_i\u0665", "That is no item name"),
        ("craft oak plank<|im_end|>", "That is no item name"),
        ("craft oak\0plank", "That is no item name"),
        ("craft m" + "9" * 50, "That is no item name"),
        ("stock now", "That is no item name"),
        (" craft oak plank", "Text around the action"),
        ("I craft oak plank", "Text around the action"),
        ("craft oak plank craft oak plank", "2 actions"),
        ("craft oak plank\ngather oak log\nstock", "3 actions"),
        ("craft m" + "9" * 5000, "More than 300 characters"),
    ],
)
def test_a_line_is_one_action_or_a_sentence(text, answer):
    found = parse_line(text)
    assert found == answer if isinstance(answer, Action) else isinstance(found, str) and found.startswith(answer)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (CALL, CRAFT),
        (f"<tool_call>\n{CALL}\n</tool_call>", CRAFT),
        (f" {CALL}\n", CRAFT),
        ('{"arguments":{"item":"oak plank"},"name":"craft"}', CRAFT),
        ('{"name": "\\u0063raft", "arguments": {"item": "oak plank"}}', CRAFT),
        ('{"name": "view_inventory", "arguments": {}}', Action(verb="stock")),
        ('{"name": "get_info", "arguments": {"item": "oak plank"}}', Action(verb="info", item="oak plank")),
        ("", "Nothing was written"),
        ("<tool_call></tool_call>", "Nothing was written"),
        ("craft oak plank", "That is not one JSON object"),
        (CALL + CALL, "More than one tool call"),
        (f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>", "More than one tool call"),
        (f"<tool_call>{CALL}</tool_call>.", "Text around the tool call"),
        (f"Now I craft. <tool_call>{CALL}</tool_call>", "Text around the tool call"),
        (f"<tool_call>{CALL}", "Text around the tool call"),
        (f"{CALL} please", "That is not one JSON object"),
        (f"{CALL}<|im_end|>", "That is not one JSON object"),
        (f"[{CALL}]", "A tool call is a JSON object"),
        ("null", "A tool call is a JSON object"),
        ('"craft"', "A tool call is a JSON object"),
        ('{"name": "craft"}', "A tool call is a JSON object"),
        ('{"name": "craft", "arguments": {"item": "a"}, "id": 1}', "A tool call is a JSON object"),
        ('{"name": "craft", "name": "mine", "arguments": {"item": "a"}}', "That is not one JSON object"),
        ('{"name": "Craft", "arguments": {"item": "a"}}', "There is no such tool"),
        ('{"name": "info", "arguments": {"item": "a"}}', "There is no such tool"),
        ('{"name": 3, "arguments": {"item": "a"}}', "A tool call is a JSON object"),
        ('{"name": ["craft"], "arguments": {"item": "a"}}', "A tool call is a JSON object"),
        ('{"name": "craft", "arguments": "oak plank"}', "A tool call is a JSON object"),
        ('{"name": "craft", "arguments": {}}', "craft takes exactly one argument"),
        ('{"name": "craft", "arguments": {"item": "a", "count": 2}}', "craft takes exactly one argument"),
        ('{"name": "craft", "arguments": {"item": 7}}', "craft takes exactly one argument"),
        ('{"name": "craft", "arguments": {"item": "Oak plank"}}', "craft takes exactly one argument"),
        ('{"name": "craft", "arguments": {"item": "m\uff12_i5"}}', "craft takes exactly one argument"),
        ('{"name": "view_inventory", "arguments": {"item": "a"}}', "view_inventory takes no arguments"),
        ('{"name": "view_inventory", "arguments": null}', "A tool call is a JSON object"),
        ("9" * 200, "A tool call is a JSON object"),
        ("9" * 5000, "More than 300 characters"),
        ("[" * 300, "That is not one JSON object"),
        ("\ud800", "That is not one JSON object"),
        ("NaN", "That is not one JSON object"),
    ],
)
def test_a_call_is_one_action_or_a_sentence(text, answer):
    found = parse_call(text)
    assert found == answer if isinstance(answer, Action) else isinstance(found, str) and found.startswith(answer)


@settings(deadline=None)
@given(st.sampled_from([*VERBS, "info"]), st.from_regex(r"\A[a-z0-9_]{1,9}( [a-z0-9_]{1,9})?\Z"))
def test_both_grammars_read_what_they_write_as_the_same_action(verb, item):
    action = Action(verb=verb, item=item)
    assert parse_call(write_call(action)) == action
    assert parse_line(write_line(action)) == action or {*item.split()} & {*VERBS, "info", "stock"}
    stock = Action(verb="stock")
    assert parse_line(write_line(stock)) == stock == parse_call(write_call(stock))


FRAGMENTS = [
    *("craft", "gather ", "mine", "smelt", "info", "stock", " ", "\n", " m0_i1", " m1_i2", "oak plank", "9" * 40, "\uff12", "\0", "\ud800"),
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_end|>", "I will ", "```json\n", "```", "{", "}", '"', ":", ",", "[", "]"),
    *('{"name": "craft", "arguments": {"item": "m1_i2"}}', '"name"', '"arguments"', '"item"', "null", "-1e999", "\\u0000", "."),
]


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_ten_thousand_texts_of_a_confused_model(grammar):
    """No text raises; a text that is refused costs its turn and changes nothing; a reply repeats no control token."""
    random = Random(0)
    task = next(SPEC.tasks(CraftingParams(grammar=grammar, skin="opaque", levels="L4"), "train", 0))
    player = SPEC.players["oracle"](task, 0)
    fragments = [*FRAGMENTS, *(player.act(None) for _ in range(8))]
    refused = 0
    env = ended = None
    for _ in range(10_000):
        if env is None or ended:
            env = Crafting(task)
            env.start()
        text = "".join(random.choices(fragments, k=random.randint(0, 4)))
        before = env.view().splitlines()
        step = env.step(text)
        after = env.view().splitlines()
        if not step.valid:
            refused += 1
            assert after[1:] == before[1:] and after[0] != before[0] and step.reward == 0
        assert not any(odd in step.observation for odd in ("<|", "\0", "\ud800", "<tool_call>"))
        assert len(json.dumps(step.observation)) < 1000
        ended = step.end
    assert 5_000 < refused < 10_000
