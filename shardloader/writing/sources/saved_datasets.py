"""In which order come the files of a dataset that Hugging Face's `datasets` saved to disk?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from shardloader.errors import UsageError
from shardloader.writing.sources.files import opened

if TYPE_CHECKING:
    from shardloader.writing.sources.files import InputFile

SAVED_STATE = "state.json"


def in_saved_order(files: list[InputFile], others: list[InputFile]) -> list[InputFile]:
    """Put the files of each folder that `datasets` saved into the order that it says."""
    if any(_base_name(file) == "dataset_dict.json" for file in others):
        raise UsageError("this folder holds several splits, as `datasets` saved them: give one")
    saved = {_folder(file): file for file in others if _base_name(file) == SAVED_STATE}
    ordered: list[InputFile] = []
    for folder in dict.fromkeys(map(_folder, files)):
        here = [file for file in files if _folder(file) == folder]
        ordered += _listed(saved[folder], here) if folder in saved else here
    return ordered


def _listed(state: InputFile, files: list[InputFile]) -> list[InputFile]:
    """Give the files that a saved dataset says it has, in its order."""
    try:
        with opened(state) as handle:
            said = json.load(handle)
        listed = [entry["filename"] for entry in said["_data_files"]]
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{state.shown} does not list data files as that of `datasets` does ({error!r}): give "
            "the files that are to be read"
        ) from None
    if any(value for name, value in said.items() if name.startswith("_indices")):
        raise UsageError(
            f"{state.shown}: rows were chosen from this dataset and saved as their numbers, by an "
            "old release of `datasets`: load it with that and save flatten_indices() of it"
        )
    by_name = {_base_name(file): file for file in files}
    missing = [name for name in listed if name not in by_name]
    if missing:
        raise UsageError(f"{state.shown} lists {missing[0]!r}, which is not there")
    return [by_name[name] for name in listed]


def _folder(file: InputFile) -> str:
    return file.location.rpartition("/")[0]


def _base_name(file: InputFile) -> str:
    return file.location.rpartition("/")[2]
