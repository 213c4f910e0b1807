"""Settings of the learner: which weight every token gets (`AlgorithmConfig`), rounds of sampling and learning (`GrowConfig`), how the
weighted loss is optimised (`LearnerConfig`), and the shape of the tiny policy (`TinyModelConfig`). Nothing here imports torch, so that
a config is read at once."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class AlgorithmConfig(_Frozen):
    """Which row of the method table runs, and its switches. A switch left at None takes the row's own value."""

    method: str = Field("dr_grpo", description="A row of the method table; `pickaxe explain METHOD` prints what it optimises.")
    baseline: Literal["none", "constant", "moving_average", "value", "group_mean", "leave_one_out"] | None = Field(
        None, description="Overrides the row's baseline, where the row allows one."
    )
    baseline_constant: float = Field(0.5, description="b of the `constant` baseline, and the start of the `moving_average`.")
    baseline_decay: float = Field(0.9, ge=0, lt=1, description="Decay a step of the `moving_average` baseline.")
    std: Literal["population", "sample"] = Field("population", description="Divide by G (population) or G-1 (sample) in a group's std.")
    normaliser: Literal["constant", "token", "own_length", "group", "kept"] | None = Field(
        None, description="Overrides the row's normaliser Z."
    )
    generation_limit: int | None = Field(
        None, ge=1, description="C of the constant normaliser; None takes the most tokens an episode can sample (turns x tokens a turn)."
    )
    count_dead_groups: bool = Field(True, description="Whether groups with equal rewards, whose credit is 0, count in Z.")
    filter_threshold: float = Field(1.0, description="Filtered methods keep an episode if its reward is at least this.")
    drift: Literal["none", "ppo_clip", "tis", "masked", "sequence", "cispo"] | None = Field(
        None, description="Overrides the row's correction for an older sampling policy."
    )
    clip_low: float = Field(0.2, ge=0, le=1, description="The probability ratio is clipped below 1 - clip_low.")
    clip_high: float = Field(0.2, ge=0, description="The probability ratio is clipped above 1 + clip_high (clip-higher if larger).")
    dual_clip: float | None = Field(
        None, gt=1, description="ppo_clip, sequence: tokens with credit < 0 and a ratio above this have no gradient."
    )
    tis_cap: float = Field(2.0, ge=1, description="tis: ratios above this count as this.")
    mask_low: float = Field(0.5, ge=0, le=1, description="masked: tokens with a ratio below this have no gradient.")
    mask_high: float = Field(5.0, ge=1, description="masked: tokens with a ratio above this have no gradient.")
    kl_coef: float | None = Field(None, ge=0, description="Weight of the KL to the reference policy; None takes the row's own.")
    kl_estimator: Literal["k1", "k2", "k3"] = Field("k3", description="Which estimator of the KL; k1 only in the reward.")
    kl_in: Literal["gradient", "reward"] = Field("gradient", description="The KL as a weight in the gradient or a penalty in the reward.")
    entropy_coef: float = Field(0.0, ge=0, description="Weight of the entropy bonus, in nats a sampled token.")
    regulariser_schedule: Literal["constant", "linear"] = Field(
        "constant",
        description="linear: entropy bonus and KL in the gradient fall to 0 over the run, so that the policy can settle.",
    )
    value: Literal["shared", "separate"] = Field(
        "shared", description="Learned V, where a row needs one: a head on the policy's backbone, or on a backbone of its own."
    )
    value_coef: float = Field(0.5, gt=0, description="Weight of the value loss.")
    value_clip: float | None = Field(None, gt=0, description="Largest change of a value in one batch that the value loss rewards.")
    gamma: float = Field(1.0, gt=0, le=1, description="Discount a sampled token, of the gae return.")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="Of the gae return: 1 is sampled rewards only, 0 trusts V one token on.")
    whiten: bool = Field(False, description="Shift and scale the credit of a batch to mean 0 and std 1; for rows with a learned V.")


class GrowConfig(_Frozen):
    """Rounds of `expert_iteration`, `rest` and `rest_em`: sample for some steps, then improve on what passed the filter.

    An improve phase begins with a fresh optimiser, and `learner.schedule` runs over it; its warm-up is a tenth of it at most.
    """

    steps: int = Field(4, ge=1, description="Sampling steps of a round; the run's last step ends its round in any case.")
    epochs: int = Field(2, ge=1, description="Passes of the improve phase over the kept episodes, with each threshold.")
    batch_episodes: int = Field(64, ge=1, description="Kept episodes an optimiser step.")
    raise_to: tuple[float, ...] = Field(
        (), description="Rising rewards after algorithm.filter_threshold; the improve phase goes over the data set with each (ReST)."
    )
    max_episodes: int | None = Field(None, ge=1, description="Size of the data set; the oldest episodes leave it. None keeps all.")
    max_per_task: int | None = Field(
        None, ge=1, description="Newest kept episodes of one task that are learned from, so that easy tasks do not crowd out hard ones."
    )


class LoraConfig(_Frozen):
    """Train low-rank adapters beside the model's frozen matrices, W + (alpha / rank) B A, instead of the matrices.

    There is no dropout: the sampler has none, and with it the learner would score another policy than the one that acted.
    Adapters usually need a learning rate ten times that of the whole model. With dtype bfloat16 the generators see changes smaller
    than the spacing of a matrix's elements late, because they are given the sum.
    """

    rank: int = Field(16, ge=1, description="Rows of A and columns of B.")
    alpha: int | None = Field(None, ge=1, description="The update is scaled by alpha / rank; None takes twice the rank.")
    targets: tuple[str, ...] | None = Field(
        None, min_length=1, description="Linear layers of the backbone to adapt, such as q_proj; None adapts all of them."
    )


class LearnerConfig(_Frozen):
    """How the weighted loss is optimised."""

    optimizer: Literal["adamw", "sgd"] = Field("adamw", description="Optimiser; SGD shows scale errors that Adam hides.")
    lr: float = Field(1e-3, gt=0, description="Peak learning rate.")
    betas: tuple[float, float] = Field((0.9, 0.95), description="Adam's decay rates of the first and second moment.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay.")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="Learning rate after the warm-up.")
    warmup_steps: int = Field(10, ge=0, description="Optimiser steps of linear warm-up; Adam's first steps overshoot without it.")
    max_grad_norm: float = Field(1.0, ge=0, description="Gradients are clipped to this global norm; 0 switches clipping off.")
    minibatches: int = Field(1, ge=1, description="Optimiser steps that one batch of groups is split into.")
    epochs: int = Field(1, ge=1, description="Passes over one batch of groups.")
    micro_batch_tokens: int = Field(16384, ge=1, description="Padded tokens a rank processes at once; changes memory, never the gradient.")
    zero_stage: Literal[0, 1, 2, 3] = Field(
        0, description="DeepSpeed ZeRO stage: what the ranks shard (1 optimiser, 2 + gradients, 3 + weights)."
    )
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Training precision.")
    lora: LoraConfig | None = Field(None, description="Train low-rank adapters only; None trains the whole model.")
    head_chunk_tokens: int = Field(4096, ge=1, description="Tokens whose vocabulary logits exist at one time.")
    gradient_checkpointing: bool = Field(False, description="Recompute activations in the backward pass to save memory.")
    max_logprob_gap: float = Field(
        1e-3, gt=0, description="Largest allowed difference between sampler and learner log-probs of tokens sampled by the current weights."
    )


class ModelShapeConfig(_Frozen):
    """The size of a model that is not on this machine, for the memory estimate of `pickaxe train --dry-run`; nothing else reads it."""

    billions: float | None = Field(None, gt=0, description="Parameters, in units of 1e9.")
    layers: int | None = Field(None, ge=1, description="Transformer blocks.")
    attention_layers: int | None = Field(None, ge=1, description="Blocks whose attention has a KV cache; None is all of them.")
    hidden_size: int | None = Field(None, ge=1, description="Width of the residual stream.")
    heads: int | None = Field(None, ge=1, description="Attention heads.")
    kv_heads: int | None = Field(None, ge=1, description="Key and value heads.")
    head_size: int | None = Field(None, ge=1, description="Width of one head.")
    intermediate_size: int | None = Field(None, ge=1, description="Width of the MLP.")
    vocab_size: int | None = Field(None, ge=1, description="Rows of the output layer.")


class TinyModelConfig(_Frozen):
    """The shape of the tiny Llama. With a vocabulary of 200 the defaults give 0.32 million parameters."""

    hidden_size: int = Field(128, ge=32, description="Width; heads times the head size, which must be 32 or 64.")
    layers: int = Field(2, ge=1, description="Transformer blocks.")
    heads: int = Field(4, ge=1, description="Attention heads.")
    kv_heads: int = Field(2, ge=1, description="Key and value heads; divides the number of heads.")
    intermediate_size: int = Field(256, ge=1, description="Width of the MLP.")
    max_position: int = Field(1024, ge=1, description="Longest sequence in tokens.")
    tie_embeddings: bool = Field(True, description="Input and output embeddings are one tensor.")
    init_std: float = Field(
        0.08, gt=0, description="Standard deviation of the initial weights; at the usual 0.02 so narrow a model learns slowly."
    )
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
