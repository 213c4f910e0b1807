"""`pickaxe train RECIPE --dry-run`: every shipped recipe is understood on a machine without a GPU, model or hub, and nothing is started."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import Qwen3Config
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

from cluster.checks.dry_run import GIB, Machine, estimate, find_shape, micro_batch_tokens, rows_per_rank, what_to_change
from cluster.checks.dry_run_view import batch, dry_run_report, memory, placement
from cluster.config import RunConfig
from cluster.load_config import RECIPES, load_config, recipe_names
from envs.errors import InputError
from learner.batch import optimizer_steps
from learner.credit import initial_baseline
from learner.plan import resolve
from learner.shape import shape_of, stated_shape
from rollout.types import Group, Trajectory
from tests.cluster.command_line import status
from tests.learner.builders import trajectory

pytestmark = pytest.mark.usefixtures("elsewhere")

NODE = "crafting-qwen3-4b-node"
LORA = "textcraft-synth-qwen3.5-4b-lora"
HERE = torch.cuda.device_count()


def needs_its_package(recipe: str) -> None:
    if recipe.startswith("textcraft") and importlib.util.find_spec("platoon_textcraft") is None:
        pytest.skip("needs the package platoon-textcraft (make textcraft)")


def node(gib: float | None, *overrides: str) -> tuple[RunConfig, Machine]:
    """The node's recipe and a machine with eight GPUs of so much memory."""
    machine = Machine(gpus=8, gpu_bytes=gib and int(gib * GIB), cpus=64, memory_bytes=512 * GIB, on_gpu=True)
    return load_config(NODE, list(overrides)), machine


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_recipe_is_explained_and_run_dry(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    needs_its_package(recipe)
    assert status(["explain", recipe]) == 0
    assert yaml.safe_load(capsys.readouterr().out.partition("\n\n")[0]) == load_config(recipe).model_dump(mode="json")
    assert status(["train", recipe, "--dry-run", "--gpu-memory", "80"]) == 0
    printed = capsys.readouterr().out
    assert f"Dry run of {recipe}: nothing is started" in printed
    assert f"this machine has {HERE}\n" in printed and "not estimated" not in printed, "a recipe states the shape of a model from elsewhere"
    assert "fits into 80.0 GiB a GPU" in printed
    assert all(section in printed for section in ("Placement", "Model", "Memory of one GPU", "Batch"))
    assert list(Path().iterdir()) == []


def test_a_dry_run_loads_no_process_of_a_run() -> None:
    program = (
        "import sys\nfrom cluster.cli import main\n"
        "try:\n    main(['train', 'number-search-tiny', '--dry-run'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('ray', 'vllm', 'deepspeed') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]" and "all processes together" in done.stdout


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        (
            NODE,
            Qwen3Config(
                vocab_size=151936,
                hidden_size=2560,
                intermediate_size=9728,
                num_hidden_layers=36,
                num_attention_heads=32,
                num_key_value_heads=8,
                head_dim=128,
                tie_word_embeddings=True,
            ),
        ),
        (
            LORA,
            Qwen3_5TextConfig(
                vocab_size=248320,
                hidden_size=2560,
                intermediate_size=9216,
                num_hidden_layers=32,
                num_attention_heads=16,
                num_key_value_heads=4,
                head_dim=256,
                tie_word_embeddings=True,
            ),
        ),
    ],
)
def test_the_shapes_of_the_recipes_are_those_of_their_architectures(recipe: str, settings: Qwen3Config) -> None:
    needs_its_package(recipe)
    real, stated = shape_of(settings), stated_shape(load_config(recipe).model.shape)
    assert stated is not None and stated.widths == real.widths
    assert stated.parameters == pytest.approx(real.parameters, rel=2e-4)
    # Layers that are not of attention have other matrices, an eighth more in all.
    assert sum(stated.linears.values()) == pytest.approx(sum(real.linears.values()), rel=0.13)


def test_processes_get_the_gpus_in_order() -> None:
    config, machine = node(80, "generator.tensor_parallel=2", "cluster.generators=2", "cluster.learners=3", "cluster.env_workers=2")
    lines = list(placement(config, machine))
    assert lines[0] == "needs 7 GPUs; this machine has 8"
    gpus = [match[0] for line in lines if (match := re.search(r"GPUs? \d( to \d)?,", line))]
    assert gpus == ["GPUs 0 to 1,", "GPUs 2 to 3,", "GPU 4,", "GPU 5,", "GPU 6,"]
    assert any("2 workers with 2 processes each; weights travel over nccl" in line for line in lines)
    assert not any("refused" in line for line in lines)


def test_a_machine_that_is_too_small_is_no_reason_to_refuse_a_dry_run() -> None:
    config, _ = node(80)
    for gpus, words in ((4, "the run takes 8 GPUs, .* but the cluster has 4"), (0, "cluster.transfer=nccl needs GPUs")):
        machine = Machine(gpus=gpus, gpu_bytes=None, cpus=2, memory_bytes=GIB, on_gpu=True)
        lines = list(placement(config, machine))
        assert lines[0] == f"needs 8 GPUs; this machine has {gpus}"
        assert re.search(f"on this machine a start would be refused: {words}", "\n".join(lines))


@pytest.mark.parametrize("gib", [16, 24, 40, 80, 141])
@pytest.mark.parametrize("parallel", [1, 2])
def test_the_cache_is_what_is_left_of_the_generators_share(gib: float, parallel: int) -> None:
    config, machine = node(gib, f"generator.tensor_parallel={parallel}", "generator.gpu_memory_fraction=0.9")
    shape, _ = find_shape(config)
    assert shape is not None
    found = estimate(config, shape, machine)
    assert found.cache is not None and found.cache.bytes is not None
    # Keys and values of 36 layers, 8 heads of 128, two bytes each.
    assert found.cache.token_bytes == 2 * 36 * 8 * 128 * 2 // parallel
    assert found.generator_bytes + found.cache.bytes == int(0.9 * gib * GIB) or found.cache.bytes < 0
    assert found.generator[0].bytes == 4_022_000_000 * 2 // parallel


def test_what_does_not_fit_comes_with_changes_that_make_it_smaller() -> None:
    config, machine = node(80)
    shape, _ = find_shape(config)
    assert shape is not None and what_to_change(config, shape, machine) == []
    config, machine = node(24, "learner.zero_stage=1", "learner.gradient_checkpointing=false")
    before = estimate(config, shape, machine).rank_bytes
    (line,) = what_to_change(config, shape, machine)
    assert line.startswith(f"a learner rank takes {before / GIB:.1f} GiB of 24.0; what changes come to in GiB: ")
    changes = re.findall(r"((?:learner|cluster)\.\w+=\w+) \(([\d.]+)\)", line)
    assert len(changes) == 6
    for change, total in changes:
        after = estimate(load_config(NODE, ["learner.zero_stage=1", "learner.gradient_checkpointing=false", change]), shape, machine)
        assert f"{after.rank_bytes / GIB:.1f}" == total and after.rank_bytes < before, change
    assert "does NOT fit into 24.0 GiB a GPU" in "\n".join(memory(config, shape, machine))


def test_a_generator_without_room_for_an_episode_is_said() -> None:
    config, machine = node(12, "learner.zero_stage=3")
    shape, _ = find_shape(config)
    assert shape is not None
    assert what_to_change(config, shape, machine)[0].startswith(
        "a generator has no room for one episode of 8,192 tokens: raise generator.te"
    )


def test_a_kl_costs_a_copy_on_every_rank_but_not_with_adapters() -> None:
    def lines(*overrides: str) -> dict[str, int]:
        config, machine = node(80, *overrides)
        shape, _ = find_shape(config)
        assert shape is not None
        return {part.name: part.bytes for part in estimate(config, shape, machine).rank}

    assert "KL reference" not in lines()
    assert lines("algorithm.kl_coef=0.01")["KL reference"] == 4_022_000_000 * 2
    adapted = lines("algorithm.kl_coef=0.01", "learner.lora.rank=32")
    assert "KL reference" not in adapted and adapted["moments"] < lines()["moments"] / 50


def test_a_model_that_is_here_is_looked_into(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["model", "tiny", "tiny", "--env", "number_search"]) == 0
    parameters = sum(weight.numel() for weight in load_file("tiny/model.safetensors").values())
    overrides = ["model.path=tiny", "model.shape.billions=70", "rollout.max_context_tokens=40"]
    assert status(["train", "number-search-tiny", *overrides, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "the config of tiny" in printed and f"({parameters:,})" in printed
    assert "are cut by a token limit" in printed, "its tokenizer is tried, as before a start"
    assert [path.name for path in Path().iterdir()] == ["tiny"]


def test_weights_that_do_not_fit_are_enough_to_say_so() -> None:
    config, machine = node(80, "model.path=nobody/nothing", "model.shape={billions: 70}")
    shape, _ = find_shape(config)
    assert shape is not None and shape.widths is None
    generator, rank = what_to_change(config, shape, machine)
    assert generator.startswith("a generator has no room")
    # 70e9 x (2 + (4 + 4 + 8) / 4) bytes, 50e6 x 2 on their way, and the allowance of 2 GiB.
    assert rank.startswith("a learner rank takes 393.2 GiB of 80.0")


def test_a_model_of_unknown_size_is_not_guessed() -> None:
    unknown = ["model.path=nobody/nothing"]
    printed = "\n".join(dry_run_report(load_config("number-search-tiny", unknown), "x"))
    assert (
        "model.shape.billions does not say how large it is" in printed and "Memory of one" not in printed and "a step: 16 tasks" in printed
    )
    partly = [*unknown, "model.shape.billions=4", "model.shape.layers=36", "cluster.transfer=nccl"]
    printed = "\n".join(dry_run_report(load_config("number-search-tiny", partly), "x", 80))
    assert "billions=4" in printed and "4 billion x 4 bytes (float32)" in printed
    assert "not estimated: unknown are model.shape.hidden_size, model.shape.heads" in printed and "KV cache: " not in printed


def test_what_a_start_would_refuse_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words, arguments in {
        "--gpu-memory needs --dry-run": ["--gpu-memory", "80"],
        "does not exist": ["--dry-run", "model.path=./absent"],
        "not one episode of number_search's oracle fits": ["--dry-run", "rollout.max_turn_tokens=1"],
        "would accumulate gradients in bfloat16": ["--dry-run", "learner.dtype=bfloat16"],
    }.items():
        assert status(["train", "number-search-tiny", *arguments]) == 2
        assert words in capsys.readouterr().err
    Path("broken").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        Path("broken", name).write_text("{")
    with pytest.raises(InputError, match="broken cannot be read"):
        find_shape(load_config("number-search-tiny", ["model.path=broken"]))


def test_full_episodes_make_as_many_micro_batches_as_was_said() -> None:
    config = load_config(
        "number-search-tiny",
        [
            "rollout.groups_per_step=6",
            "rollout.group_size=4",
            "rollout.max_context_tokens=32",
            "cluster.learners=2",
            "learner.micro_batch_tokens=100",
        ],
    )

    def full(number: int, member: int) -> Trajectory:
        """20 + 3 + 6 + 3 tokens."""
        actions, rewards = [(1, 2, 3), (4, 5, 6)], [0.0, member % 2]
        return trajectory(actions, rewards, group=number, member=member, prompt=range(20), observations=[(8,) * 6])

    groups = [Group(trajectories=tuple(full(number, member) for member in range(4))) for number in range(6)]
    plan = resolve(config.algorithm)
    steps, *_ = optimizer_steps(
        groups,
        plan,
        ranks=2,
        micro_batch_tokens=config.learner.micro_batch_tokens,
        generation_limit=config.generation_limit,
        baseline_state=initial_baseline(plan),
        current_version=0,
        minibatches=config.learner.minibatches,
    )
    parts = steps[0].micro_batches[0]
    assert sum(len(part.token_ids_BT) for part in parts) == rows_per_rank(config) == 6
    assert max(part.token_ids_BT.numel() for part in parts) <= micro_batch_tokens(config) == 100
    assert f"6 episodes a rank, in {len(parts)} micro-batches of 100 padded tokens" in "\n".join(batch(config))
    assert len(steps) * config.steps == 480 and "= 480 optimiser steps" in "\n".join(batch(config))


def test_the_readme_shows_what_is_printed() -> None:
    readme = (RECIPES.parent.parent / "README.md").read_text(encoding="utf-8")
    excerpt = re.search(r"\n    needs 8 GPUs; this machine has 0\n(.*?)\n\n", readme, flags=re.DOTALL)
    config, machine = node(80)
    shape, _ = find_shape(config)
    assert excerpt is not None and shape is not None
    printed = "\n".join(memory(config, shape, machine))
    shown = [line.strip().removesuffix("...").strip() for line in excerpt[1].splitlines()]
    assert len(shown) == 6
    for words in filter(None, shown):
        assert " ".join(words.split()) in " ".join(printed.split()), words
