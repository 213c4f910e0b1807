"""The configuration tree: one frozen object that says everything about a run, validated with reasons.

A run is a YAML recipe plus `key.sub=value` overrides (`cluster.load_config` reads both). The resolved object is written into the
run folder and is the object that runs; nothing changes it.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cluster.curriculum.config import CurriculumConfig, check_curriculum
from envs.catalog import find
from envs.contract import EnvSpec
from learner.config import AlgorithmConfig, GrowConfig, LearnerConfig, ModelShapeConfig, TinyModelConfig
from learner.plan import check, check_dead_groups, check_grow
from rollout.config import DeadGroupsConfig, GeneratorConfig, RolloutConfig


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class EnvConfig(_Frozen):
    """Which world the policy acts in."""

    name: str = Field("number_search", description="A built-in environment, or package.module:SPEC for your own `EnvSpec`.")
    params: dict[str, Any] = Field(default_factory=dict, description="The environment's own settings; `pickaxe play` lists them.")

    @property
    def spec(self) -> EnvSpec:
        """The environment's spec."""
        return find(self.name)

    @property
    def built_in(self) -> bool:
        """True for environments that ship with the system and never block, so that they may run inside a generator."""
        return ":" not in self.name


class ModelConfig(_Frozen):
    """The policy that training starts from."""

    path: str | None = Field(None, description="A Hugging Face folder or hub name; None builds the tiny policy.")
    tiny: TinyModelConfig = Field(default_factory=TinyModelConfig, description="Shape of the tiny policy.")
    shape: ModelShapeConfig = Field(default_factory=ModelShapeConfig, description="Size of a model that is not on this machine yet.")
    tiny_vocab: int = Field(448, ge=300, description="Tokens of the tiny policy's tokenizer, trained on the environment's own text.")
    observation_role: str = Field("tool", description="Chat role of the environment's replies.")


class ColdStartConfig(_Frozen):
    """Supervised start on episodes of a scripted player, before RL; 0 episodes skips it."""

    player: str = Field("plausible", description="The player whose episodes are imitated; not the best one, RL is to beat it.")
    file: str | None = Field(None, description="Imitate the episodes of this file, which `pickaxe demos` writes, not the player's.")
    episodes: int = Field(0, ge=0, description="Demonstrations; of a file at most so many, from its first line on.")
    epochs: int = Field(1, ge=1, description="Passes over the demonstrations.")
    batch_episodes: int = Field(64, ge=1, description="Demonstrations an optimiser step.")
    lr: float = Field(1e-3, gt=0, description="Peak learning rate.")


class ClusterConfig(_Frozen):
    """How many processes of each kind, and how long anybody waits for anybody."""

    address: str | None = Field(None, description="Address of a running Ray cluster; None starts one on this machine for this run alone.")
    generators: int = Field(1, ge=1, description="vLLM engines, one Ray actor each.")
    env_workers: int = Field(0, ge=0, description="Ray actors that host environments; 0 runs built-in environments inside the generators.")
    env_processes: int = Field(2, ge=1, description="Killable processes of one environment worker.")
    env_deadline_s: float = Field(30.0, gt=0, description="Longest that an environment may take for one call.")
    learners: int = Field(1, ge=1, description="Learner ranks.")
    generator_threads: int = Field(1, ge=1, description="CPU threads of each generator.")
    learner_threads: int = Field(2, ge=1, description="CPU threads of each learner rank; it works while the generators wait.")
    max_lag: int = Field(0, ge=0, description="Steps that sampling may run ahead of learning; 0 is the synchronous loop.")
    start_timeout_s: float = Field(600.0, gt=0, description="Deadline for starting all processes.")
    step_timeout_s: float = Field(600.0, gt=0, description="Deadline for sampling, learning or attesting one step.")
    push_timeout_s: float = Field(120.0, gt=0, description="Deadline for one whole weight push, until every generator samples again.")
    push_chunk_mib: int = Field(64, ge=1, description="Weights travel in buffers of this size.")
    transfer: Literal["auto", "gloo", "nccl"] = Field("auto", description="Transport of the weights; auto: gloo on CPU, nccl on GPU.")
    probe_tolerance: float = Field(1e-4, gt=0, description="Largest difference of log-probs that the attestation after a push accepts.")


class EvalConfig(_Frozen):
    """How often and how thoroughly the policy is evaluated, on all tasks of the environment's `eval` split."""

    every: int = Field(20, ge=1, description="Steps between two evaluations; the last step is always followed by one.")
    samples: int = Field(16, ge=1, description="Sampled episodes a task.")
    max_tasks: int | None = Field(None, ge=1, description="Only the first so many tasks; None takes all.")


class OutputConfig(_Frozen):
    """What a run leaves behind beside metrics, TensorBoard files and the report."""

    trajectories_every: int = Field(20, ge=1, description="Steps between two files of transcripts; first and last are always written.")
    checkpoint_every: int | None = Field(None, ge=1, description="Steps between two exported policies; None exports the last only.")
    tracker: Literal["none", "wandb", "trackio"] = Field("none", description="Also log to Weights & Biases or Trackio.")
    project: str = Field("pickaxe", description="Project name at the tracker.")


class RunConfig(_Frozen):
    """A whole run."""

    description: str = Field("", description="One line that `pickaxe recipes` shows.")
    seed: int = Field(0, ge=0, description="Seed of everything random: tasks, sampling, weights of a tiny policy, demonstrations.")
    steps: int = Field(100, ge=0, description="RL steps: sample groups, learn, push; with `grow`, learn and push once a round.")
    env: EnvConfig = Field(default_factory=EnvConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    cold_start: ColdStartConfig = Field(default_factory=ColdStartConfig)
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig)
    grow: GrowConfig = Field(default_factory=GrowConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    curriculum: CurriculumConfig = Field(default_factory=CurriculumConfig)
    dead_groups: DeadGroupsConfig = Field(default_factory=DeadGroupsConfig)
    generator: GeneratorConfig = Field(default_factory=GeneratorConfig)
    learner: LearnerConfig = Field(default_factory=LearnerConfig)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    output: OutputConfig = Field(default_factory=OutputConfig)

    @property
    def env_params(self) -> BaseModel:
        """The environment's settings, defaults filled in."""
        return self.env.spec.params(**self.env.params)

    @property
    def generation_limit(self) -> int:
        """C, the most tokens that an episode can sample: the same constant for every response (see `algorithm.generation_limit`)."""
        turns = self.env.spec.max_turns(self.env_params)
        return self.algorithm.generation_limit or min(turns * self.rollout.max_turn_tokens, self.rollout.max_context_tokens)

    @model_validator(mode="after")
    def _check(self) -> Self:
        spec = self.env.spec
        check_curriculum(self.curriculum, spec, self.env_params, self.rollout.groups_per_step)
        steps_per_batch = self.learner.epochs * self.learner.minibatches
        plan = check(self.algorithm, group_size=self.rollout.group_size, max_lag=self.cluster.max_lag, steps_per_batch=steps_per_batch)
        check_grow(plan, self.grow, self.learner)
        check_dead_groups(plan, self.dead_groups, self.rollout)
        if self.dead_groups.hint and spec.hint is None:
            raise ValueError(f"dead_groups.hint is true, but {spec.name} has no hint; set it to false, or write EnvSpec.hint")
        if self.rollout.groups_per_step % self.learner.minibatches:
            raise ValueError(
                f"rollout.groups_per_step={self.rollout.groups_per_step} cannot be split into learner.minibatches="
                f"{self.learner.minibatches} equal parts; whole groups are needed, so make one a multiple of the other"
            )
        if self.rollout.max_turn_tokens >= self.rollout.max_context_tokens:
            raise ValueError(
                f"rollout.max_context_tokens={self.rollout.max_context_tokens} has no room for a prompt beside a turn of "
                f"rollout.max_turn_tokens={self.rollout.max_turn_tokens}; raise the first or lower the second"
            )
        if self.learner.dtype == "bfloat16" and self.learner.zero_stage == 0:
            raise ValueError(
                "learner.dtype=bfloat16 with learner.zero_stage=0 would accumulate gradients in bfloat16; set learner.zero_stage=1 or more "
                "(float32 master weights, also for one rank), or learner.dtype=float32"
            )
        if self.model.path is None and self.model.tiny.max_position <= self.rollout.max_context_tokens:
            raise ValueError(
                f"model.tiny.max_position={self.model.tiny.max_position} is not more than rollout.max_context_tokens="
                f"{self.rollout.max_context_tokens}; the policy could not read its own episode, raise it"
            )
        for key, player in (("cold_start.player", self.cold_start.player), ("dead_groups.demonstration", self.dead_groups.demonstration)):
            if player is not None and player not in spec.players:
                raise ValueError(f"{key}={player!r} is no player of {spec.name}: {', '.join(sorted(spec.players))}")
        if not self.env.built_in and self.cluster.env_workers == 0:
            raise ValueError(
                f"env.name={self.env.name!r} is not built in, so it must run where it can be killed; set cluster.env_workers=1 or more"
            )
        return self
