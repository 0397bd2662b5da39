"""The site: the repository's Markdown as pages, under the paths that they have here, so that links work in both.

Its source folder is the repository's root: `make site`. A link to another file of the repository is a download. A link
that leads nowhere, an anchor that is none, and every other warning is an error. Fonts and scripts are all of the site's
own.
"""

import re
from pathlib import Path

from docutils.nodes import document, entry
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

project = "tl-attention"
author = "tl-attention"
project_copyright = ""
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "results/*.md"]
exclude_patterns = [".*", "build", "dist", "runs", "**/.*"]
nitpicky = True
highlight_language = "text"

# Anchors of headings as GitHub makes them.
myst_heading_anchors = 4

# Cells of more characters are words; numbers with their range have fewer.
LONG = 32

html_theme = "furo"
html_title = "tl-attention"
html_static_path = ["_static"]
html_css_files = ["site.css"]
# Stands at the top, and leads to docs/index.html.
html_extra_path = ["_extra"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False


def folders_are_text(app: Sphinx, doctree: document) -> None:
    """Leaves of a link to a folder, which GitHub lists and the site has no page for, its text."""
    for link in list(doctree.findall(pending_xref)):
        if (Path(app.srcdir, app.env.docname).parent / link["reftarget"]).is_dir():
            link.replace_self(link.children)


def pages_of_their_own(app: Sphinx, name: str, text: list[str]) -> None:
    """Lets a link to a page of _extra, which stands at the top of the site, keep its fragment: it is no download."""
    text[0] = re.sub(r"\[([^\]]+)\]\(_extra/([^)]+)\)", r'<a href="../\2">\1</a>', text[0])


def sentences_wrap(app: Sphinx, doctree: document) -> None:
    """Marks the cells of tables that hold words: they wrap where numbers do not."""
    for cell in doctree.findall(entry):
        if len(cell.astext()) > LONG:
            cell["classes"].append("words")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", pages_of_their_own)
    app.connect("doctree-read", folders_are_text)
    app.connect("doctree-read", sentences_wrap)
