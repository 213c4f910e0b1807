"""Data, reference step and worker process of the engine tests; a module of its own, because a spawned process imports it."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from learner.config import AlgorithmConfig, LearnerConfig, TinyModelConfig
from learner.learner import Learner
from learner.tiny import build_tiny
from learner.types import MicroBatch

VOCAB = 61
ROWS = 8
LENGTH = 12
REINFORCE = AlgorithmConfig(method="reinforce")
ACTOR_CRITIC = AlgorithmConfig(method="actor_critic", value_coef=0.5)
VALUE_LR = 0.02
SPLITS = {1: ([8], [3, 0, 5]), 2: ([4], [1, 3], [0, 4])}
"""For each number of ranks: how a rank's rows are cut into micro-batches; 0 is a micro-batch without a sampled token."""


def write_model(folder: Path, tied: bool) -> str:
    """A small Llama with a tokenizer, as a Hugging Face folder; under ZeRO-3 some of its tensors are sharded and some are not."""
    words = {token: number for number, token in enumerate(["<pad>", "<end>", *(f"w{i}" for i in range(VOCAB - 2))])}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words)), pad_token="<pad>", eos_token="<end>")
    shape = TinyModelConfig(hidden_size=128, layers=2, heads=4, kv_heads=2, intermediate_size=96, tie_embeddings=tied, seed=3)
    build_tiny(folder, tokenizer, shape)
    return str(folder)


def batch() -> MicroBatch:
    """All rows of one optimiser step; row 3 has no sampled token, the ranks have different numbers of them."""
    generator = torch.Generator().manual_seed(1)
    shape = (ROWS, LENGTH)
    mask_BT = torch.rand(shape, generator=generator) < torch.linspace(0.2, 0.7, ROWS)[:, None]
    mask_BT[:, 0] = False
    mask_BT[3] = False
    return MicroBatch(
        token_ids_BT=torch.randint(2, VOCAB, shape, generator=generator),
        mask_BT=mask_BT,
        credit_BT=torch.randn(shape, generator=generator) * mask_BT,
        inverse_z_BT=mask_BT / 10,
        logp_old_BT=-torch.rand(shape, generator=generator) * mask_BT,
        on_policy_BT=torch.zeros(shape, dtype=torch.bool),
    )


def value_batch() -> MicroBatch:
    """`batch` with targets for V."""
    whole = batch()
    target_BT = torch.randn(whole.mask_BT.shape, generator=torch.Generator().manual_seed(2)) * whole.mask_BT
    return replace(whole, value_target_BT=target_BT, value_old_BT=torch.zeros_like(target_BT))


def rows(whole: MicroBatch, start: int, stop: int) -> MicroBatch:
    """Rows `start..stop-1`; if there are none, one row without a sampled token."""
    if start == stop:
        return MicroBatch(**{name: None if value is None else torch.zeros_like(value[:1]) for name, value in vars(whole).items()})
    return MicroBatch(**{name: None if value is None else value[start:stop] for name, value in vars(whole).items()})


def split(sizes: list[int], rank: int, world_size: int, whole: MicroBatch | None = None) -> list[MicroBatch]:
    """The micro-batches of one rank, which owns a contiguous share of the rows."""
    whole = whole or batch()
    start = rank * ROWS // world_size
    parts = []
    for size in sizes:
        parts.append(rows(whole, start, start + size))
        start += size
    return parts


def naive_logp(lm: torch.nn.Module, token_ids_BT: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Log-probs of all tokens from the second on, from the model's own logits, by a softmax over everything: shape (B, T - 1)."""
    logits_BTV = lm(token_ids_BT).logits[:, :-1] / temperature
    return logits_BTV.log_softmax(-1).gather(2, token_ids_BT[:, 1:, None]).squeeze(2)


def reference_step(model: str, lr: float, max_norm: float) -> tuple[dict[str, torch.Tensor], float, float]:
    """One SGD step in bare PyTorch on the whole batch: the new weights, the gradient's norm before clipping, and the loss."""
    lm = AutoModelForCausalLM.from_pretrained(model)
    whole = batch()
    loss = -((whole.credit_BT * whole.inverse_z_BT)[:, 1:] * naive_logp(lm, whole.token_ids_BT)).sum()
    loss.backward()
    norm = float(torch.nn.utils.clip_grad_norm_(lm.parameters(), max_norm or float("inf")))
    return {name: (weight - lr * weight.grad).detach() for name, weight in lm.named_parameters()}, norm, loss.item()


def reference_value_steps(model: str, separate: bool) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Two SGD steps of policy and value in bare PyTorch; the policy's new weights, and V at the sampled tokens after them.

    Two, because the head starts at 0: in the first step no gradient of V reaches a backbone.
    """
    lm, whole = AutoModelForCausalLM.from_pretrained(model), value_batch()
    body = AutoModelForCausalLM.from_pretrained(model).model if separate else lm.model
    weight, bias = torch.zeros(lm.config.hidden_size, requires_grad=True), torch.zeros(1, requires_grad=True)
    trained = {id(one): one for one in [*lm.parameters(), *body.parameters(), weight, bias]}.values()
    mask_BT = whole.mask_BT[:, 1:]

    def value_M() -> torch.Tensor:
        return (body(input_ids=whole.token_ids_BT).last_hidden_state[:, :-1] @ weight + bias)[mask_BT]

    for _ in range(2):
        logp_M, inverse_z_M = naive_logp(lm, whole.token_ids_BT)[mask_BT], whole.inverse_z_BT[:, 1:][mask_BT]
        error_M = value_M() - whole.value_target_BT[:, 1:][mask_BT]
        loss = -(whole.credit_BT[:, 1:][mask_BT] * inverse_z_M * logp_M).sum() + 0.5 * (0.5 * error_M**2 * inverse_z_M).sum()
        for one, gradient in zip(trained, torch.autograd.grad(loss, list(trained), allow_unused=True), strict=True):
            if gradient is not None:
                one.data -= VALUE_LR * gradient
    return {name: one.detach() for name, one in lm.named_parameters()}, value_M().detach()


def value_steps(learner: Learner, sizes: list[int], rank: int, world_size: int) -> dict:
    """The same two steps through the learner: weights, their announced names, this rank's judgement of all rows, metrics."""
    parts = split(sizes, rank, world_size, value_batch())
    metrics = [learner.train_step(parts) for _ in range(2)]
    judged = learner.judge(value_batch().token_ids_BT.tolist(), value_batch().mask_BT.int().tolist())
    return {
        "weights": {name: weight.clone() for name, weight in learner.named_weights()},
        "names": [name for name, *_ in learner.weights_metadata()],
        "values": {number: torch.from_numpy(one.values_T).float() for number, one in judged.items()},
        "metrics": metrics[-1],
    }


def value_learner(model: str, zero_stage: int, algorithm: AlgorithmConfig = ACTOR_CRITIC, **place: Any) -> Learner:
    """A learner for `value_steps`; a micro-batch of judged rows holds two of them."""
    config = sgd(zero_stage).model_copy(update={"lr": VALUE_LR, "micro_batch_tokens": 2 * LENGTH})
    return Learner(model, config, algorithm, total_steps=2, timeout_s=60, **place)


def place(rank: int, world_size: int, out: Path, meeting: str) -> dict[str, Any]:
    """Where a rank of a `Learner` is: the ranks meet in a file, a new one for every group."""
    return {"rank": rank, "world_size": world_size, "store": dist.FileStore(str(out / f"meeting {meeting}"), world_size)}


def sgd(zero_stage: int, max_grad_norm: float = 0.0) -> LearnerConfig:
    """SGD with a rate at which one step is visible, and chunks so small that the ranks have different numbers of them."""
    return LearnerConfig(optimizer="sgd", lr=0.5, warmup_steps=0, max_grad_norm=max_grad_norm, zero_stage=zero_stage, head_chunk_tokens=3)


def cases(models: dict[bool, str], world_size: int) -> list[tuple[str, str, int, float, list[int]]]:
    """Name, model, ZeRO stage, clipping norm and split of every step that must equal the reference step."""
    return [
        (f"tied={tied} zero={stage} clip={clip} split={sizes}", model, stage, clip, sizes)
        for tied, model in models.items()
        for stage in range(4)
        for clip, sizes in [(0.0, sizes) for sizes in SPLITS[world_size]] + [(0.5, SPLITS[world_size][-1])]
    ]


def run_rank(rank: int, world_size: int, models: dict[bool, str], out: Path) -> None:
    """Take every case's step as one rank, between two looks at log-probs, and once more from the same base; keep what came out."""
    results = {}
    for name, model, stage, clip, sizes in cases(models, world_size):
        learner = Learner(model, sgd(stage, clip), REINFORCE, total_steps=1, timeout_s=60, **place(rank, world_size, out, name))
        probe = batch().token_ids_BT[:2].tolist()
        before = learner.logprobs(probe)
        learner.begin(REINFORCE, sgd(stage, clip), 1, "mark")
        metrics = learner.train_step(split(sizes, rank, world_size))
        after = learner.logprobs(probe)
        weights = {name: weight.clone() for name, weight in learner.named_weights()}
        shapes = {name: shape for name, _, shape in learner.weights_metadata()}
        learner.export(out / f"export {name}")
        learner.begin(REINFORCE, sgd(stage, clip), 1, "base")
        restarted = learner.logprobs(probe)
        learner.train_step(split(sizes, rank, world_size))
        again = {name: weight.clone() for name, weight in learner.named_weights()}
        results[name] = (weights, shapes, metrics, before, after, restarted, again)
        learner.close()
    torch.save(results, out / f"rank{rank}.pt")
    learner = value_learner(models[True], 3, **place(rank, world_size, out, "value"))
    torch.save(value_steps(learner, SPLITS[world_size][-1], rank, world_size), out / f"value{rank}.pt")
    learner.close()


def run_rank_then_fall_silent(rank: int, world_size: int, models: dict[bool, str], out: Path) -> None:
    """`run_rank`, and then rank 1 stays away from a collective: rank 0 writes down how that ends."""
    run_rank(rank, world_size, models, out)
    learner = Learner(models[True], sgd(3), REINFORCE, total_steps=1, timeout_s=3, **place(rank, world_size, out, "silent"))
    verdict = out / "silent_peer.txt"
    if rank == 0:
        started = time.monotonic()
        try:
            learner.logprobs([[5, 6, 7]])
        except RuntimeError as error:
            verdict.write_text(f"{time.monotonic() - started:.1f} {error}")
        else:
            verdict.write_text("no error")
    else:
        deadline = time.monotonic() + 60
        while not verdict.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
