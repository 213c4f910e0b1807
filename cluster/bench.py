"""`pickaxe bench`: how fast the system is, as ratios to something run beside it on the same machine, medians of repeats.

Nothing here is a test: times are of this machine at this moment. Each ratio is above 1 where the system is faster than its
yardstick: vLLM's own loop for the generator, a bare PyTorch loop for the learner, a memory copy for the push.
"""

import itertools
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cluster.actors import running, wait
from cluster.config import RunConfig
from cluster.load_config import load_config
from cluster.loop import train
from cluster.prepare import demonstrations, train_tasks
from cluster.run_folder import RunFolder
from cluster.show.live import LiveView
from cluster.sinks import read_metrics
from rollout.chat import load_encoder
from rollout.generator import GroupRequest

_SKIPPED_STEPS = 3  # the first steps of a run warm up kernels and caches


def bench(out: Path, overrides: list[str], repeats: int) -> dict[str, Any]:
    """Run every measurement, print the table, write it as JSON to `out`, and return it."""
    console = Console()
    config = load_config("number-search-tiny", [f"steps={_SKIPPED_STEPS + 2 * repeats}", "eval.every=1000", *overrides])
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder.create(Path(scratch) / "run", config, overwrite=False)
        with LiveView(config.steps, title="bench: whole steps", console=console) as view:
            summary = train(config, folder, view)
        results = whole_steps(read_metrics(folder.path), config)
        results |= {name: float(value) for name, value in summary.items() if name.startswith("memory/")}
        policy = str(folder.checkpoint(config.steps))
        console.print("generator against vLLM's own loop ...")
        results |= generator(config, policy, repeats)
        console.print("learner against a bare PyTorch loop ...")
        results |= learner(config, policy, repeats)
    results |= environment_steps(config, repeats)
    results |= {"machine": f"{platform.machine()}, {platform.python_version()}", "repeats": repeats, "overrides": overrides}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=2) + "\n")
    console.print(_table(results))
    return results


def whole_steps(records: list[dict[str, Any]], config: RunConfig) -> dict[str, float]:
    """Medians over the steps of a real run, all in: sampling, learning, push, attestation, metrics."""
    steps = [record for record in records if record["step"] > _SKIPPED_STEPS and "eval/success" not in record]

    def median(name: str) -> float:
        return statistics.median(record[name] for record in steps)

    episodes = config.rollout.groups_per_step * config.rollout.group_size
    copied = _copy_gb_per_s(int(median("sync/push_gb_per_s") * median("sync/push_s") * 1e9))
    return {
        "step/seconds": median("time/step_s"),
        "step/episodes_per_s": episodes / median("time/step_s"),
        "step/generate_s": median("time/generate_s"),
        "step/learn_s": median("time/learn_s"),
        "step/push_and_attest_s": median("time/push_s"),
        "step/controller_share": median("time/controller_s") / median("time/step_s"),
        "step/environment_share": median("time/environment_s") / median("time/step_s"),
        "push/seconds": median("sync/push_s"),
        "push/gb_per_s": median("sync/push_gb_per_s"),
        "push/ratio_to_memory_copy": median("sync/push_gb_per_s") / copied,
    }


def _copy_gb_per_s(size: int) -> float:
    import torch

    source, target = torch.ones(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
    return size / _median_s(lambda: target.copy_(source), 50) / 1e9


def generator(config: RunConfig, policy: str, repeats: int) -> dict[str, float]:
    """Requests and sampled tokens a second inside the loop's own `play`, against `add_request`/`step` on the same requests."""
    tasks = list(itertools.islice(train_tasks(config), config.rollout.groups_per_step))
    requests = [GroupRequest(task=task, group=number, size=config.rollout.group_size) for number, task in enumerate(tasks)]
    timeout_s = config.cluster.step_timeout_s
    played, bare, counts = [], [], []
    with running(config, policy, learners=False) as cluster:
        actor = cluster.generators[0]
        for repeat in range(repeats + 1):
            begun = time.perf_counter()
            ((results, _),) = wait([actor.play.remote(requests, repeat)], timeout_s, "sampling")
            seconds = time.perf_counter() - begun
            turns = [(t, turn) for group in results for t in group.trajectories for turn in t.turns]
            prompts, lengths = [t.token_ids[: turn.start] for t, turn in turns], [len(turn.token_ids) for _, turn in turns]
            wait([actor.commit.remote(repeat + 1)], timeout_s, "clearing the cache")
            (yardstick,) = wait([actor.drive_bare.remote(prompts, lengths)], timeout_s, "driving the engine bare")
            wait([actor.commit.remote(repeat + 1)], timeout_s, "clearing the cache")
            if repeat:  # the first round warms up
                played.append(seconds)
                bare.append(yardstick)
                counts.append((len(turns), sum(lengths)))
    requests_n, tokens_n = (statistics.median(column) for column in zip(*counts, strict=True))
    return {
        "generator/requests_per_s": requests_n / statistics.median(played),
        "generator/tokens_per_s": tokens_n / statistics.median(played),
        "generator/bare_requests_per_s": requests_n / statistics.median(bare),
        "generator/ratio_to_bare_vllm": statistics.median(b / p for b, p in zip(bare, played, strict=True)),
    }


def learner(config: RunConfig, policy: str, repeats: int) -> dict[str, float]:
    """Tokens a second of one optimiser step through DeepSpeed, against a bare PyTorch loop on the same padded batch."""
    import torch

    from learner.batch import optimizer_steps
    from learner.config import AlgorithmConfig
    from learner.credit import initial_baseline
    from learner.learner import Learner
    from learner.model import load_model
    from learner.plan import resolve

    with _threads(config.cluster.learner_threads):
        groups = demonstrations(config, load_encoder(policy), config.rollout.groups_per_step * config.rollout.group_size, "plausible")
        algorithm = AlgorithmConfig(method="sft")
        plan = resolve(algorithm)
        (step,), _, _ = optimizer_steps(
            groups,
            plan,
            ranks=1,
            micro_batch_tokens=config.learner.micro_batch_tokens,
            generation_limit=config.generation_limit,
            baseline_state=initial_baseline(plan),
            current_version=0,
        )
        (micro_batches,) = step.micro_batches
        ours = Learner(policy, config.learner, algorithm, total_steps=1000)
        lm = load_model(policy, torch.float32).train()
        adam = torch.optim.AdamW(lm.parameters(), lr=config.learner.lr, betas=config.learner.betas)

        def bare() -> None:
            adam.zero_grad()
            for part in micro_batches:
                hidden = lm.base_model(part.token_ids_BT).last_hidden_state[:, :-1][part.mask_BT[:, 1:]]
                logp_MV = torch.log_softmax(lm.lm_head(hidden), -1)
                logp_M = logp_MV.gather(-1, part.token_ids_BT[:, 1:][part.mask_BT[:, 1:]][:, None])[:, 0]
                (-(part.inverse_z_BT[part.mask_BT].float() * logp_M).sum()).backward()
            torch.nn.utils.clip_grad_norm_(lm.parameters(), config.learner.max_grad_norm)
            adam.step()

        pairs = [(_seconds(lambda: ours.train_step(micro_batches)), _seconds(bare)) for _ in range(2 * repeats + 1)][1:]
        ours.close()
    tokens = sum(len(t.token_ids) for group in groups for t in group.trajectories)
    return {
        "learner/tokens_per_s": tokens / statistics.median(mine for mine, _ in pairs),
        "learner/bare_tokens_per_s": tokens / statistics.median(theirs for _, theirs in pairs),
        "learner/ratio_to_bare_torch": statistics.median(theirs / mine for mine, theirs in pairs),
    }


def environment_steps(config: RunConfig, repeats: int) -> dict[str, float]:
    """Steps a second of the environment alone, played by its random player, building included."""
    spec = config.env.spec
    tasks = list(itertools.islice(train_tasks(config), 2000))

    def play_all() -> int:
        count = 0
        for number, task in enumerate(tasks):
            env, act, observation = spec.make(task), spec.players["random"](task, number).act, None
            env.start()
            while True:
                step = env.step(act(observation))
                count += 1
                if step.end is not None:
                    break
                observation = step.observation
        return count

    count = play_all()
    return {"environment/steps_per_s": count / _median_s(play_all, repeats)}


@contextmanager
def _threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


def _seconds(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _median_s(call: Callable[[], Any], repeats: int) -> float:
    return statistics.median(_seconds(call) for _ in range(repeats))


def _table(results: dict[str, Any]) -> Table:
    table = Table(title="pickaxe bench (medians)")
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, value in results.items():
        if isinstance(value, float):
            table.add_row(name, f"{value:,.3f}" if value < 100 else f"{value:,.0f}")
    return table
