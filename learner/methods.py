"""The method table: every method is a choice of the weight in `grad J = sum_t w_t * grad log pi(a_t | h_t)`.

    w_t = (credit_t * drift_t + kl_t) / Z          credit = (return - baseline) / scale

A row of `METHODS` names one choice for each factor; the functions that compute them are in `learner.returns`,
`learner.credit`, `learner.drift`, `learner.kl` and `learner.normalise`. No code anywhere asks for a method by its name: a new
row needs none.
"""

from dataclasses import dataclass

from learner.choices import GROUP_BASELINES, Baseline, Data, Drift, Normaliser, Returns, Scale, biases


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row: a default for every factor of the weight, and what is known about the combination.

    `baselines` are those that may replace `baseline`; `source` is the paper and the place in it.
    """

    name: str
    summary: str
    returns: Returns
    baseline: Baseline
    baselines: tuple[Baseline, ...]
    scale: Scale = "none"
    normaliser: Normaliser
    drift: Drift = "none"
    kl_coef: float = 0.0
    data: Data = "batch"
    source: str
    degenerates_when: str

    @property
    def needs_group(self) -> bool:
        """True if the row's own baseline is made of the siblings' rewards."""
        return self.baseline in GROUP_BASELINES

    @property
    def biased_by(self) -> tuple[str, ...]:
        """Why the row's expected gradient is not grad J, one sentence a choice; empty if it is."""
        return biases(self.returns, self.baseline, self.scale, self.normaliser, self.drift)


_FREE: tuple[Baseline, ...] = ("none", "constant", "moving_average", "value")

_ROWS = (
    Method(
        name="sft",
        summary="imitate demonstrations",
        returns="one",
        baseline="none",
        baselines=("none",),
        normaliser="token",
        source="maximum likelihood; Ouyang et al. 2022, section 3.5",
        degenerates_when="the demonstrations are the policy's own samples: it only sharpens what the policy does already",
    ),
    Method(
        name="self_distill",
        summary="imitate every own sample",
        returns="one",
        baseline="none",
        baselines=("none",),
        normaliser="token",
        source="maximum likelihood on own samples: the control of every filtered method",
        degenerates_when="the samples are fresh: the expected score is 0, so what is left of the gradient is noise",
    ),
    Method(
        name="expert_iteration",
        summary="imitate all own samples so far whose reward passes the filter, then sample again",
        returns="passes",
        baseline="none",
        baselines=("none",),
        normaliser="kept",
        data="grown",
        source="Anthony et al. 2017 (Expert Iteration), with a reward filter in the place of the tree search",
        degenerates_when="no sample passes, then there is no gradient; or all pass, then it is self_distill",
    ),
    Method(
        name="rest",
        summary="imitate a grown data set through a filter that is raised step by step (grow.raise_to), then grow it again",
        returns="passes",
        baseline="none",
        baselines=("none",),
        normaliser="kept",
        data="grown",
        source="Gulcehre et al. 2023 (ReST), section 3, algorithm 1, with the likelihood loss",
        degenerates_when="as expert_iteration",
    ),
    Method(
        name="rest_em",
        summary="imitate the newest own samples that succeeded, each round from the base policy",
        returns="success",
        baseline="none",
        baselines=("none",),
        normaliser="kept",
        data="newest",
        source="Singh et al. 2023 (ReST-EM), section 3, algorithm 1, with a binary reward",
        degenerates_when="no sample succeeds, then there is no gradient; or all succeed, then it is self_distill",
    ),
    Method(
        name="reinforce",
        summary="episode reward times score",
        returns="reward",
        baseline="none",
        baselines=_FREE,
        normaliser="constant",
        source="Williams 1992, section 5",
        degenerates_when="every reward equals the baseline; without a baseline, when every reward is 0",
    ),
    Method(
        name="reinforce_to_go",
        summary="each turn is paid by the rewards that follow it",
        returns="to_go",
        baseline="none",
        baselines=_FREE,
        normaliser="constant",
        source="Sutton et al. 2000, theorem 1, with sampled returns in the place of Q",
        degenerates_when="as reinforce; with a reward in the last turn only it is reinforce",
    ),
    Method(
        name="rloo",
        summary="episode reward against the mean of the other siblings",
        returns="reward",
        baseline="leave_one_out",
        baselines=("leave_one_out",),
        normaliser="constant",
        source="Kool et al. 2019; Ahmadian et al. 2024 (RLOO)",
        degenerates_when="all siblings have the same reward",
    ),
    Method(
        name="alive_loo",
        summary="reward-to-go of a turn against the other siblings that still play at this turn",
        returns="to_go",
        baseline="alive",
        baselines=("alive",),
        normaliser="constant",
        source="leave-one-out (Kool et al. 2019) at every turn: what the others do is independent of the own action",
        degenerates_when="the siblings that still play have the same reward-to-go; a lone survivor has no baseline at all",
    ),
    Method(
        name="actor_critic",
        summary="each turn is paid by the rewards that follow it, against a learned value of where it stood",
        returns="to_go",
        baseline="value",
        baselines=("value",),
        normaliser="constant",
        source="Sutton et al. 2000, theorem 1, with a learned state value as the baseline; Mnih et al. 2016 (A3C), section 4",
        degenerates_when="V predicts every return: nothing is better or worse than expected",
    ),
    Method(
        name="ppo",
        summary="generalised advantage over a learned value, ratio clip, token mean",
        returns="gae",
        baseline="value",
        baselines=("value",),
        normaliser="token",
        drift="ppo_clip",
        source="Schulman et al. 2017 (PPO), equation 7; Schulman et al. 2016 (GAE), equation 16",
        degenerates_when="as actor_critic",
    ),
    Method(
        name="grpo_simple",
        summary="standardised reward, on-policy: no ratio, no clip, no KL, no length",
        returns="reward",
        baseline="group_mean",
        baselines=("group_mean",),
        scale="std",
        normaliser="group",
        source="Shao et al. 2024 (DeepSeekMath), equation 3, without ratio, clip, KL and 1/length",
        degenerates_when="all siblings have the same reward",
    ),
    Method(
        name="grpo",
        summary="standardised reward, ratio clip, KL to the reference, mean over own length",
        returns="reward",
        baseline="group_mean",
        baselines=("group_mean",),
        scale="std",
        normaliser="own_length",
        drift="ppo_clip",
        kl_coef=0.04,
        source="Shao et al. 2024 (DeepSeekMath), equations 3 and 4",
        degenerates_when="all siblings have the same reward: the KL is all that is left",
    ),
    Method(
        name="dr_grpo",
        summary="GRPO without both biases: no division by std, and one constant C for every length",
        returns="reward",
        baseline="group_mean",
        baselines=("group_mean", "leave_one_out"),
        normaliser="constant",
        drift="ppo_clip",
        source="Liu et al. 2025 (Understanding R1-Zero-Like Training), section 3.2",
        degenerates_when="all siblings have the same reward",
    ),
)

METHODS: dict[str, Method] = {row.name: row for row in _ROWS}
