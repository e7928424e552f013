"""The Sphinx configuration: `sphinx-build -W --keep-going -b html docs site`. Building and reading need no network."""

import os
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # modules are imported for their docstrings, nothing is computed
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from learner.util.distribution import VERSION  # noqa: E402

project = "learner"
copyright = "the authors of learner"
release = VERSION

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "plain",
    "sources",
    "usage",
]
exclude_patterns = ["site", "_build"]

myst_heading_anchors = 3
myst_url_schemes = {"http": None, "https": None, "mailto": None, "source": None}  # `source`: see sources.py

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "learner"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["learner.css"]
PARTS = ("brand", "search", "scroll-start", "navigation", "scroll-end")
html_sidebars = {"**": [f"sidebar/{part}.html" for part in PARTS]}
