"""The embedded default policy: a Llama of about 0.3 million parameters, built from a config and a tokenizer, no download."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from learner.config import TinyModelConfig
from learner.model import export_model


def build_tiny(out_dir: Path, tokenizer: Any, config: TinyModelConfig) -> None:
    """Write a randomly initialised `LlamaForCausalLM` and its tokenizer as a Hugging Face folder; same seed, same bytes.

    `tokenizer` is a tokenizer with an end token, or the folder of one. Raises `InputError` if `out_dir` exists.
    """
    if isinstance(tokenizer, str | Path):
        tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        lm = LlamaForCausalLM(llama_config(tokenizer, config)).float()
    export_model(lm.state_dict(), lm.config, tokenizer, out_dir)


def llama_config(tokenizer: Any, config: TinyModelConfig) -> Any:
    """The tiny policy's architecture as `transformers` takes it, for the words of `tokenizer`."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        max_position_embeddings=config.max_position,
        tie_word_embeddings=config.tie_embeddings,
        initializer_range=config.init_std,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        architectures=["LlamaForCausalLM"],
    )
