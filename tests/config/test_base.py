"""Tests of `Config`: files, checks of types and values, and use as a dataclass."""

import dataclasses
import enum
import inspect
import json
import math
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from flax import nnx

from learner import Config, LearnerError
from tests.support.codes import named_case, raises_code


class Speed(enum.Enum):
    FAST = "quick"
    SLOW = "leisurely"


class Layer(Config):
    width: int
    activation: Literal["relu", "gelu"] = "relu"


class Pool(Config):
    size: int = 2


class Wide(Layer):
    factor: float = 2.0


class Everything(Config):
    count: int
    rate: float = 1
    name: str = "1e-3"
    flag: bool = False
    maybe: int | None = None
    speed: Speed = Speed.FAST
    pair: tuple[int, str] = (1, "a")
    rates: tuple[float, ...] = (1, 0.5)
    widths: list[int] = [64, 64]
    by_name: dict[str, list[int]] = {"a": [1], "yes": []}
    by_number: dict[int, float] = {3: 1.0}
    by_speed: dict[Speed, int] = {Speed.SLOW: 1}
    either: int | str | list[int] = "3"
    path: Path = Path("data/train")
    layer: Layer = Layer(width=3)
    derived: Layer = Wide(width=3)
    one_of: Layer | Pool = Pool()
    blocks: list[Layer | Pool] = [Layer(width=1), Pool(size=3)]
    optional: Layer | None = None
    plain: dict[str, Any] = {"x": [1, None, {"y": "no"}]}
    limit: float = math.inf


class Range(Config):
    low: int = 0
    high: int = 1

    def __post_init__(self):
        if self.low > self.high:
            raise ValueError(f"low is {self.low}, above high, {self.high}")


class Ranges(Config):
    ranges: list[Range] = []
    count: int = 0


@pytest.mark.parametrize("suffix", ["json", "yaml", "yml"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"rate": 1e-12, "name": "null", "flag": True, "maybe": 3, "speed": Speed.SLOW, "either": [1, 2]},
        {"name": "a: b\n # c\n\n", "either": 3, "optional": Wide(width=1, factor=0.1), "blocks": [], "by_name": {}},
        {"name": "", "layer": Layer(width=-1, activation="gelu"), "one_of": Layer(width=2), "limit": -math.inf},
        {"name": "é ~ .5 1_000 0x1F 12:30:00 2024-01-01", "either": "true", "by_name": {"1": [1], "null": [2]}},
    ],
)
def test_saved_configs_load_unchanged(tmp_path, suffix, more):
    config = Everything(count=1, **more)
    path = tmp_path / "new" / f"config.{suffix}"
    config.save(path)
    loaded = Everything.load(path)
    assert loaded == config
    assert repr(loaded) == repr(config)  # repr distinguishes 1 from 1.0
    assert hash(loaded) == hash(config)


def test_strings_stay_strings(tmp_path):
    """PyYAML and the library's reader, which reads 1e-3 as a number, must both read a string."""
    cases = ["1e-3", "1.0", "0x10", "yes", "null", "~", "2024-01-01", "[a]", "{", "- a", "a: "]
    for text in cases:
        with named_case(text):
            Everything(count=1, name=text).save(tmp_path / "a.yaml")
            assert Everything.load(tmp_path / "a.yaml").name == text
            assert yaml.safe_load((tmp_path / "a.yaml").read_text())["name"] == text


def test_files_are_complete_and_readable(tmp_path):
    config = Ranges(ranges=[Range(high=3)])
    config.save(tmp_path / "a.json")
    config.save(tmp_path / "a.yaml")
    assert (tmp_path / "a.yaml").read_text() == "ranges:\n- {low: 0, high: 3}\ncount: 0\n"
    content = {"ranges": [{"low": 0, "high": 3}], "count": 0}
    assert json.loads((tmp_path / "a.json").read_text()) == content == config.to_dict()
    assert (tmp_path / "a.json").read_text().splitlines()[-2:] == ['  "count": 0', "}"]


def test_files_without_newer_fields_load(tmp_path):
    (tmp_path / "old.json").write_text('{"width": 7}')
    assert Layer.load(tmp_path / "old.json") == Layer(width=7, activation="relu")
    (tmp_path / "old.yaml").write_text("count: 1\nlayer: {width: 2}\n")
    assert Everything.load(tmp_path / "old.yaml").layer == Layer(width=2)


def test_numbers_may_be_written_in_any_notation(tmp_path):
    (tmp_path / "a.yaml").write_text("count: 1\nrate: 1e-3\nlimit: 5\nspeed: quick\nrates: [1, 2e3]\n")
    loaded = Everything.load(tmp_path / "a.yaml")
    assert (loaded.rate, loaded.limit, loaded.speed, loaded.rates) == (0.001, 5.0, Speed.FAST, (1.0, 2000.0))
    assert type(loaded.limit) is float


def test_all_problems_are_one_error():
    with pytest.raises(LearnerError) as caught:
        Everything.from_dict(
            {
                "cuont": 1,
                "rate": "fast",
                "name": 3,
                "flag": 1,
                "maybe": "3",
                "speed": "FSAT",
                "pair": [1],
                "rates": ["a"],
                "widths": [1, "2", None],
                "by_name": {"a": [1, 2.5]},
                "either": 2.5,
                "path": 3,
                "layer": {"wdith": 3, "activation": "rellu"},
                "one_of": {"class_path": "Poll"},
                "blocks": [{"size": "large"}, 3],
                "optional": {"width": True},
                "plain": 3,
            }
        )
    title, *problems = str(caught.value).split("\n")
    assert title == f"this is not a valid Everything, {len(problems)} problems:"
    messages = [problem.partition(". ")[2] for problem in problems]
    assert messages == [
        "Everything has no 'cuont': did you mean 'count'?",
        "Everything needs 'count'",
        "Everything.rate is 'fast': it needs a number",
        "Everything.name is 3: it needs a text",
        "Everything.flag is 1: it needs true or false",
        "Everything.maybe is '3': it needs a whole number or null",
        "Everything.speed is 'FSAT': did you mean 'FAST'?",
        "Everything.pair is [1]: it needs a list of a whole number and a text, which has 2 items",
        "Everything.rates.0 is 'a': it needs a number",
        "Everything.widths.1 is '2': it needs a whole number",
        "Everything.widths.2 is None: it needs a whole number",
        "Everything.by_name.a.1 is 2.5: it needs a whole number",
        "Everything.either is 2.5: it needs a whole number or a text or a list of whole numbers",
        "Everything.path is 3: it needs Path",
        "Everything.layer has no 'wdith': did you mean 'width'?",
        "Everything.layer needs 'width'",
        "Everything.layer.activation is 'rellu': did you mean 'relu' or 'gelu'?",
        "Everything.one_of.class_path is 'Poll': did you mean 'Pool'? (other classes must be imported first)",
        "Everything.blocks.0.size is 'large': it needs a whole number",
        "Everything.blocks.1 is 3: it needs Layer or Pool",
        "Everything.optional.width is True: it needs a whole number",
        "Everything.plain is 3: it needs a mapping",
    ]


def test_configs_created_in_python_are_checked():
    with raises_code("config-fields-wrong", "2 problems", "'widht'", "'width'"):
        Layer(widht=3)
    with raises_code("config-fields-wrong", "Layer.width", "'a'", "a whole number"):
        dataclasses.replace(Layer(width=1), width="a")
    with raises_code("config-fields-wrong", "Pool", "3"):
        Pool(3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Layer(width=1).width = 2
    assert Ranges(ranges=[{"high": 4}]).ranges == [Range(high=4)]
    assert type(Layer(width=np.int64(3)).width) is int
    assert type(Wide(width=1, factor=np.float32(0.5)).factor) is float


def test_errors_of_post_init_are_reported_with_the_other_problems(tmp_path):
    (tmp_path / "a.yaml").write_text("ranges: [{low: 3}, {}]\ncount: z\n")
    with pytest.raises(LearnerError) as caught:
        Ranges.load(tmp_path / "a.yaml")
    assert str(caught.value).split("\n") == [
        f"{tmp_path}/a.yaml is not a valid Ranges, 2 problems:",
        "  1. Ranges.ranges.0: low is 3, above high, 1",
        "  2. Ranges.count is 'z': it needs a whole number",
    ]
    with pytest.raises(ValueError, match=r"^low is 3, above high, 1$"):
        Range(low=3)


def test_malformed_files_are_refused(tmp_path):
    cases = [
        ("a.txt", "{}", "config-suffix-unknown", ["'.txt'", ".json, .yaml, .yml"]),
        ("a.json", "{width: 3}", "config-not-json", ["Layer", "a.json", "line 1 column 2"]),
        ("a.yaml", "width: [", "config-not-yaml", ["Layer", "a.yaml"]),
        ("a.yaml", "- 3", "config-not-mapping", ["list"]),
        ("a.json", "[" * 100_000, "config-too-deep", ["50 levels"]),
        ("a.yaml", "[" * 100, "config-unsafe-yaml", ["50 levels"]),
        ("a.json", '{"width": 3, "width": 4}', "config-key-twice", ["'width'"]),
        ("a.yaml", "width: 3\nactivation: relu\nwidth: 4", "config-unsafe-yaml", ["'width'", "line 3"]),
        ("a.json", "\xff", "config-unreadable", ["a.json"]),
        ("a.json", '{"width": null}', "config-fields-wrong", ["a.json: Layer.width is None", "a whole number"]),
    ]
    for name, text, code, shown in cases:
        with named_case((name, text, code, shown)):
            (tmp_path / name).write_text(text, encoding="latin-1")
            with raises_code(code, *shown):
                Layer.load(tmp_path / name)


def test_missing_and_unwritable_files_are_refused(tmp_path):
    Layer(width=3).save(tmp_path / "layer.yaml")
    with raises_code("config-file-missing", "layr.yaml", "layer.yaml'"):
        Layer.load(tmp_path / "layr.yaml")
    with raises_code("config-unsavable", "layer.yaml/a.json"):
        Layer(width=3).save(tmp_path / "layer.yaml" / "a.json")
    with raises_code("config-suffix-unknown"):
        Layer(width=3).save(tmp_path / "layer")


def test_files_name_classes_only_where_needed_and_import_nothing(tmp_path):
    saved = Everything(count=1).to_dict()
    assert saved["layer"] == {"width": 3, "activation": "relu"}
    assert saved["derived"] == {
        "class_path": f"{Wide.__module__}.Wide",
        "init_args": {"width": 3, "activation": "relu", "factor": 2.0},
    }
    assert saved["one_of"] == {"class_path": f"{Pool.__module__}.Pool", "init_args": {"size": 2}}
    (tmp_path / "gone.py").write_text("raise SystemExit('it was imported')")
    with raises_code("config-fields-wrong", "class_path", "'gone.Pool2'", "imported first"):
        Everything.from_dict({"count": 1, "one_of": {"class_path": "gone.Pool2"}})
    assert Everything.from_dict({"count": 1, "one_of": {"class_path": "elsewhere.Pool"}}).one_of == Pool()


def test_ambiguous_unions_of_configs_need_a_class_path():
    class A(Config):
        size: int = 1

    class B(Config):
        size: int = 1

    class Either(Config):
        it: A | B

    with raises_code("config-fields-wrong", "Either.it", "A and B", "class_path"):
        Either.from_dict({"it": {"size": 3}})
    assert Either.from_dict(Either(it=B(size=3)).to_dict()).it == B(size=3)


def test_members_of_unions_keep_their_type(tmp_path):
    class Unions(Config):
        real_first: float | int = 3
        list_of_real_first: list[float] | list[int] = [1]
        ambiguous: tuple[int, ...] | list[int] = [1]

    config = Unions()
    config.save(tmp_path / "a.json")
    assert repr(Unions.load(tmp_path / "a.json")) == repr(config)
    assert repr(config).endswith("Unions(real_first=3, list_of_real_first=[1], ambiguous=[1])")
    with raises_code("config-value-changes", name="ambiguous"):
        Unions(ambiguous=(1,)).save(tmp_path / "b.json")
    assert not (tmp_path / "b.json").exists()


def test_classes_that_cannot_be_configs():
    class Called(Config):
        function: Any = None
        other: type = int

    with raises_code("config-fields-wrong", "Called.other"):
        Called()
    with raises_code("config-defines-init"):

        class _Own(Config):
            def __init__(self):
                pass

    with raises_code("config-field-is-method", "'load'"):

        class _Load(Config):
            load: float = 0.5

    with raises_code("config-field-without-type", "_Wider.width"):  # dataclasses ignore it

        class _Wider(Layer):
            width = 128

    with pytest.raises(TypeError, match="frozen"):  # a mutable subclass could not be checked

        @dataclasses.dataclass
        class _Decorated(Config):
            size: int = 1


def test_wrong_defaults_are_refused():
    class Wrong(Config):
        size: int = "large"

    with raises_code("config-fields-wrong", "Wrong.size", "'large'", "a whole number"):
        Wrong()


def test_defaults_are_not_shared():
    first = Everything(count=1)
    first.widths.append(3)
    first.by_name["a"].append(2)
    assert Everything(count=1).widths == [64, 64]
    assert Everything(count=1).by_name["a"] == [1]


def test_a_config_is_a_dataclass():
    assert [field.name for field in dataclasses.fields(Layer)] == ["width", "activation"]
    assert list(inspect.signature(Layer).parameters) == ["width", "activation"]
    assert repr(Layer(width=3)) == "Layer(width=3, activation='relu')"
    assert dataclasses.replace(Layer(width=3), width=4) == Layer(width=4)


def test_a_compiled_model_may_contain_its_config():
    class Model(nnx.Module):
        def __init__(self, config, rngs):
            self.config = config
            self.out = nnx.Linear(2, config.widths[0], rngs=rngs)

    traced = []

    @nnx.jit
    def call(model, x):
        traced.append(1)
        return model.out(x) * model.config.rate

    for _ in range(2):
        out = call(Model(Everything(count=1, widths=[5]), nnx.Rngs(0)), jnp.ones((1, 2)))
    assert out.shape == (1, 5)
    assert len(traced) == 1  # equal configs share one compilation
    static = jax.jit(lambda config: jnp.zeros(config.count), static_argnums=0)
    assert static(Everything(count=4)).shape == (4,)
