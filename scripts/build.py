"""`make site`: a strict build; site/ changes only when all went well."""

import logging
import shutil
import sys
import time

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort, BuildError, ConfigurationError

from scripts import CACHE, ROOT


class Warnings(logging.Handler):
    """Counts warnings: a strict build has none."""

    def __init__(self) -> None:
        """Start from zero."""
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count one and print it."""
        self.count += 1
        print(f"{record.levelname}: {record.getMessage()}", file=sys.stderr)


def main() -> int:
    """Build beside site/, then swap; return 1 on any error or warning."""
    started = time.perf_counter()
    warnings = Warnings()
    logging.getLogger("mkdocs").addHandler(warnings)
    new, site, old = CACHE / "site", ROOT / "site", CACHE / "site.old"
    shutil.rmtree(new, ignore_errors=True)
    try:
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(new))
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
        config.plugins.on_shutdown()
    except (Abort, BuildError, ConfigurationError) as error:
        print(f"{error}\nsite/ is unchanged", file=sys.stderr)
        return 1
    if warnings.count:
        print(
            f"{warnings.count} warning(s); site/ is unchanged",
            file=sys.stderr,
        )
        return 1
    shutil.rmtree(old, ignore_errors=True)
    if site.exists():
        site.replace(old)
    new.replace(site)
    shutil.rmtree(old, ignore_errors=True)
    print(f"built site/ in {time.perf_counter() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
