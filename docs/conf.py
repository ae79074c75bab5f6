"""The documentation: Markdown pages, a gallery that runs the scripts of examples/, and the reference from docstrings.

`make docs` builds it into build/docs; a warning is an error. The site loads nothing from elsewhere, so it works
offline: equations are text, in Unicode, and there is no MathJax.

A link to a file outside docs/ is a relative path, as GitHub follows it: `[the test](../tests/test_golden.py)`. On the
site it is a download of that file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import kedge

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "kedge"
author = "The kedge authors"
copyright = "The kedge authors, Apache-2.0"
version = release = kedge.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "command_line",
    "docstrings",
    "outside_links",
]
exclude_patterns = ["_ext", "gallery/README.md", "sg_execution_times.rst", "gallery/sg_execution_times.rst"]
highlight_language = "text"  # of indented blocks: equations and shell commands
pygments_style = "tango"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_type_aliases = {name: name for name in ("Array", "Integers", "Known", "Present", "State")}

html_theme = "pydata_sphinx_theme"
html_title = "kedge"
html_logo = html_favicon = str(Path(kedge.__file__).parent / "serve" / "page" / "icon.svg")
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {"index": []}
html_theme_options = {
    "logo": {"text": "kedge"},
    "header_links_before_dropdown": 5,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "show_nav_level": 2,
    "show_toc_level": 2,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "github-dark",
}

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/\w+\.py",  # run all of them
    "within_subsection_order": "task_order.place",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "abort_on_example_error": True,
}
