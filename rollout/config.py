"""Settings of the rollout side: the policy's model, how episodes are sampled, and the vLLM engine that samples them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class RolloutConfig(_Frozen):
    """How groups of episodes are sampled for one step."""

    groups_per_step: int = Field(16, ge=1, description="Tasks a step, each played by one group of siblings.")
    group_size: int = Field(16, ge=1, description="G: episodes (siblings) of each task.")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature; the learner computes log-probs at the same one.")
    max_turn_tokens: int = Field(16, ge=1, description="Most tokens that the policy may sample in one turn, the end of the turn included.")
    max_context_tokens: int = Field(256, ge=16, description="Most tokens of a whole episode, prompt and observations included.")
    episode_retries: int = Field(1, ge=0, description="How often an episode whose environment failed is played again with its seed.")


class DeadGroupsConfig(_Frozen):
    """Remedies for dead groups: all rewards are equal, so that a baseline of siblings leaves no gradient. All are off by default.

    What `algorithm.count_dead_groups` does to the normaliser is a remedy too. New groups that are dead again are thrown away. Where
    another policy sampled (temperature, hint taken out, demonstration), `algorithm.drift` corrects each action for how likely it was,
    and nothing corrects how often its history comes up.
    """

    resample_rounds: int = Field(0, ge=0, description="How often a step plays new groups for its dead ones, at most; 0 never.")
    resample_tasks: Literal["other", "same"] = Field(
        "other", description="New groups play the next tasks, or `same`: the task again, if no sibling solved it."
    )
    temperature: float | None = Field(None, gt=0, description="Sampling temperature of new groups; None is that of all groups.")
    hint: bool = Field(False, description="New groups read the environment's hint for their task at the end of the prompt.")
    train_with_hint: bool = Field(
        True, description="The hint is part of what is trained; without it, the drift corrects for the hinted sampler."
    )
    demonstration: str | None = Field(
        None, description="A scripted player, whose episode takes the last sibling's place where no sibling scores; the drift corrects it."
    )


class GeneratorConfig(_Frozen):
    """One vLLM engine."""

    engine: Literal["auto", "inprocess", "async"] = Field(
        "auto",
        description="`inprocess` steps the engine inside the actor (fast for short turns), `async` is vLLM's AsyncLLM; auto: CPU / GPU.",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="Precision of the generator's weights.")
    tensor_parallel: int = Field(1, ge=1, description="GPUs that share one engine.")
    max_num_seqs: int = Field(256, ge=1, description="Episodes that one engine samples at the same time.")
    max_batched_tokens: int = Field(8192, ge=16, description="Most tokens of one forward pass of the engine.")
    block_size: int | None = Field(
        None, ge=1, description="Tokens of one KV-cache block; None takes 32 on CPU (whole blocks are shared, and episodes are short)."
    )
    kv_cache_gib: float = Field(0.25, gt=0, description="Memory of the KV cache in GiB on CPU.")
    gpu_memory_fraction: float = Field(0.85, gt=0, le=1, description="Share of a GPU's memory that the engine may take.")
    prefix_caching: bool = Field(True, description="Compute shared prefixes (the group's prompt, earlier turns) once.")
    enforce_eager: bool = Field(True, description="Skip graph capture; faster to start, slower on GPU.")
