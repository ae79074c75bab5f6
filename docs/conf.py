"""The documentation: Markdown pages, a gallery that runs the scripts of examples/, and the reference from docstrings.

`make docs` builds it into build/docs; a warning is an error.
"""

from __future__ import annotations

import kedge

project = "kedge"
author = "The kedge authors"
version = release = kedge.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["gallery/README.md"]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3

html_theme = "pydata_sphinx_theme"
html_title = "kedge"

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/\w+\.py",  # run all of them
    "download_all_examples": False,
    "show_memory": False,
    "abort_on_example_error": True,
}
