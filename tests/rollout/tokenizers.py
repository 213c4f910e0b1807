"""Tokenizers and chat templates of several shapes, all on the same small vocabulary."""

from typing import Any

from rollout.tiny_tokenizer import CHATML, train_tokenizer

LLAMA3_LIKE = (
    "{{ '<|begin|>' }}{% for message in messages %}"
    "{{ '<|start_header|>' + message['role'] + '<|end_header|>\\n\\n' + message['content'] + '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header|>assistant<|end_header|>\\n\\n' }}{% endif %}"
)
INST_LIKE = (
    "{{ '<s>' }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ message['content'] + '</s>' }}"
    "{% elif message['role'] == 'user' %}{{ '[INST]' + message['content'] + '[/INST]' }}"
    "{% else %}{{ raise_exception('only user and assistant are supported') }}{% endif %}{% endfor %}"
)
TOOL_IN_USER = (
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}{{ '<|im_start|>user\\n<reply>\\n' + message['content'] + '\\n</reply><|im_end|>\\n' }}"
    "{% else %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SHAPES = {"chatml": (CHATML, "tool"), "llama3": (LLAMA3_LIKE, "tool"), "inst": (INST_LIKE, "user"), "tool_in_user": (TOOL_IN_USER, "tool")}
"""Template and the role under which it takes an environment's reply."""

STRIPS_REASONING = (
    "{% for message in messages %}"
    "{% set content = message['content'] if loop.last else message['content'].split('</think>\\n\\n')[-1] %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
DROPS_TOOL = CHATML.replace("{% for message in messages %}", "{% for message in messages if message['role'] != 'tool' %}")
NO_END_TOKEN = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
NUMBERS_ITS_TURNS = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + ' ' + loop.index|string + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant ' + (messages|length + 1)|string + '\\n' }}{% endif %}"
)
TEXTS = ("Find the number in 1-16. Write guess(8) and nothing else.", "guess(8)", "guess(12)", "higher", "lower", "correct")


def tokenizer(template: str | None = CHATML) -> Any:
    built = train_tokenizer(TEXTS * 20, vocab_size=420)
    built.add_special_tokens(
        {"additional_special_tokens": ["<|begin|>", "<|start_header|>", "<|end_header|>", "<|eot|>", "<s>", "</s>", "[INST]", "[/INST]"]}
    )
    built.chat_template = template
    return built
