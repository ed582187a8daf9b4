"""The only file that knows MkDocs: passes its events on to the other scripts."""

import importlib
import json
import logging
import subprocess
import sys
from pathlib import Path

from jinja2 import FileSystemBytecodeCache
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from mkdocs.structure.toc import get_toc

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

log = logging.getLogger("mkdocs.hooks.book")
state: dict = {"command": "build"}
SCRIPTS = (
    "assets catalog checks exports pages problems products reference search_index tex"
).split()


def _import(*, anew: bool) -> None:
    """Import the scripts; anew while serving, to show their newest text."""
    for name in [n for n in sys.modules if n.partition(".")[0] == "scripts"]:
        if anew:
            del sys.modules[name]
    for name in SCRIPTS:
        state[name] = importlib.import_module(f"scripts.{name}")


def on_startup(command, dirty):
    """Remember whether the site is served or built."""
    state["command"] = command


def on_pre_build(config):
    """Check the pages, then make what is stale; stop on any problem."""
    _import(anew=state["command"] == "serve")
    root = Path(config.config_file_path).parent
    book = state["book"] = state["catalog"].load(root)
    state["searched"] = {}
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
    for uri, content in state["assets"].all_files(book.root).items():
        given = {"content": content}
        if isinstance(content, Path):
            given = {"abs_src_path": str(content)}
        files.append(File.generated(config, uri, **given))
    config.nav = state["pages"].navigation(book)
    return files


def on_env(env, config, files):
    """Keep the compiled templates: compiling them costs a tenth of a build."""
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
    answer = _answer(page)
    if answer:
        page.meta["title"] = answer.meta.title
        page.meta["description"] = answer.meta.question.en
        return pages.compose(state["book"], answer, out)
    if page.is_homepage:
        return pages.body_markdown(state["book"], markdown, "", out)
    return markdown


def on_page_content(html, page, config, files):
    """Typeset formulas; keep an answer's text for the search index."""
    finish = state["pages"].finish
    answer = _answer(page)
    if answer:
        state["searched"][answer.slug] = finish(html, page.url)
    try:
        html = state["tex"].typeset(html, page.file.src_uri)
    except state["tex"].TexFailed as error:
        raise PluginError(str(error)) from error
    html = finish(html, page.url)
    if page.file.src_uri.startswith("reference/"):
        html = state["reference"].keep(html)
        page.toc = get_toc(state["reference"].contents(html))
    return html


def on_page_context(context, page, config, nav):
    """Give the templates what they show beside the text."""
    pages, book = state["pages"], state["book"]
    context["book"] = pages.shell(book) if page.is_homepage else {}
    answer = _answer(page)
    context["answer"] = pages.margin(book, answer) if answer else None
    return context


def on_post_build(config):
    """Write the search index, questions.json and its schema."""
    site, book = Path(config.site_dir), state["book"]
    index = state["search_index"]
    documents = [
        index.Document(
            url=answer.url,
            section=book.sections[answer.section]["title"],
            title=answer.meta.title,
            question=answer.meta.question.model_dump(),
            aliases=answer.meta.aliases.model_dump(),
            tags=answer.meta.tags,
            html=state["searched"][answer.slug],
        )
        for answer in book.ordered
    ]
    _write(site / "search" / "index.json", index.build(documents))
    exports = state["exports"]
    export = exports.questions(book).model_dump(mode="json")
    _write(site / "questions.json", export, indent=1)
    _write(site / "questions.schema.json", exports.schema(), indent=1)


def _write(path: Path, data, indent: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tight = None if indent else (",", ":")
    text = json.dumps(data, ensure_ascii=False, indent=indent, separators=tight)
    path.write_text(text + "\n", encoding="utf-8")
