"""One optimiser step of SGD, taken in every way that `cluster.checks.selfcheck_cases` cuts it, each from the same policy.

Alone in this process, or as one of several ranks in processes of their own. SGD and not the recipe's optimiser: its step is the
gradient, so that a wrong scale is seen, which Adam and a clipped norm divide out. Its rate is so large that the rounding of the
weights does not count beside the update; nobody uses the weights afterwards.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.multiprocessing.spawn import spawn

from cluster.checks.selfcheck_cases import Case
from learner.config import AlgorithmConfig, LearnerConfig
from learner.learner import Learner

_LR = 1e4
Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What every step begins with; `policy` is a Hugging Face folder."""

    policy: str
    algorithm: AlgorithmConfig
    learner: LearnerConfig
    temperature: float
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The largest |difference| of any parameter to the reference's, and the norm of the gradient."""

    largest: float
    grad_norm: float


def plain(learner: LearnerConfig) -> LearnerConfig:
    """The recipe's learner with SGD, a constant rate, and nothing that hides a scale."""
    changes = {"optimizer": "sgd", "lr": _LR, "schedule": "constant", "warmup_steps": 0, "max_grad_norm": 0.0, "weight_decay": 0.0}
    return learner.model_copy(update=changes)


@contextmanager
def opened(setup: Setup, *, rank: int = 0, ranks: int = 1, store: Store | None = None) -> Iterator[Learner]:
    """A learner, alone or as one of `ranks`, who meet in `store`."""
    learner = Learner(
        setup.policy,
        setup.learner,
        setup.algorithm,
        temperature=setup.temperature,
        total_steps=1,
        rank=rank,
        world_size=ranks,
        store=store,
        timeout_s=setup.timeout_s,
    )
    try:
        yield learner
    finally:
        learner.close()


def take(learner: Learner, case: Case, reference: Weights, rank: int = 0) -> Outcome:
    """Take the case's step as `rank` and compare the weights; all ranks call it."""
    norm = float(learner.train_step(case.shares[rank])["learner/grad_norm"].value)
    return Outcome(largest=largest_difference(learner.named_weights(), reference), grad_norm=norm)


def largest_difference(weights: Iterable[tuple[str, torch.Tensor]], reference: Weights) -> float:
    """The largest |w - reference| over all parameters, in float64; NaN if there is one."""
    gaps = [(weight.double().cpu() - reference[name].double()).abs().max() for name, weight in weights]
    return float(torch.stack(gaps).max())


def take_as_ranks(setup: Setup, cases: Sequence[Case], reference: Weights, scratch: Path, threads: int) -> list[Outcome]:
    """The outcomes of cases of one number of ranks, each rank a process of its own on this machine."""
    ranks = cases[0].ranks
    torch.save((setup, list(cases), dict(reference)), scratch / "step.pt")
    spawn(_rank, args=(ranks, scratch, threads), nprocs=ranks)
    return [Outcome(**one) for one in json.loads((scratch / "outcomes.json").read_text())]


def _rank(rank: int, ranks: int, scratch: Path, threads: int) -> None:
    with suppress(KeyboardInterrupt):  # the parent says it
        torch.set_num_threads(threads)
        if torch.cuda.is_available():
            torch.cuda.set_device(rank)
        setup, cases, reference = torch.load(scratch / "step.pt", weights_only=False)
        outcomes = []
        for number, case in enumerate(cases):
            meeting = dist.FileStore(str(scratch / f"meeting {ranks} {number}"), ranks)
            with opened(setup, rank=rank, ranks=ranks, store=meeting) as learner:
                outcomes.append(take(learner, case, reference, rank))
        if rank == 0:
            (scratch / "outcomes.json").write_text(json.dumps([asdict(one) for one in outcomes]))
