"""The embedded default policy: a Llama of about 0.3 million parameters, built from a config and a tokenizer, no download."""

from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from learner.model import export_model


class TinyModelConfig(BaseModel):
    """The shape of the tiny Llama. With a vocabulary of 200 the defaults give 0.32 million parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden_size: int = Field(128, ge=32, description="Width; heads times the head size, which must be 32 or 64.")
    layers: int = Field(2, ge=1, description="Transformer blocks.")
    heads: int = Field(4, ge=1, description="Attention heads.")
    kv_heads: int = Field(2, ge=1, description="Key and value heads; divides the number of heads.")
    intermediate_size: int = Field(256, ge=1, description="Width of the MLP.")
    max_position: int = Field(1024, ge=1, description="Longest sequence in tokens.")
    tie_embeddings: bool = Field(True, description="Input and output embeddings are one tensor.")
    seed: int = Field(0, description="Seed of the random weights.")

    @model_validator(mode="after")
    def _check_heads(self) -> "TinyModelConfig":
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}; every key head serves the same number of heads"
            )
        if self.hidden_size not in (32 * self.heads, 64 * self.heads):
            raise ValueError(
                f"hidden_size={self.hidden_size} with heads={self.heads} is a head size of {self.hidden_size / self.heads:g}; vLLM's CPU "
                f"attention supports 32 and 64: set hidden_size to {32 * self.heads} or {64 * self.heads}"
            )
        return self


def build_tiny(out_dir: Path, tokenizer: Any, config: TinyModelConfig) -> None:
    """Write a randomly initialised `LlamaForCausalLM` and its tokenizer as a Hugging Face folder; same seed, same bytes.

    `tokenizer` is a tokenizer with an end token, or the folder of one. Raises `InputError` if `out_dir` exists.
    """
    if isinstance(tokenizer, str | Path):
        tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        lm = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.kv_heads,
                max_position_embeddings=config.max_position,
                tie_word_embeddings=config.tie_embeddings,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
                architectures=["LlamaForCausalLM"],
            )
        ).float()
    export_model(lm.state_dict(), lm.config, tokenizer, out_dir)
