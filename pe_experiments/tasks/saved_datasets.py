"""Texts that the library ``datasets`` has saved on disk with ``save_to_disk``."""

import importlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

ONE_DATASET, SEVERAL_SPLITS = "state.json", "dataset_dict.json"  # files in a saved folder


def saved_splits(path: str) -> list[Path]:
    """Return the folder of each split of a saved dataset, the folder itself if it has none, else nothing."""
    folder = Path(path)
    if (folder / ONE_DATASET).is_file():
        return [folder]
    if (folder / SEVERAL_SPLITS).is_file():
        return sorted(split.parent for split in folder.glob(f"*/{ONE_DATASET}"))
    return []


def data_files(folder: Path) -> list[Path]:
    """Return the files with the rows of a saved dataset; other files hold its history."""
    return sorted(folder.glob("data-*.arrow"))


@lru_cache(maxsize=12)
def dataset_bytes(folder: str, column: str, changed_at: int) -> np.ndarray:
    """Return the rows of a column, joined by line feeds.

    Args:
        folder: a saved dataset without splits.
        column: a column of strings; empty rows are left out.
        changed_at: when the dataset changed, so that a changed dataset is read again.

    Raises:
        ValueError: the library is not installed, or there is no such column.
    """
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    dataset = text_library("datasets", f"path={folder}").load_from_disk(folder)
    columns = [name for name, feature in dataset.features.items() if "string" in str(feature)]
    if column not in columns:
        allowed = f"allowed: {', '.join(columns)}" if columns else "it has no column of texts"
        raise ValueError(f"column={column}: {folder} has no such column of texts; {allowed}")
    rows = filter(None, dataset[column][:])
    return np.frombuffer("\n".join(rows).encode(), np.uint8)


def text_library(name: str, argument: str) -> Any:
    """Return an optional library; an error names the argument that needs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        how = 'install it with pip install -e ".[text]"'
        raise ValueError(f"{argument}: the library {name} is not installed; {how}") from error
