"""One rank of the learner: micro-batches in, new weights and metrics out.

Shape suffixes: `_B` rows, `_T` padded token positions, `_M` sampled tokens of a micro-batch in row-major order.

Simplifications: every rank loads the whole model before ZeRO-3 shards it; the frozen reference of a KL is a whole copy on
every rank, except with LoRA, and so is the base that a phase can go back to; a separate value model starts from the weights that
were loaded, and rests in phases that learn no value. Every method but `weights_metadata` is a collective: the ranks call it
together, with their own micro-batches.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from torch.distributed.distributed_c10d import Store

from envs.errors import InputError
from envs.metrics import Metric, Reduction, merge_metrics
from learner.config import AlgorithmConfig, LearnerConfig
from learner.deal import deal
from learner.engine import Engine, join, leave
from learner.judge import by_row, padded
from learner.logprob import PolicyModel
from learner.lora import export_adapter
from learner.loss import entropy_loss, policy_loss, regulariser_scale, token_weights, value_loss
from learner.model import DTYPES, export_model, load_model
from learner.optimiser import learning_rate
from learner.plan import resolve
from learner.reference import FrozenBase, FrozenCopy, Reference
from learner.types import Judgement, MicroBatch

Start = Literal["here", "mark", "base"]
"""Where a phase begins: at the weights as they are; there, and they become the base; or at the base."""
_PHASE = ("lr", "schedule", "warmup_steps", "minibatches", "epochs", "micro_batch_tokens", "max_logprob_gap")
"""Settings that may differ between the phases of a run; all others are built into the engine."""


class Learner:
    """A policy, its optimiser and, if the algorithm has a KL, the policy's frozen copy.

    Example, one rank: `learner = Learner("model", config, algorithm, temperature=1.0, total_steps=100)`, then
    `learner.train_step(step.micro_batches[0])` for each `OptimizerStep`. `temperature` is the sampler's; log-probs are taken
    at it. Several ranks meet in `store`. `timeout_s` is the deadline of every collective. Raises `InputError` for a bad model,
    method or combination.
    """

    def __init__(
        self,
        model_path: str,
        config: LearnerConfig,
        algorithm: AlgorithmConfig,
        *,
        temperature: float = 1.0,
        total_steps: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        store: Store | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        torch.manual_seed(seed)
        self._model_path = model_path
        self._temperature = temperature
        self._rank = rank
        self._world_size = world_size
        self._config = config
        self._reference: Reference | None = None
        self._base_as_loaded = True
        self._base: dict[str, torch.Tensor] = {}
        value = algorithm.value if resolve(algorithm).needs_value else None
        self._policy = self._load(config.gradient_checkpointing, value).train()
        self._device = join(rank, world_size, store, timeout_s)
        self._engine = Engine(self._policy, config, self._device, seed)
        self.begin(algorithm, config, total_steps)

    def begin(self, algorithm: AlgorithmConfig, config: LearnerConfig, total_steps: int, start: Start = "here") -> None:
        """Begin a phase of training, such as RL after a cold start, at `start`.

        The optimiser's moments are fresh, the learning rate starts its warm-up and runs over `total_steps` optimiser steps, and
        the reference of a KL is the policy of this moment. Adapters are folded into their base and start again.
        Raises `InputError` if `config` changes what is built already.
        """
        fixed = [name for name in type(config).model_fields if name not in _PHASE]
        if changed := [name for name in fixed if getattr(config, name) != getattr(self._config, name)]:
            raise InputError(f"a phase cannot change learner.{changed[0]}; only {', '.join(_PHASE)} may differ between phases")
        self._config = config
        self._plan = resolve(algorithm)
        if self._plan.needs_value and self._policy.value != algorithm.value:
            raise InputError(
                f"method {algorithm.method} learns a {algorithm.value} value, but the learner was built with "
                f"{self._policy.value or 'none'}; build it with the algorithm of its last phase"
            )
        self._total_steps = total_steps
        self._step = 0
        self._policy.entropy_gradient = algorithm.entropy_coef > 0
        if start != "base" and self._engine.fold():
            self._base_as_loaded = False
        if start == "mark":
            self._base = {name: weight.to("cpu", copy=True) for name, weight in self._engine.named_weights()}
        if start != "here":
            assert self._base, "no phase has marked its weights as the base"
            # Set when they are marked too: master weights of higher precision then begin every phase at the same point.
            self._engine.set_weights(self._base)
        self._engine.reset_moments()
        self._reference = None
        if self._plan.kl_coef > 0:
            self._reference = (
                FrozenCopy(self._load(False, None), self._engine.named_weights(), self._device)
                if config.lora is None
                else FrozenBase(self._engine)
            )

    def train_step(self, micro_batches: Sequence[MicroBatch]) -> dict[str, Metric]:
        """One optimiser step on this rank's micro-batches; all ranks must have the same number of them.

        Any split of the same rows over micro-batches and ranks gives the same step. Returns this rank's metrics, to be reduced
        over the ranks: means count the tokens that had a weight, `learner/loss` is a sum, because 1/Z is global, and
        `sync/sampler_learner_gap` is the largest `|logp - logp_old|` of the tokens marked on-policy, left out if there is none;
        `sync/compared_tokens` is how many there are.
        Raises `FloatingPointError` if the gradient is not finite.
        """
        assert micro_batches, "a step without micro-batches; every rank gets at least an empty one"
        parts = [self._accumulate(part, last=part is micro_batches[-1]) for part in micro_batches]
        lr = learning_rate(self._config, self._step, self._total_steps)
        norm = self._engine.step(lr)
        self._step += 1
        return merge_metrics(parts) | {"learner/grad_norm": Metric(value=norm), "learner/lr": Metric(value=lr)}

    def _accumulate(self, part: MicroBatch, last: bool) -> dict[str, Metric]:
        token_ids_BT, mask_BT = part.token_ids_BT.to(self._device), part.mask_BT.to(self._device).bool()
        credit_M, inverse_z_M, logp_old_M, on_policy_M = (
            values_BT.to(self._device)[mask_BT] for values_BT in (part.credit_BT, part.inverse_z_BT, part.logp_old_BT, part.on_policy_BT)
        )
        # Before the forward pass that backward belongs to: the reference may be the same modules.
        ref_logp_M = self._reference.logp(token_ids_BT, mask_BT) if self._reference else None
        logp_M, entropy_M, value_M = self._engine.forward(token_ids_BT, mask_BT, with_value=self._plan.needs_value)
        regularise = regulariser_scale(self._plan.config, self._step, self._total_steps)
        w_M, metrics = token_weights(
            self._plan,
            credit_M=credit_M,
            inverse_z_M=inverse_z_M,
            logp_old_M=logp_old_M,
            logp_M=logp_M,
            ref_logp_M=ref_logp_M,
            row_M=mask_BT.nonzero(as_tuple=True)[0],
            regularise=regularise,
        )
        loss = policy_loss(w_M, logp_M)
        if value_M is not None:
            assert part.value_target_BT is not None and part.value_old_BT is not None, "a micro-batch without value targets"
            target_M, old_M = (values_BT.to(self._device)[mask_BT] for values_BT in (part.value_target_BT, part.value_old_BT))
            settings = self._plan.config.value_coef, self._plan.config.value_clip
            regression = value_loss(*settings, value_M=value_M, target_M=target_M, old_M=old_M, inverse_z_M=inverse_z_M)
            metrics["value/loss"] = Metric(value=regression.item(), reduction=Reduction.SUM)
            loss = loss + regression
        if self._policy.entropy_gradient:
            loss = loss + entropy_loss(regularise * self._plan.config.entropy_coef, entropy_M=entropy_M, inverse_z_M=inverse_z_M)
        self._engine.backward(loss, last)
        counted_M = inverse_z_M > 0
        tokens = int(counted_M.sum())
        metrics["learner/loss"] = Metric(value=loss.item(), reduction=Reduction.SUM)
        metrics["learner/tokens"] = Metric(value=tokens, reduction=Reduction.SUM)
        if tokens:
            metrics["learner/entropy_nats"] = Metric(value=entropy_M.detach()[counted_M].mean().item(), weight=tokens)
        metrics["sync/compared_tokens"] = Metric(value=int(on_policy_M.sum()), reduction=Reduction.SUM)
        if on_policy_M.any():
            gap = (logp_M.detach() - logp_old_M)[on_policy_M.bool()].abs().max().item()
            metrics["sync/sampler_learner_gap"] = Metric(value=gap, reduction=Reduction.MAX)
        return metrics

    @torch.no_grad()
    def judge(self, rows: Sequence[Sequence[int]], masks: Sequence[Sequence[int]]) -> dict[int, Judgement]:
        """What credit needs to know of the sampled tokens (mask 1) of each row: V(h_t), and the reference's log-probs in nats.

        Every rank is given all rows and judges a share; the shares of all ranks together have every row number once. A part
        that the plan does not need is None.
        """
        judged = {}
        share = deal([len(row) for row in rows], ranks=self._world_size, budget=self._config.micro_batch_tokens)[self._rank]
        for numbers in share:
            token_ids_BT, mask_BT = padded([rows[number] for number in numbers], [masks[number] for number in numbers])
            token_ids_BT, mask_BT = token_ids_BT.to(self._device), mask_BT.to(self._device)
            value_M = self._engine.forward(token_ids_BT, mask_BT, with_value=True)[2] if self._plan.needs_value else None
            ref_logp_M = self._reference.logp(token_ids_BT, mask_BT) if self._reference else None
            values, ref_logps = (by_row(values_M, mask_BT) for values_M in (value_M, ref_logp_M))
            for number, values_T, ref_logp_T in zip(numbers, values, ref_logps, strict=False):
                judged[number] = Judgement(values_T=values_T, ref_logp_T=ref_logp_T)
        return judged

    @torch.no_grad()
    def logprobs(self, rows: Sequence[Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        """The log-prob of every token but the first of each row, in nats, at `temperature`: one list of `len(row) - 1` a row."""
        lengths = torch.tensor([len(row) for row in rows])
        positions_T = torch.arange(int(lengths.max()))
        mask_BT = (positions_T < lengths[:, None]) & (positions_T > 0)
        token_ids_BT = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        logp_M, *_ = self._engine.forward(token_ids_BT.to(self._device), mask_BT.to(self._device), temperature)
        return [part.tolist() for part in torch.split(logp_M.cpu(), (lengths - 1).tolist())]

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """`Engine.named_weights`: (name, whole tensor), each valid until the next is asked for."""
        return self._engine.named_weights()

    def weights_metadata(self) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
        """`Engine.weights_metadata`: name, dtype and shape of every weight, without any communication."""
        return self._engine.weights_metadata()

    def export(self, folder: Path) -> None:
        """Write the policy as a Hugging Face folder; rank 0 writes, and its return means that the folder is whole.

        With LoRA the adapters are merged, and if their base is still the model that was loaded they also are in `adapter/`, as peft
        writes them.
        """
        state = {name: weight.to("cpu", copy=True) for name, weight in self._engine.named_weights() if self._rank == 0}
        if self._rank == 0:
            export_model(state, self._policy.config, self._model_path, folder)
        if self._config.lora is not None and self._base_as_loaded:
            factors = {name: factor.to("cpu", copy=True) for name, factor in self._engine.named_factors() if self._rank == 0}
            if self._rank == 0:
                export_adapter(factors, self._config.lora, self._model_path, folder / "adapter")

    def save(self, folder: Path) -> None:
        """Write all that `load` needs to go on exactly here: weights, moments, step, reference, base."""
        self._engine.save(folder, {"step": self._step, "base_as_loaded": self._base_as_loaded})
        if self._reference is not None and self._rank == 0:
            self._reference.save(folder)
        if self._base and self._rank == 0:
            save_file(self._base, folder / "base.safetensors")

    def load(self, folder: Path) -> None:
        """Go on where `save` was called, in a learner that began the same phase. Raises `InputError` if that is impossible."""
        state = self._engine.load(folder)
        self._step, self._base_as_loaded = int(state["step"]), bool(state["base_as_loaded"])
        if self._reference is not None:
            self._reference.load(folder)
        self._base = load_file(folder / "base.safetensors") if (folder / "base.safetensors").is_file() else {}

    def close(self) -> None:
        """Release the engine and leave the process group."""
        self._engine.close()
        leave()

    def _load(self, gradient_checkpointing: bool, value: Literal["shared", "separate"] | None) -> PolicyModel:
        lm = load_model(self._model_path, DTYPES[self._config.dtype])
        if gradient_checkpointing:
            lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return PolicyModel(lm, self._temperature, self._config.head_chunk_tokens, value=value, lora=self._config.lora)
