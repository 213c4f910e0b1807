"""Read and write Hugging Face model folders: what is missing is said before anything is loaded, and a folder is whole or absent."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from envs.errors import InputError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json")
_LOGIT_CHANGES = {"final_logit_softcapping": None, "logits_scaling": 1.0, "logit_scale": 1.0}


def load_model(path: str, dtype: torch.dtype) -> Any:
    """A causal language model from a local folder or a hub name, dropout off, every weight present.

    `path` is a folder with config.json, weights and tokenizer, or a hub name that `transformers` can resolve. Dropout is
    set to 0 because the sampler has none: with it the learner would score another policy than the one that acted.
    Raises `InputError` if something is missing or broken, or if the model changes its logits after the output layer.
    """
    check_folder(path)
    transformers_logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(path)
        for name in vars(config):
            if name.endswith(("dropout", "pdrop")):
                setattr(config, name, 0.0)
        lm, loading = AutoModelForCausalLM.from_pretrained(path, config=config, dtype=dtype, output_loading_info=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise InputError(
            f"model {path!r} cannot be loaded: {error}\nExpected a causal language model that `transformers` can read, as a local "
            "folder or a hub name; check the spelling, or copy the model again."
        ) from error
    if missing := sorted(loading["missing_keys"]) + sorted(str(key) for key in loading["mismatched_keys"]):
        raise InputError(
            f"model {path!r} has no usable weights for {', '.join(missing[:5])} ({len(missing)} in all); they would start at random. "
            "Copy the model again, or save it with its own config."
        )
    _check_head(path, lm)
    return lm


def check_folder(path: str) -> None:
    """Say what a local model folder lacks; a hub name passes. Raises `InputError`."""
    folder = Path(path)
    if not folder.is_dir():
        if folder.is_absolute() or path.startswith(".") or path.count("/") > 1:
            raise InputError(
                f"model folder {path!r} does not exist; expected a folder with config.json, weights and tokenizer, or a hub name"
            )
        return
    missing = []
    if not (folder / "config.json").is_file():
        missing.append("config.json")
    if not any(found for pattern in _WEIGHTS for found in folder.glob(pattern)):
        missing.append("weights (*.safetensors or pytorch_model*.bin)")
    if not any((folder / name).is_file() for name in _TOKENIZER):
        missing.append(f"tokenizer ({', '.join(_TOKENIZER[:-1])} or {_TOKENIZER[-1]})")
    if missing:
        raise InputError(f"model folder {path!r} lacks {' and '.join(missing)}; save model and tokenizer into it with `save_pretrained`")


def _check_head(path: str, lm: Any) -> None:
    if not isinstance(lm.get_output_embeddings(), torch.nn.Linear) or lm.base_model is lm:
        raise InputError(
            f"model {path!r} ({type(lm).__name__}) is not a backbone followed by one linear output layer; expected a causal language "
            "model such as Llama, Qwen, Mistral or SmolLM"
        )
    for name, neutral in _LOGIT_CHANGES.items():
        if (value := getattr(lm.config, name, neutral)) not in (None, neutral):
            raise InputError(
                f"model {path!r} changes its logits after the output layer ({name}={value}), which the learner does not do; its "
                "log-probs would differ from the sampler's. Use a model without it."
            )


def export_model(model_state: Mapping[str, torch.Tensor], config: Any, tokenizer: Any, out_dir: Path) -> None:
    """Write a Hugging Face folder (config, safetensors, tokenizer) that `transformers` and vLLM load; whole or not at all.

    `model_state` has the names of `lm.state_dict()`. Tied tensors are written once: the loader ties them again because
    `config.tie_word_embeddings` says so. `tokenizer` is a tokenizer, or the folder or hub name to take it from (its
    generation_config.json comes along). Raises `InputError` if `out_dir` exists.
    """
    state: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model_state.items():
        if tensor.data_ptr() not in seen or tensor.numel() == 0:
            seen.add(tensor.data_ptr())
            state[name] = tensor.detach().to("cpu").contiguous()
    dtype = next(iter(state.values())).dtype
    written = type(config).from_dict({**config.to_dict(), "dtype": str(dtype).removeprefix("torch.")})
    with new_folder(out_dir) as folder:
        written.save_pretrained(folder)
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        # safetensors writes through a private temporary file; another user's generator must be able to read the result.
        (folder / "model.safetensors").chmod(0o644)
        if isinstance(tokenizer, str | Path):
            if (generation := Path(tokenizer) / "generation_config.json").is_file():
                GenerationConfig.from_pretrained(generation.parent).save_pretrained(folder)
            tokenizer = AutoTokenizer.from_pretrained(tokenizer)
        tokenizer.save_pretrained(folder)


@contextmanager
def new_folder(out_dir: Path) -> Iterator[Path]:
    """A temporary sibling that becomes `out_dir` when the block ends, and vanishes if it raises.

    A sibling, because a rename is atomic only within one file system. Raises `InputError` if `out_dir` exists and is not empty.
    """
    if out_dir.exists() and (not out_dir.is_dir() or any(out_dir.iterdir())):
        raise InputError(
            f"{str(out_dir)!r} exists already; expected a new folder, so that nothing is overwritten: choose another or delete it"
        )
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.", dir=out_dir.parent))
    try:
        # mkdtemp makes a private folder; the model should be as readable as any folder that mkdir makes.
        temporary.chmod(0o755)
        yield temporary
        temporary.replace(out_dir)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
