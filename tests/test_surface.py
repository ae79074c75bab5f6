"""The public names of kedge: all of them, always functions and classes, without waiting for torch."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

import kedge
from pictures import save_pictures

SOURCE = Path(kedge.__file__)


def typed_names() -> dict[str, str]:
    """Name → module, of the imports below `if TYPE_CHECKING:`."""
    (block,) = (node for node in ast.parse(SOURCE.read_text(encoding="utf-8")).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom) and node.level]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def test_types_modules_and_all_agree() -> None:
    assert typed_names() == kedge._MODULE_OF
    assert set(kedge.__all__) == {"__version__", *kedge._MODULE_OF}
    assert dir(kedge) == sorted(kedge.__all__)


@pytest.mark.parametrize("name", sorted(kedge._MODULE_OF))
def test_every_name_loads_and_is_documented(name: str) -> None:
    found = getattr(kedge, name)
    assert not isinstance(found, ModuleType)
    if inspect.isfunction(found) or inspect.isclass(found):
        assert inspect.getdoc(found)
        assert found.__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'kedge' has no attribute 'adpt'"):
        _ = kedge.adpt


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_import_kedge_is_light() -> None:
    run(
        "import sys, kedge; dir(kedge)\n"
        "heavy = {'torch', 'numpy', 'scipy', 'PIL', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )


NOT_NEEDED = (
    "transformers",
    "huggingface_hub",
    "torch._dynamo",
    "torch.onnx",
    "torch.distributed.tensor",
    "scipy.optimize",
    "matplotlib",
    "pandas",
    "rich",
)


def imported_by(command: Sequence[str], modules: Sequence[str], place: Path) -> set[str]:
    """Which of these modules a command imports."""
    program = (
        "import sys; from kedge.cli import main\n"
        f"try: main({list(command)!r})\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        f"print(*{set(modules)!r} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=place, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_labelling_a_folder_imports_only_what_it_needs(tmp_path: Path) -> None:
    """The libraries of a model's other uses would take longer than a few photos."""
    pytest.importorskip("tokenizers", reason='the bundled model needs it: pip install "kedge[hf]"')
    save_pictures(tmp_path / "photos")
    adapt = ["adapt", "photos", "--encoder", "tiny", "--out", "o.csv", "--keep-features", "f.safetensors"]
    assert imported_by(adapt, [*NOT_NEEDED, "tokenizers"], tmp_path) == {"tokenizers"}
    again = ["adapt", "f.safetensors", "--out", "o.csv"]
    assert imported_by(again, [*NOT_NEEDED, "tokenizers", "torch"], tmp_path) == {"torch"}


def test_a_clip_is_loaded_without_transformers(tmp_path: Path) -> None:
    from encoder_tools import build

    build(tmp_path / "clip", "clip")
    save_pictures(tmp_path / "photos")
    extract = ["extract", "photos", "--encoder", "clip"]
    assert imported_by(extract, [*NOT_NEEDED, "tokenizers"], tmp_path) == {"tokenizers"}


def test_no_module_takes_the_place_of_a_name() -> None:
    """Python sets a sub-module as an attribute of its package when it is imported."""
    run(
        "import importlib, pkgutil, sys, types, kedge\n"
        "for module in pkgutil.walk_packages(kedge.__path__, 'kedge.'):\n"
        "    if not module.name.endswith('__main__') and 'compiled' not in module.name:\n"
        "        importlib.import_module(module.name)\n"
        "hidden = [name for name in kedge._MODULE_OF if isinstance(getattr(kedge, name), types.ModuleType)]\n"
        "sys.exit(f'modules instead of functions: {hidden}' if hidden else 0)"
    )


def test_rooms_are_reached_without_importing_them_first() -> None:
    code = "import kedge; assert kedge.methods.__name__ == 'kedge.methods' and kedge.progress.on_stderr"
    subprocess.run([sys.executable, "-c", code], check=True)
