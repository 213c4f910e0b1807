"""Every setting does something and says what; a config survives its file; a mistake is answered with a way out."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from cluster.config import RunConfig
from cluster.load_config import RECIPES, dump_config, load_config, parse_config, recipe_names, section_of
from envs.errors import InputError
from learner.config import LoraConfig

ROOT = RECIPES.parent.parent
TINY = "number-search-tiny"
GRPO = ("algorithm.drift=none",)
REST = ("algorithm.method=rest", "algorithm.drift=null", "algorithm.kl_coef=null", "learner.minibatches=1")


def models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A config model and the sections in it."""
    yield model
    for name in model.model_fields:
        if (section := section_of(model, name)) is not None:
            yield from models(section)


SECTIONS = list(dict.fromkeys(models(RunConfig)))
FIELDS = [(section, name) for section in SECTIONS for name in section.model_fields]


def attributes_read() -> set[str]:
    """Every name that is read as an attribute in the four packages; what the configs themselves check is not a use."""
    return {
        node.attr
        for package in ("envs", "rollout", "learner", "cluster")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "config.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


READ = attributes_read()  # before any test runs, as in tests/test_layers.py


def test_every_setting_is_read_somewhere() -> None:
    assert [f"{section.__name__}.{name}" for section, name in FIELDS if name not in READ] == []


def test_every_setting_says_what_it_is_in_a_sentence() -> None:
    for section, name in FIELDS:
        field = section.model_fields[name]
        description = field.annotation.__doc__ if field.annotation in SECTIONS else field.description
        assert description and description.rstrip().endswith((".", ")")), f"{section.__name__}.{name}: {description!r}"


@pytest.mark.parametrize("recipe", recipe_names())
def test_a_shipped_recipe_loads_and_survives_its_own_dump(recipe: str, tmp_path: Path) -> None:
    config = load_config(recipe)
    assert config.description
    (tmp_path / "again.yaml").write_text(dump_config(config))
    assert load_config(str(tmp_path / "again.yaml")) == config


@given(
    seed=st.integers(0, 2**31),
    lr=st.floats(1e-12, 1e3),
    description=st.text(max_size=30),
    baseline=st.sampled_from([None, "leave_one_out"]),
    betas=st.tuples(st.floats(0, 0.9999), st.floats(0, 0.9999)),
)
def test_any_values_survive_the_file(
    tmp_path_factory: pytest.TempPathFactory, seed: int, lr: float, description: str, baseline: str | None, betas: tuple[float, float]
) -> None:
    tree = {"seed": seed, "description": description, "learner": {"lr": lr, "betas": betas}, "algorithm": {"baseline": baseline}}
    config = parse_config(tree, "test")
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(str(path)) == config


def test_overrides_apply_in_order_and_the_last_one_counts() -> None:
    config = load_config(TINY, ["learner.lr=1e-4", "learner.lr=2E-4", "steps=3", "model.path=null", "learner.betas=[0.8, 0.99]"])
    assert (config.learner.lr, config.steps, config.model.path, config.learner.betas) == (2e-4, 3, None, (0.8, 0.99))
    assert load_config(TINY, ["env.params.numbers=64"]).env.params == {"numbers": 64, "guesses": 4}


def test_a_section_that_is_left_out_can_be_filled_in_and_left_out_again(tmp_path: Path) -> None:
    (tmp_path / "plain.yaml").write_text(dump_config(load_config(TINY)))
    lora = load_config(str(tmp_path / "plain.yaml"), ["learner.lora.rank=8"])
    assert lora.learner.lora == LoraConfig(rank=8)
    (tmp_path / "lora.yaml").write_text(dump_config(lora))
    assert load_config(str(tmp_path / "lora.yaml")) == lora
    assert load_config(str(tmp_path / "lora.yaml"), ["learner.lora=null"]) == load_config(TINY)
    assert load_config(TINY, ["learner.lora={}"]).learner.lora == LoraConfig()


def test_nothing_can_change_a_config() -> None:
    config = load_config(TINY)
    for owner, name in ((config, "steps"), (config.learner, "lr"), (config.model.tiny, "layers")):
        with pytest.raises(ValueError, match="frozen"):
            setattr(owner, name, 1)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["lerner.lr=1"], "unknown key 'lerner': did you mean 'learner'?"),
        (["learner.lrr=1"], "unknown key 'learner.lrr': did you mean 'lr'?"),
        (["model.tiny.layer=1"], "unknown key 'model.tiny.layer': did you mean 'layers'?"),
        (["env.params.number=8"], "unknown key 'env.params.number': did you mean 'numbers'?"),
        (["env.name=number_serch"], "there is no environment 'number_serch': did you mean 'number_search'?"),
        (["algorithm.method=dr_grppo"], "unknown method 'dr_grppo'; did you mean 'dr_grpo'?"),
        (["learner=3"], "learner is 3; expected a section with"),
        (["learner=null"], "learner is None; expected a section with"),
        (["learner.lora=8"], "learner.lora is 8; expected a section with rank, alpha, targets"),
        (["learner.lora.rnak=8"], "unknown key 'learner.lora.rnak': did you mean 'rank'?"),
        (["learner.lora.rank=0"], "learner.lora.rank is 0: input should be greater than or equal to 1"),
        (["learner.lr.x=3", "learner.lr=1"], "learner.lr"),
        (["learner.lr"], "cannot read the override 'learner.lr'; expected key.sub=value"),
        (["learner.lr=[1"], "cannot read the value of 'learner.lr=[1' as YAML"),
        (["learner.lr=-1"], "learner.lr is -1: input should be greater than 0"),
        (["learner.lr=.nan"], "learner.lr is nan"),
        (["learner.lr=.inf"], "learner.lr is inf"),
        (["rollout.temperature=.inf"], "rollout.temperature is inf"),
        (["learner.schedule=cosin"], "learner.schedule is 'cosin': input should be 'constant', 'linear' or 'cosine'"),
        (["env.params.guesses=0"], "env.params.guesses is 0: input should be greater than or equal to 1"),
        (["rollout.group_size=1"], "group_size is 1, but baseline group_mean compares siblings"),
        (
            ["algorithm.method=reinforce", "algorithm.drift=null", "learner.minibatches=1", "cluster.max_lag=1"],
            "this row corrects for none; set drift to ppo_clip",
        ),
        (
            ["algorithm.method=reinforce", "algorithm.drift=null", "learner.minibatches=1", "learner.epochs=2"],
            "this row corrects for none; set drift to ppo_clip",
        ),
        (["grow.steps=2"], "method dr_grpo learns from every batch at once, so grow means nothing to it; leave it out, or use expert_"),
        ([*REST, "learner.epochs=2"], "set learner.minibatches=1 and learner.epochs=2 to 1"),
        (
            [*REST, "algorithm.method=rest_em", "grow.raise_to=[2.0]"],
            "keeps the episodes that succeeded, so grow.raise_to has no threshold",
        ),
        ([*REST, "grow.raise_to=[1.0]"], "grow.raise_to=[1.0] after algorithm.filter_threshold=1 does not rise"),
        ([*REST, "algorithm.filter_threshold=0", "grow.raise_to=[0.5, 0.2]"], "sort the thresholds, the first of them above"),
        ([*REST, "grow.steps=0"], "grow.steps is 0: input should be greater than or equal to 1"),
        ([*REST, "dead_groups.resample_rounds=1"], "with baseline none groups with equal rewards have one; leave dead_groups out"),
        (["dead_groups.hint=true"], "dead_groups.hint is about newly sampled groups, and resample_rounds is 0; set it to 1 or more"),
        (["dead_groups.train_with_hint=false"], "takes a hint out of the prompt, and hint is false; set hint to true"),
        (
            [*GRPO, "dead_groups.demonstration=oracle"],
            "dead_groups.demonstration trains on samples of another policy, which drift none takes",
        ),
        ([*GRPO, "dead_groups.resample_rounds=1", "dead_groups.temperature=2.0"], "dead_groups.temperature trains on samples of another"),
        (
            ["dead_groups.demonstration=oracle", "algorithm.kl_coef=0.1", "algorithm.kl_in=reward", "algorithm.kl_estimator=k1"],
            "which kl_in reward takes for its own; set kl_in to gradient",
        ),
        (["dead_groups.demonstration=oracle", "algorithm.drift=masked"], "teach nothing that the policy finds unlikely; set drift to tis"),
        (["dead_groups.demonstration=expert"], "dead_groups.demonstration='expert' is no player of number_search: "),
        (
            [
                "env.name=tests.envs.faulty:SPEC",
                "env.params={}",
                "cluster.env_workers=1",
                "dead_groups.resample_rounds=1",
                "dead_groups.hint=true",
            ],
            "has no hint; set it to false, or write EnvSpec.hint",
        ),
        (["learner.minibatches=3", "algorithm.drift=ppo_clip"], "cannot be split into learner.minibatches=3 equal parts"),
        (["rollout.max_turn_tokens=200"], "has no room for a prompt beside a turn of rollout.max_turn_tokens=200"),
        (["rollout.max_context_tokens=256"], "model.tiny.max_position=256 is not more than rollout.max_context_tokens=256"),
        (["cold_start.player=expert"], "cold_start.player='expert' is no player of number_search: "),
        (["env.name=tests.envs.faulty:SPEC", "env.params={}"], "it must run where it can be killed; set cluster.env_workers=1 or more"),
        (["model.tiny.heads=3"], "heads=3 is not a multiple of kv_heads=2"),
        (["model.tiny.hidden_size=100"], "set hidden_size to 64 or 128"),
    ],
)
def test_a_mistake_is_answered_with_its_reason(overrides: list[str], reason: str) -> None:
    with pytest.raises(InputError) as caught:
        load_config(TINY, overrides)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("number-search-tinny", None, "no recipe 'number-search-tinny': did you mean 'number-search-tiny'?"),
        ("missing.yaml", None, "no file "),
        ("list.yaml", "- 1\n", "holds list; expected a mapping of config keys"),
        ("empty.yaml", "", "holds NoneType; expected a mapping of config keys"),
        ("broken.yaml", "steps: [1", "is not valid YAML: "),
        ("typo.yaml", "stepps: 1", "unknown key 'stepps': did you mean 'steps'?"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, name: str, content: str | None, reason: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError) as caught:
        load_config(str(path) if name.endswith(".yaml") else name)
    assert reason in str(caught.value)
