#!/usr/bin/env bash
# hydra-core 1.3.8: of two `override` of one group in a defaults list the first one holds, without a word; on the
# command line and for keys the last one does.
# Seen: a file with `- override /db: a` and then `- override /db: b` gives a.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q hydra-core==1.3.8
mkdir -p "$folder/conf/db" "$folder/conf/set"
cd "$folder"
printf 'defaults: [{db: c}, {set: own}]\n' > conf/config.yaml
for name in a b c; do echo "name: $name" > "conf/db/$name.yaml"; done
printf '# @package _global_\ndefaults:\n  - override /db: a\n  - override /db: b\n' > conf/set/own.yaml
cat > app.py <<'END'
import hydra


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config) -> None:
    print(config.db.name)


main()
END
seen=$(venv/bin/python app.py)
last=$(venv/bin/python app.py db=b db=c)
echo "db $seen, on the command line $last"
test "$seen" = a -a "$last" = c
