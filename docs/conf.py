"""How Sphinx builds the documentation site: ``python -m sphinx -W -b html docs build/site``."""

from __future__ import annotations

import sys
from pathlib import Path

from gradconform.version import KIT_VERSION

sys.path.insert(0, str(Path(__file__).parent))  # for kit_pages, which stands beside this file

project = "gradconform"
author = "The gradconform authors"
copyright = f"2026, {author}"  # noqa: A001 (Sphinx's own word for it)
release = version = KIT_VERSION

extensions = ["myst_parser", "sphinx.ext.autodoc", "kit_pages"]
exclude_patterns = ["_build"]
nitpicky = True  # a name in a docstring that leads nowhere is a warning, and a warning is an error
nitpick_ignore_regex = [("py:class", r"(?!gradconform\.).*|.*\.Shard")]  # types in signatures, such as torch's

# Pages are read on GitHub as well, so links are those of the checkout and headings have GitHub's anchors.
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"gradconform {KIT_VERSION}"
html_show_sourcelink = False
