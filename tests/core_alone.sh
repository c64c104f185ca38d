#!/usr/bin/env bash
# core_alone.sh FOLDER: copies the project to a new folder, without the parts and the tests of more than the core.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir "$1"
git ls-files -z | tar --create --null --no-recursion --files-from=- --file=- | tar --extract --file=- --directory="$1"
for file in psrun/*/part.py; do
  rm -r "$1/$(dirname "$file")"
done
rm -rf "$1"/tests/{engines,keras3,recsys,runs,tables,virtual,whole}
ln -s ../conf "$1/psrun/conf"  # as setup.py places it
# Where psrun is installed to be edited, Python would find the parts in the project itself.
cat >"$1/sitecustomize.py" <<'END'
import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]
END
