"""Find the files of a model: in a folder, in the hub's cache, or on the hub.

Weights must be safetensors, and a model that brings Python code of its own is refused: kedge runs no code of models.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import FileError
from .encoder import TINY, imported, one_line, quiet

DOWNLOADED = ["*.json", "*.txt", "*.model", "model*.safetensors"]
MODEL_TYPES = "clip", "siglip", "vision-text-dual-encoder"
PREPROCESSORS = "preprocessor_config.json", "processor_config.json"
# The models that kedge names itself, at a fixed commit: nothing that is pushed later, or offered in a pull request, is
# used. Where main has only pickles, the commit is the conversion to safetensors by the hub's own bot.
PINNED = {
    "openai/clip-vit-base-patch16": "5ef227a78de3f75873f373246dac80def63b0003",  # a conversion
    "openai/clip-vit-base-patch32": "c237dc49a33fc61debc9276459120b7eac67e7ef",  # a conversion
    "openai/clip-vit-large-patch14": "32bd64288804d66eefd0ccbe215aa642df71cc41",
}
TOKENIZERS = "tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model"


def model_folder(where: str) -> Path:
    """The folder of a model: as given, in the hub's cache, or downloaded to it.

    `OWNER/NAME@REVISION` asks for a branch, a tag or a commit; the default is the commit in `PINNED`, else main. In the
    cache, the folder's name is the commit. A pull request is not used, since anybody can open one.
    """
    folder = Path(where).expanduser()
    if os.path.isdir(folder):
        return folder
    if folder == TINY:
        raise FileError(f"the bundled model is missing ({TINY}). Install kedge again.")
    hub, repository, revision = _on_the_hub(where)
    return _cached(hub, repository, revision) or _downloaded(hub, repository, revision)


def unfamiliar(where: str) -> bool:
    """Is this model on the hub one that nobody chose here: not in the cache, and not at a commit in `PINNED`?"""
    hub, repository, revision = _on_the_hub(where)
    pinned = revision is not None and revision == PINNED.get(repository)
    return not pinned and _cached(hub, repository, revision) is None


def _on_the_hub(where: str) -> tuple[Any, str, str | None]:
    """The hub's library; the repository and the revision that `OWNER/NAME[@REVISION]` means. None: main."""
    repository, at, revision = where.partition("@")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", repository) or where.startswith("."):
        raise FileError(f"no folder {where}, and not a name on the hub (OWNER/NAME). Check the path.")
    if at and not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", revision):
        raise FileError(f"{revision!r} is not a revision. Write OWNER/NAME@REVISION with a branch, a tag or a commit.")
    if re.search(r"(^|/)pr/", revision):
        raise FileError(
            f"{revision} is a pull request, which anybody can open and change; kedge uses none. "
            f"If you trust its content, name its commit: hf:{repository}@COMMIT."
        )
    hub = imported("huggingface_hub", "hf")
    try:
        hub.utils.validate_repo_id(repository)
    except hub.errors.HFValidationError as error:
        raise FileError(f"not a name on the hub: {one_line(error)} Write OWNER/NAME.") from error
    return hub, repository, revision or PINNED.get(repository)


def _cached(hub: Any, repository: str, revision: str | None) -> Path | None:
    """The folder of a revision in the hub's cache, if it is complete."""
    config = hub.try_to_load_from_cache(repository, "config.json", revision=revision)
    return Path(config).parent if isinstance(config, str) and lacking(Path(config).parent) is None else None


def _downloaded(hub: Any, repository: str, revision: str | None) -> Path:
    """Download a revision of a repository to the hub's cache."""
    with _downloading(hub, repository, "hf:DIR", revision):
        folder = Path(
            hub.snapshot_download(repository, revision=revision, allow_patterns=DOWNLOADED, ignore_patterns=["*/*"])
        )
    if not all(path.is_file() for path in weight_files(folder)):
        raise FileError(
            f"{repository} at commit {folder.name} has no weights as safetensors. Pickles can run code; kedge loads "
            f"none, and uses no pull request. Choose another model, or a commit that has them: hf:{repository}@COMMIT."
        )
    return folder


def cached_models() -> list[str]:
    """Names of the CLIP and SigLIP models that are complete in the hub's cache, as OWNER/NAME."""
    try:
        hub: Any = import_module("huggingface_hub.constants")
    except ImportError:
        return []
    found = set()
    for snapshot in Path(hub.HF_HUB_CACHE).glob("models--*/snapshots/*"):
        with suppress(FileError, OSError):
            if lacking(snapshot) is None and read_json(snapshot / "config.json").get("model_type") in MODEL_TYPES:
                found.add(snapshot.parents[1].name.removeprefix("models--").replace("--", "/"))
    return sorted(found)


def check_no_code(folder: Path) -> None:
    """Raise FileError if a model's folder names code that transformers would run or offer to run.

    That is `auto_map`, Python code that comes with the model, and an attention kernel from the hub (OWNER/NAME).
    """
    for path in sorted(folder.glob("*config*.json")):
        parts = [read_json(path)]
        while parts:
            for key, value in parts.pop().items():
                if key == "auto_map" or (key.endswith("attn_implementation") and "/" in str(value)):
                    raise FileError(
                        f"{path} names code that comes with the model ({key}); kedge runs no such code. "
                        "Choose a model without it."
                    )
                if isinstance(value, dict):
                    parts.append(value)


def file_of(repository: str, name: str, extra: str) -> Path:
    """The path of a file of a repository, downloaded if necessary; there is no file if the repository has none."""
    hub = imported("huggingface_hub", extra)
    cached = hub.try_to_load_from_cache(repository, name)
    if isinstance(cached, str):
        return Path(cached)
    with _downloading(hub, repository, "openclip:DIR"):
        return Path(hub.snapshot_download(repository, allow_patterns=[name])) / name


@contextmanager
def _downloading(hub: Any, repository: str, then: str, revision: str | None = None) -> Iterator[None]:
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
    except hub.errors.RevisionNotFoundError as error:
        raise FileError(f"the hub's {repository} has no revision {revision!r}. Check it, or leave it out.") from error
    except Exception as error:  # no network, a proxy, a full disk: many kinds of errors
        offline = isinstance(error, hub.errors.LocalEntryNotFoundError)
        which = f"{repository} --revision {revision}" if revision else repository
        reason = "the hub cannot be reached, and the cache has no copy." if offline else one_line(error)
        raise FileError(
            f"cannot download {repository}: {reason} On a machine with a network, run: "
            f"hf download {which} --local-dir DIR; then use the encoder {then}. "
            "To try kedge without a download: --encoder tiny, a small model that knows only drawings of common things."
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
    except (ValueError, RecursionError):
        pass
    raise FileError(f"{path} is not a JSON object: it is damaged. Download it again.")


@contextmanager
def without_prompts() -> Iterator[None]:
    """Within this context, transformers refuses a model's own code at once, for callers that cannot tell it to.

    Otherwise it asks on the terminal, for 15 seconds, whether to run the code.
    """
    try:
        asking: Any = import_module("transformers.dynamic_module_utils")
    except ImportError:  # no transformers, nothing to ask
        yield
        return
    before = asking.TIME_OUT_REMOTE_CODE
    asking.TIME_OUT_REMOTE_CODE = 0
    try:
        yield
    finally:
        asking.TIME_OUT_REMOTE_CODE = before


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
