"""What the loader's configuration takes and refuses, and the names that people bring along for its keys."""

from typing import Any

import pytest
from pydantic import ValidationError

from assay.base.config import FrozenConfig
from assay.data.loader.config import BucketedLayout, LineLayout, LoaderConfig, PackedLayout, PaddedLayout

ALMOST_1 = 1 - 1e-9
BOUNDS: list[tuple[type[FrozenConfig], str, list[Any], list[Any]]] = [
    # class, key, the last values that are taken, the first that are not
    (PaddedLayout, "type", ["padded"], ["bucketed", None]),
    (BucketedLayout, "type", ["bucketed"], ["padded", None]),
    (BucketedLayout, "jitter", [0.0, ALMOST_1], [-1e-9, 1.0]),
    (PackedLayout, "type", ["packed"], ["padded", None]),
    (PackedLayout, "sequence_tokens", [1, 1 << 20], [0, -1, None]),
    (LineLayout, "type", ["line"], ["packed", None]),
    (LineLayout, "tokens", [9, 1 << 20], [0, -1, None]),
    (LineLayout, "row_tokens", [None, 1, 9], [0, -1, 10]),
    (LoaderConfig, "seed", [0, 1], [-1, 0.5]),
    (LoaderConfig, "lanes", [1, 2, 64], [0, -1, 3, 63]),
    (LoaderConfig, "global_batch_size", [8, 16], [0, -8, 7, 9]),
    (LoaderConfig, "window_rows", [1], [0, -1]),
    (LoaderConfig, "shuffle_radius_windows", [0, 1], [-1, None]),
    (LoaderConfig, "layout", [PaddedLayout(), BucketedLayout()], ["padded", None]),
    (LoaderConfig, "max_micro_batch_tokens", [None, 1], [0, -1]),
    (LoaderConfig, "on_damage", ["fail", "quarantine"], ["skip", None]),
    (LoaderConfig, "prefetch_steps", [0, 1], [-1, None]),
    (LoaderConfig, "threads", [1], [0, None]),
]
NEEDED = {PackedLayout: {"type": "packed", "sequence_tokens": 9}, LineLayout: {"type": "line", "tokens": 9}}


@pytest.mark.parametrize(
    ("config", "key", "accepted", "rejected"), BOUNDS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_value_is_taken_up_to_its_bounds_and_refused_beyond(config, key, accepted, rejected) -> None:
    needed = NEEDED.get(config, {})
    for value in accepted:
        assert getattr(config.model_validate({**needed, key: value}), key) == value
    for value in rejected:
        with pytest.raises(ValidationError, match=key):
            config.model_validate({**needed, key: value})


def test_every_key_has_its_bounds_here() -> None:
    classes = (PaddedLayout, BucketedLayout, PackedLayout, LineLayout, LoaderConfig)
    keys = {(config, key) for config in classes for key in config.model_fields}
    assert {(config, key) for config, key, *_ in BOUNDS} == keys


def test_what_is_not_chosen_is_as_the_documents_say() -> None:
    config = LoaderConfig()
    assert config.model_dump() == {
        "seed": 0,
        "lanes": 8,
        "global_batch_size": 64,
        "window_rows": 4096,
        "shuffle_radius_windows": 3,
        "layout": {"type": "bucketed", "jitter": 0.0},
        "max_micro_batch_tokens": None,
        "on_damage": "fail",
        "prefetch_steps": 0,
        "threads": 2,
    }
    assert (PaddedLayout().type, config.rows_per_lane, config.window_steps) == ("padded", 8, 512)


NAMES = {
    "seed": "shuffle_seed",
    "global_batch_size": "batch_size train_batch_size bs",
    "window_rows": "shuffle_buffer",
    "max_micro_batch_tokens": "micro_batch_size gradient_accumulation_steps",
    "prefetch_steps": "prefetch",
    "threads": "num_workers",
}
"""Key -> what PyTorch's and TensorFlow's loaders, DeepSpeed, Megatron and fastai call it."""


def test_a_key_is_known_by_the_names_that_other_tools_have_for_it() -> None:
    found: dict[str, set[str]] = {}
    for name, key in LoaderConfig.also_called.items():
        found.setdefault(key, set()).add(name)
    assert found == {key: set(names.split()) for key, names in NAMES.items()}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lanes": 6, "global_batch_size": 6}, "lanes=6 is not a power of two; use 8"),
        ({"lanes": 7, "global_batch_size": 7}, "lanes=7 is not a power of two; use 8"),
        ({"lanes": 4, "global_batch_size": 10}, "global_batch_size=10 is not a multiple of lanes=4; use 12"),
        ({"lanes": 4, "global_batch_size": 3}, "global_batch_size=3 is not a multiple of lanes=4; use 4"),
    ],
)
def test_lanes_that_do_not_divide_are_refused_with_the_next_number_that_would(values, message) -> None:
    with pytest.raises(ValueError, match=message):
        LoaderConfig(**values)


@pytest.mark.parametrize(
    ("lanes", "batch", "window", "rows", "steps"),
    [(4, 12, 10, 3, 3), (1, 5, 4, 5, 1), (8, 8, 4096, 1, 4096), (2, 4, 6, 2, 3)],
)
def test_a_window_feeds_whole_steps_and_at_least_one(lanes, batch, window, rows, steps) -> None:
    config = LoaderConfig(lanes=lanes, global_batch_size=batch, window_rows=window)
    assert (config.rows_per_lane, config.window_steps) == (rows, steps)
