"""The only file that knows MkDocs: passes its events on to the other scripts."""

import functools
import gc
import importlib
import json
import logging
import subprocess
import sys
from pathlib import Path

from jinja2 import FileSystemBytecodeCache
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from mkdocs.structure.pages import Page
from mkdocs.structure.toc import get_toc
from mkdocs.utils import CountHandler

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

log = logging.getLogger("mkdocs.hooks.book")
state: dict = {"command": "build"}
SCRIPTS = (
    "assets catalog checks exports kept pages preview problems products reference "
    "search_documents search_index tex"
).split()
OF_REFERENCE = "assets/_mkdocstrings.css"
CONVERTED_BY = ("mkdocs", "markdown", "pymdown-extensions", "pygments")


def _import() -> None:
    """Import the scripts; anew when one has changed since the last build."""
    folder = Path(__file__).parent
    text = {path: path.read_bytes() for path in sorted(folder.glob("*.py"))}
    if text == state.get("text"):
        return
    if "text" in state:
        for name in [n for n in sys.modules if n.partition(".")[0] == "scripts"]:
            del sys.modules[name]
    for name in SCRIPTS:
        state[name] = importlib.import_module(f"scripts.{name}")
    state["text"] = text
    state["version"] = importlib.import_module("scripts").version


def on_startup(command, dirty):
    """Remember whether the site is served or built."""
    state["command"] = command


def on_pre_build(config):
    """Check the pages, then make what is stale; stop on any problem."""
    gc.disable()  # on_post_build enables it: collecting costs a tenth of a build
    _import()
    root = Path(config.config_file_path).parent
    book = state["book"] = state["catalog"].load(root)
    state["searched"] = {}
    state["formulas"] = set()
    state["store"] = state["kept"].Kept()
    problems = state["checks"].run(book)
    if state["command"] == "serve":  # a draft can be looked at
        drafts = [problem for problem in problems if problem.what == "TODO"]
        problems = [problem for problem in problems if problem not in drafts]
        if drafts:
            log.info("%d TODO left; `make check` lists them", len(drafts))
    if problems:
        raise PluginError("\n" + state["problems"].report(problems))
    products = state["products"]
    if not products.stale(root, products.OUT, [], force=False):
        return
    run = subprocess.run(
        [sys.executable, "-m", "scripts.products"],
        cwd=root,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if run.returncode:
        raise PluginError("\n" + run.stderr)


def on_files(files, config):
    """Add what no file in docs/ holds: lists, figures, third-party assets."""
    book, out = state["book"], state["products"].OUT
    for uri, text in state["pages"].generated(book).items():
        files.append(File.generated(config, uri, content=text))
    for path in sorted(out.glob("*/*.svg")):
        uri = f"figures/{path.relative_to(out).as_posix()}"
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    served = state["reference"].files(book.root)
    for uri, content in (served | state["assets"].all_files(book.root)).items():
        given = {"content": content}
        if isinstance(content, Path):
            given = {"abs_src_path": str(content)}
        files.append(File.generated(config, uri, **given))
    for uri, path in _pictures(book, config).items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    config.nav = state["pages"].navigation(book)
    return files


def _pictures(book, config) -> dict[str, Path]:
    """The picture of each answer and of the book, by site path."""
    picture, name = state["preview"].picture, config.site_name
    found = {"preview/book.png": picture(config.site_description, "", name)}
    for answer in book.ordered:
        above = book.sections[answer.section]["title"]
        found[f"preview/{answer.slug}.png"] = picture(
            answer.meta.question.en, above, name
        )
    return found


def on_env(env, config, files):
    """Keep the compiled templates, a tenth of a build; link sheets where needed."""
    config.extra_css.remove(OF_REFERENCE)  # theme/main.html links it there
    kept = Path(config.config_file_path).parent / ".cache" / "jinja"
    kept.mkdir(parents=True, exist_ok=True)
    env.bytecode_cache = FileSystemBytecodeCache(str(kept))


def _answer(page):
    answer = state["book"].sound.get(Path(page.file.src_uri).stem)
    if answer and page.file.src_uri == f"{answer.section}/{answer.slug}.md":
        return answer
    return None


def on_page_markdown(markdown, page, config, files):
    """Compose an answer from its parts; draw and cite on the home page too."""
    pages, out = state["pages"], state["products"].OUT
    page.render = functools.partial(_convert, page)
    answer = _answer(page)
    if answer:
        page.meta["title"] = answer.meta.question.en
        page.meta["description"] = pages.description(answer)
        return pages.compose(state["book"], answer, out)
    if page.is_homepage:
        return pages.body_markdown(state["book"], markdown, "", out)
    page.meta.setdefault("description", f"{page.title}: {config.site_description}")
    return markdown


def _convert(page, config, files):
    """Convert a page, or take what an earlier build made of the same text."""
    made_of = [page.file.src_uri, page.markdown, *_rests_on(page, config)]
    made_of += sorted(file.src_uri for file in files)
    for path in (__file__, config.config_file_path):
        made_of.append(Path(path).read_text(encoding="utf-8"))
    made_of += [state["version"](library) for library in CONVERTED_BY]
    result = state["store"].made(made_of, lambda: _converted(page, config, files))
    if result:
        page.content, page.title = result["html"], result["title"]
        page.toc = get_toc(result["contents"])
        page.present_anchor_ids = set(result["anchors"])
        page.links_to_anchors = {
            files.get_file_from_path(uri): anchors
            for uri, anchors in result["links"].items()
        }


def _rests_on(page, config) -> list[str]:
    """The text of each file that a page embeds or, in the reference, describes."""
    module = _module(page)
    if module:
        made_by = state["reference"].MADE_BY
        return [module.source, *(state["version"](library) for library in made_by)]
    folders = config.mdx_configs["pymdownx.snippets"]["base_path"]
    embeds = [m["path"] for m in state["catalog"].EMBED.finditer(page.markdown)]
    paths = [Path(folder) / path for path in embeds for folder in folders]
    return [path.read_text(encoding="utf-8") for path in paths if path.is_file()]


def _module(page):
    """The snippet module that a page of the reference describes."""
    name = page.file.src_uri.removeprefix("reference/").removesuffix(".md")
    return state["book"].modules.get(name)


def _converted(page, config, files) -> dict | None:
    """What MkDocs makes of a page; None after a warning.

    None is not kept, so that the next build gives the warning again.
    """
    warnings = CountHandler(level=logging.WARNING)
    logger = logging.getLogger("mkdocs")
    logger.addHandler(warnings)
    try:
        Page.render(page, config, files)
    finally:
        logger.removeHandler(warnings)
    if _module(page):
        page.content = state["reference"].without_references(page.content)
    if warnings.get_counts():
        return None
    return {
        "html": page.content,
        "title": page.title,
        "contents": [_token(item) for item in page.toc],
        "anchors": sorted(page.present_anchor_ids),
        "links": {
            f.src_uri: anchors for f, anchors in (page.links_to_anchors or {}).items()
        },
    }


def _token(item) -> dict:
    """An entry of a page's contents as get_toc() reads it."""
    return {
        "name": item.title,
        "id": item.id,
        "level": item.level,
        "children": [_token(child) for child in item.children],
    }


def on_page_content(html, page, config, files):
    """Typeset formulas; keep an answer's text for the search index."""
    finish = state["pages"].finish
    answer = _answer(page)
    if answer:
        state["searched"][answer.slug] = finish(html, page.url)
    try:
        html = state["tex"].typeset(html, page.file.src_uri, state["formulas"])
    except state["tex"].TexFailed as error:
        raise PluginError(str(error)) from error
    return finish(html, page.url)


def on_page_context(context, page, config, nav):
    """Give the templates what they show beside the text."""
    pages, book = state["pages"], state["book"]
    context["book"] = pages.shell(book) if page.is_homepage else {}
    answer = _answer(page)
    context["answer"] = pages.margin(book, answer) if answer else None
    return context


def on_build_error(error):
    """Collect garbage again."""
    gc.enable()


def on_post_build(config):
    """Write the search index, questions.json and its schema; lighten assets."""
    site, book = Path(config.site_dir), state["book"]
    found = state["search_documents"].documents(book, state["searched"])
    common = state["checks"].PARTS
    names, passages = state["search_index"].build(found, _blocks, common)
    _write(site / "search" / "index.json", names)
    _write(site / "search" / "passages.json", passages)
    exports = state["exports"]
    export = exports.questions(book).model_dump(mode="json")
    _write(site / "questions.json", export, indent=1)
    _write(site / "questions.schema.json", exports.schema(), indent=1)
    if state["command"] == "build":
        state["assets"].lighten(site, state["formulas"])
    state["store"].sweep()
    gc.enable()


def _blocks(html: str) -> list[dict]:
    index = state["search_index"]
    made_of = [html, Path(index.__file__).read_text(encoding="utf-8")]
    return state["store"].made(made_of, lambda: index.extract(html))


def _write(path: Path, data, indent: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tight = None if indent else (",", ":")
    text = json.dumps(data, ensure_ascii=False, indent=indent, separators=tight)
    path.write_text(text + "\n", encoding="utf-8")
