"""Files of the repository on the site: links to them, the changelog, the package's folders."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)([^)#]+)(#[^)]*)?\)")
# Pages of the site that lie elsewhere in the repository.
_PAGES = {"CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}


def on_startup(command: str, dirty: bool) -> None:
    """Lay out the package as it is installed: adapters/ and benchmarks/ lie inside of llmopt."""
    package = ROOT / "build" / "api" / "llmopt"
    shutil.rmtree(package, ignore_errors=True)
    for folder, home in (("llmopt", ""), ("adapters", "adapters"), ("benchmarks", "benchmarks")):
        for path in (ROOT / folder).rglob("*.py"):
            target = package / home / path.relative_to(ROOT / folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


def commands() -> str:
    """Return every subcommand with its arguments, as its own parser describes them."""
    import argparse
    import importlib

    from llmopt.cli import COMMANDS

    parts = []
    for name, command in COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"llmopt {name}", add_help=False)
        importlib.import_module(command.module).add_arguments(parser)
        parts += [f"## llmopt {name}", "", f"{command.help[0].upper()}{command.help[1:]}.", ""]
        parts += ["| argument | meaning |", "| --- | --- |"]
        form = parser._get_formatter()
        for action in parser._actions:
            if action.help == argparse.SUPPRESS:
                continue
            shown = "`, `".join(form._format_action_invocation(action).split(", "))
            text = " ".join(form._expand_help(action).split()) if action.help else ""
            parts.append(f"| `{shown}` | {text} |".replace("<", "&lt;"))
        parts.append("")
    return "\n".join(parts)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Show a link to a file that is not part of the site as the file's path.

    Raises:
        FileNotFoundError: There is no such file.
    """
    source = Path(page.file.src_uri)
    for shown, own in _PAGES.items():
        if source.as_posix() == own:
            text = (ROOT / shown).read_text(encoding="utf-8")
            return re.sub(r"\[([^\]]+)\]\(tests/[^)]+\)", r"`\1`", text).replace("](docs/", "](")
    if source.name == "commands.md":
        return markdown + "\n" + commands()

    def replace(match: re.Match[str]) -> str:
        text, up, target, _ = match.groups()
        path = (Path("docs") / source.parent / (up + target)).as_posix()
        parts: list[str] = []
        for part in path.split("/"):
            if part == "..":
                parts.pop()
            else:
                parts.append(part)
        target = "/".join(parts)
        if target.startswith("docs/"):
            return match[0]
        if not (ROOT / target).exists():
            raise FileNotFoundError(f"{source}: a link to {target}, which is not there")
        if target in _PAGES:
            return f"[{text}]({'../' * (len(source.parts) - 1)}{_PAGES[target]})"
        shown = f"`{target}`"
        if target.endswith(text.strip("`")):
            return shown
        within = markdown[match.start() - 1 : match.start()] == "("
        return f"{text}: {shown}" if within else f"{text} ({shown})"

    return _OUTSIDE.sub(replace, markdown)
