"""Merge the configuration of a trained run with the settings of the user who evaluates or continues it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from omegaconf import OmegaConf

from pe_experiments.configuration.component import load_component, signature_of
from pe_experiments.configuration.schema import TRAINER_OPTIONS_IN_IDENTITY

ABSENT = object()


def with_settings(
    saved: Mapping[str, Any], requested: Mapping[str, Any], keys: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the configuration of a trained run with the settings of the user.

    Logger, devices and threads are always the user's. Options of ``trainer`` that belong to the identity of
    the run, and everything else, are the user's only if they are among the keys.

    Args:
        saved: the configuration of the run, which may come from a stranger.
        requested: the configuration of the user.
        keys: that the user set, such as ``pe`` or ``training.steps``.
    """
    arithmetic = saved["trainer"].keys() & set(TRAINER_OPTIONS_IN_IDENTITY)
    trainer = {**requested.get("trainer", {}), **{key: saved["trainer"][key] for key in arithmetic}}
    content = {**saved, "logger": requested.get("logger", {}), "trainer": trainer}
    merged = OmegaConf.create(content, flags={"allow_objects": True})  # the schema refuses such values
    source = OmegaConf.create(dict(requested), flags={"allow_objects": True})
    # A class comes with its arguments, and a section is set before the values in it.
    for key in sorted({key.removesuffix("._target_") for key in keys} - {"trainer"}):
        value = OmegaConf.select(source, key, default=ABSENT)
        if value is ABSENT:  # deleted by ~
            continue
        if key == "pe" and isinstance(requested["pe"], dict):
            value = _with_trained_arguments(requested["pe"], saved["pe"])
        OmegaConf.update(merged, key, value, merge=False, force_add=True)
    plain: Any = OmegaConf.to_container(merged)
    return plain


def _with_trained_arguments(chosen: dict[str, Any], trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section of an encoding that replaces that of a trained run.

    It keeps the run's `PositionalEncoding.trained_arguments`, except those for which the choice itself
    differs from the defaults, such as ``kept_frequencies`` of p_rope.
    """
    cls = load_component("pe", chosen).cls
    defaults = signature_of(cls).defaults
    names: tuple[str, ...] = cls.trained_arguments  # type: ignore[attr-defined]
    if not all(name in trained and name in defaults for name in names):
        return chosen
    kept = {name: trained[name] for name in names if chosen.get(name, defaults[name]) == defaults[name]}
    return chosen | kept
