#!/usr/bin/env bash
# hydra-core 1.3.8: a file under --config-dir with the name of one beside the primary configuration is ignored, without
# a word: --config-dir comes last in the search path.
# Seen: conf/db/mysql.yaml has port 1, own/db/mysql.yaml port 2; with --config-dir own the port is 1. --info
# searchpath lists the folder last.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q hydra-core==1.3.8
mkdir -p "$folder/conf/db" "$folder/own/db"
cd "$folder"
printf 'defaults: [{db: mysql}, _self_]\n' > conf/config.yaml
echo "port: 1" > conf/db/mysql.yaml
echo "port: 2" > own/db/mysql.yaml
cat > app.py <<'END'
import hydra


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config) -> None:
    print(config.db.port)


main()
END
seen=$(venv/bin/python app.py --config-dir own)
echo "port $seen"
test "$seen" = 1
