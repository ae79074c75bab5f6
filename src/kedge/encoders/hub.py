"""Find the files of a model: in a folder, in the hub's cache, or on the hub. Weights must be safetensors."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import FileError
from .encoder import TINY, imported, one_line, quiet

DOWNLOADED = ["*.json", "*.txt", "*.model", "model*.safetensors"]
PREPROCESSORS = "preprocessor_config.json", "processor_config.json"
TOKENIZERS = "tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model"
CONVERTER = "SFconvertbot"  # the hub's bot; it converts pickled weights to safetensors in a pull request


def model_folder(where: str) -> Path:
    """The folder of a model: as given, in the hub's cache, or downloaded to it."""
    folder = Path(where).expanduser()
    if folder.is_dir():
        return folder
    if folder == TINY:
        raise FileError(f"the bundled model is missing ({TINY}). Install kedge again.")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", where) or where.startswith("."):
        raise FileError(f"no folder {where}, and not a name on the hub (OWNER/NAME). Check the path.")
    hub = imported("huggingface_hub", "hf")
    cached = Path(hub.constants.HF_HUB_CACHE) / f"models--{where.replace('/', '--')}" / "snapshots"
    whole = [found for found in cached.glob("*") if lacking(found) is None]
    return max(whole, key=lambda found: found.stat().st_mtime) if whole else _downloaded(hub, where)


def _downloaded(hub: Any, repository: str) -> Path:
    """Download a repository to the hub's cache; for pickled weights, the hub's own conversion to safetensors."""
    files: dict[str, Any] = {"allow_patterns": DOWNLOADED, "ignore_patterns": ["*/*"]}
    with _downloading(hub, repository, "hf:DIR"):
        folder = Path(hub.snapshot_download(repository, **files))
        if lacking(folder) is None:
            return folder
        offers = hub.HfApi().get_repo_discussions(
            repository, author=CONVERTER, discussion_type="pull_request", discussion_status="open"
        )
        offer = next(iter(offers), None)
        return Path(hub.snapshot_download(repository, revision=offer.git_reference, **files)) if offer else folder


def file_of(repository: str, name: str, extra: str) -> Path:
    """The path of a file of a repository, downloaded if necessary; there is no file if the repository has none."""
    hub = imported("huggingface_hub", extra)
    cached = hub.try_to_load_from_cache(repository, name)
    if isinstance(cached, str):
        return Path(cached)
    with _downloading(hub, repository, "openclip:DIR"):
        return Path(hub.snapshot_download(repository, allow_patterns=[name])) / name


@contextmanager
def _downloading(hub: Any, repository: str, then: str) -> Iterator[None]:
    """Show only progress bars, and only on a terminal; turn errors into one line that says what to do."""
    hidden = not sys.stderr.isatty() and not hub.utils.are_progress_bars_disabled()
    try:
        if hidden:
            hub.utils.disable_progress_bars()
        with quiet():
            yield
    except hub.errors.RepositoryNotFoundError as error:
        raise FileError(
            f"the hub has no model {repository!r}, or you have no access. Check the name, or log in: hf auth login."
        ) from error
    except Exception as error:  # no network, a proxy, a full disk: many kinds of errors
        offline = isinstance(error, hub.errors.LocalEntryNotFoundError)
        reason = "the hub cannot be reached, and the cache has no copy." if offline else one_line(error)
        raise FileError(
            f"cannot download {repository}: {reason} On a machine with a network, run: "
            f"hf download {repository} --local-dir DIR; then use the encoder {then}."
        ) from error
    finally:
        if hidden:
            hub.utils.enable_progress_bars()


def lacking(folder: Path) -> str | None:
    """What a model's folder lacks, and what to do about it; None if it is complete."""
    if not (folder / "config.json").is_file():
        return "it has no config.json. Name the folder that has one."
    for path in weight_files(folder):
        if path.is_file():
            continue
        if pickled := next(iter(sorted(folder.glob("*.bin"))), None):
            return (
                f"it has pickled weights ({pickled.name}), no {path.name}. Pickles can run code; kedge loads none. "
                f"Convert it: python -c \"from transformers import AutoModel as A; d = '{folder}'; "
                'A.from_pretrained(d).save_pretrained(d)"'
            )
        return f"it has no {path.name}. Download it again."
    if not any((folder / name).is_file() for name in PREPROCESSORS):
        return f"it has no {PREPROCESSORS[0]}. Download it again."
    if not any((folder / name).is_file() for name in TOKENIZERS):
        return f"it has no tokenizer ({TOKENIZERS[0]}). Download it again."
    return None


def weight_files(folder: Path) -> list[Path]:
    """The files with the weights: one, or those in an index."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file() or not index.is_file():
        return [folder / "model.safetensors"]
    return [folder / name for name in sorted(set(read_json(index).get("weight_map", {}).values()))]


def read_json(path: Path) -> dict[str, Any]:
    """Read a file with a JSON object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    raise FileError(f"{path} is not a JSON object: it is damaged. Download it again.")


@contextmanager
def silent() -> Iterator[None]:
    """Hide log lines, warnings and progress bars of transformers."""
    library = imported("transformers", "hf").utils.logging
    hidden = library.is_progress_bar_enabled()
    try:
        if hidden:
            library.disable_progress_bar()
        with quiet():
            yield
    finally:
        if hidden:
            library.enable_progress_bar()
