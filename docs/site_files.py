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
EXPLORER = Path("results/encodings/explore.html")  # a page of its own, whose links MkDocs does not see
HREF = re.compile(r'(?<=href=")\.\./[^"]+')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of ``docs/`` by all pages of the repository and the files linked there."""
    pages = {path for pattern in PAGES for path in ROOT.glob(pattern)}
    links = {page: LINK.findall(page.read_text()) for page in pages}
    links[ROOT / EXPLORER] = HREF.findall((ROOT / EXPLORER).read_text())
    linked = {(page.parent / link).resolve() for page, found in links.items() for link in found}
    wanted = pages | {path for path in linked if path.is_file() and path.is_relative_to(ROOT)}
    names = sorted(str(path.relative_to(ROOT)) for path in wanted)
    repository = [File(name, str(ROOT), config.site_dir, config.use_directory_urls) for name in names]
    theme = [file for file in files if file.generated_by or file.src_dir != config.docs_dir]
    return Files([*theme, *repository])


def on_post_build(config: MkDocsConfig) -> None:
    """Turn the explorer's links to Markdown files into links to the pages that MkDocs made of them."""
    page = Path(config.site_dir) / EXPLORER
    page.write_text(HREF.sub(lambda link: re.sub(r"(/README)?\.md$", "/", link[0]), page.read_text()))
