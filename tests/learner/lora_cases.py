"""Textbook LoRA in bare PyTorch, and the worker process of the adapters' tests; a spawned process imports this module."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from learner.config import AlgorithmConfig, LoraConfig
from learner.learner import Learner
from tests.learner.engine_cases import SPLITS, batch, place, sgd, split

RANK, ALPHA = 4, 6
LORA = LoraConfig(rank=RANK, alpha=ALPHA)
KL = AlgorithmConfig(method="reinforce", kl_coef=2.0, kl_estimator="k2")
"""A KL whose gradient is that of its own value, so that the textbook can take it by autograd."""
LR = 0.5
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
Weights = Mapping[str, torch.Tensor]


def factors(folder: Path) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """A and B of an exported adapter by the Hugging Face name of their matrix, in float64."""
    found = {name: factor.double() for name, factor in load_file(folder / "adapter_model.safetensors").items()}
    stems = {name.removesuffix(".lora_A.weight") for name in found if name.endswith(".lora_A.weight")}
    assert len(found) == 2 * len(stems)
    return {
        stem.removeprefix("base_model.model.") + ".weight": (found[f"{stem}.lora_A.weight"], found[f"{stem}.lora_B.weight"])
        for stem in stems
    }


def merged(weights: Weights, ab: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """W + (alpha / rank) B A for each matrix that has a B and an A, the other weights as they are."""
    return {name: weight + ALPHA / RANK * ab[name][1] @ ab[name][0] if name in ab else weight for name, weight in weights.items()}


def textbook(
    model: str, weights: Weights, start: Mapping[str, tuple[torch.Tensor, torch.Tensor]], steps: int
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """A and B after `steps` of SGD on the whole batch in float64, with the KL to the policy of `weights`."""
    lm, whole = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64), batch()
    mask_BT = whole.mask_BT[:, 1:]
    credit_M, inverse_z_M = (values_BT[:, 1:][mask_BT] for values_BT in (whole.credit_BT, whole.inverse_z_BT))

    def logp_M(of: Weights) -> torch.Tensor:
        logits_BTV = torch.func.functional_call(lm, dict(of), (whole.token_ids_BT,)).logits[:, :-1]
        return logits_BTV.log_softmax(-1).gather(2, whole.token_ids_BT[:, 1:, None]).squeeze(2)[mask_BT]

    reference_M = logp_M(weights).detach()
    ab = {name: (a.clone(), b.clone()) for name, (a, b) in start.items()}
    for _ in range(steps):
        flat = [factor.detach().requires_grad_() for pair in ab.values() for factor in pair]
        ab = {name: (flat[2 * number], flat[2 * number + 1]) for number, name in enumerate(ab)}
        now_M = logp_M(merged(weights, ab))
        kl = 0.5 * ((now_M - reference_M) ** 2 * inverse_z_M).sum()
        loss = -(credit_M * inverse_z_M * now_M).sum() + KL.kl_coef * kl
        flat = [one.detach() - LR * gradient for one, gradient in zip(flat, torch.autograd.grad(loss, flat), strict=True)]
        ab = {name: (flat[2 * number], flat[2 * number + 1]) for number, name in enumerate(ab)}
    return ab


def run_lora_rank(rank: int, world_size: int, model: str, out: Path) -> None:
    """With every ZeRO stage, as one rank: two steps, a new phase, two steps more; keep weights, shapes and log-probs."""
    results = {}
    for stage in range(4):
        config = sgd(stage).model_copy(update={"lora": LORA, "lr": LR})
        one = Learner(model, config, KL, total_steps=2, timeout_s=60, **place(rank, world_size, out, f"lora {stage}"))
        one.export(out / f"start {stage}")
        found = [_two_steps(one, rank, world_size)]
        one.export(out / f"after {stage}")
        one.begin(KL, config, 2)
        one.export(out / f"folded {stage}")
        found.append(_two_steps(one, rank, world_size))
        results[stage] = found
        one.close()
    torch.save(results, out / f"lora{rank}.pt")


def _two_steps(one: Learner, rank: int, world_size: int) -> dict:
    metrics = [one.train_step(split(SPLITS[world_size][-1], rank, world_size)) for _ in range(2)]
    return {
        "weights": {name: weight.clone() for name, weight in one.named_weights()},
        "announced": one.weights_metadata(),
        "logprobs": one.logprobs(batch().token_ids_BT[:2].tolist()),
        "kl": [float(step["learner/kl_ref_nats"].value) for step in metrics],
    }
