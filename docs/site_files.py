"""Let MkDocs build the site from the Markdown of the whole repository and the files that it links to.

Every file keeps its place, so that the links of a page lead to the same files as in the repository.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/**/*.md", "configs/*/README.md", "results/**/*.md", "tests/vectors/README.md")
LINK = re.compile(r"\]\(([^)#\s:]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of ``docs/`` by all pages of the repository and the files linked there."""
    pages = {path for pattern in PAGES for path in ROOT.glob(pattern)}
    linked = {(page.parent / link).resolve() for page in pages for link in LINK.findall(page.read_text())}
    wanted = pages | {path for path in linked if path.is_file() and path.is_relative_to(ROOT)}
    names = sorted(str(path.relative_to(ROOT)) for path in wanted)
    repository = [File(name, str(ROOT), config.site_dir, config.use_directory_urls) for name in names]
    theme = [file for file in files if file.generated_by or file.src_dir != config.docs_dir]
    return Files([*theme, *repository])
