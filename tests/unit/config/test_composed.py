"""What psrun composes from choices and keys is what Hydra composes from both."""

from __future__ import annotations

import pytest
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from psrun.config.compose import Composer
from psrun.errors import ConfigError


def by_hydra(arguments: list[str]) -> DictConfig:
    return Composer([]).loader.load_configuration("config", arguments, RunMode.RUN)


@pytest.mark.parametrize(
    "arguments",
    [
        ["model=dense", "seed=7", "cluster=local", "cluster.num_ps=3", "model.hidden_units=[8,4]", "trainer=fit"],
        ["experiment=smoke", "optimizer.learning_rate=0.5", "++model.extra={a:1,b:[x,y]}", "~trainer.prefetch_rows"],
        ["+model.extra=null", "+export.more=${seed}", "++seed=3", "+trainer.hooks=[{_target_:mine.hook}]"],
        ["data=table", "data.path='a b.csv'", 'data.label="y,z"', "data.columns={x:int,y:null}", "data.columns.x=uint"],
        ["early_stopping={metric:val_auc,mode:max}", "early_stopping.patience=9", "~early_stopping.min_delta=0.0"],
        ["hydra.run.dir=x", "hydra.job.chdir=true", "hydra.job.config.override_dirname.exclude_keys=[seed]", "seed=2"],
        ["hydra.job.env_copy=[PATH]", "+hydra.job.env_set.A=b", "mode=plan", "task.index=5", "task.type=worker"],
        ["model=embedding", "model.embedding_dim=010", "seed=1_000", "predict.path=12:30", "restore=best"],
        [],
    ],
)  # fmt: skip
def test_keys_have_the_values_that_hydra_gives_them(arguments):
    composed, expected = Composer([]).compose(arguments), by_hydra(arguments)
    assert OmegaConf.to_yaml(composed) == OmegaConf.to_yaml(expected)
    assert OmegaConf.is_struct(composed)


@pytest.mark.parametrize(
    "argument",
    ["seeed=1", "trainer.nope=1", "model.a.b=1", "+seed=3", "~nope", "~data.path", "~seed=2", "seed.x=1", "task=[1]"],
)
def test_what_hydra_refuses_psrun_refuses_with_the_key(argument):
    with pytest.raises(Exception):  # noqa: B017, PT011 - Hydra has several types
        by_hydra([argument])
    with pytest.raises(ConfigError) as raised:
        Composer([]).compose([argument])
    assert raised.value.problems[0].key == argument.lstrip("+~").partition("=")[0]
