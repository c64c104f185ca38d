#!/usr/bin/env bash
# hydra-core 1.3.8: `~key` of a key whose value is null ends in "Could not delete ... does not exist"; of any other
# value it works.
# Seen: with `a: null` and `b: 1`, ~b deletes b and ~a is refused.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q hydra-core==1.3.8
mkdir "$folder/conf"
cd "$folder"
printf 'a: null\nb: 1\n' > conf/config.yaml
cat > app.py <<'END'
import hydra


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config) -> None:
    print(config)


main()
END
venv/bin/python app.py '~b'
seen=$(venv/bin/python app.py '~a' 2>&1 || true)
echo "$seen"
grep -q "'a' does not exist" <<< "$seen"
