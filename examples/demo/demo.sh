#!/usr/bin/env bash
# The main job, end to end, under one trace id. Run by `./run demo`, from the repository's root.
set -euo pipefail

paceline=build/paceline
run=runs/demo
settings=examples/demo/train.toml
began=$SECONDS

step() { printf '\n== %d:%02d  %s\n' $(((SECONDS - began) / 60)) $(((SECONDS - began) % 60)) "$*" >&2; }
show() { printf '$ %s\n' "$*" >&2; "$@"; }

random_hex() { od -An -N "$1" -tx1 /dev/urandom | tr -d ' \n'; }
TRACEPARENT="00-$(random_hex 16)-$(random_hex 8)-01"
export TRACEPARENT
step "everything below is one trace: ${TRACEPARENT:3:32}"
rm -rf "$run"

step "1 of 7: real text from Debian's documentation packages"
show examples/demo/fetch_text.sh examples/demo/text

step "2 of 7: text -> tokenizer and shards"
show "$paceline" data build examples/demo/data.toml

step "3 of 7: which layout? (this machine is measured first, once)"
[[ -f ${XDG_CONFIG_HOME:-$HOME/.config}/paceline/machine.toml ]] || show "$paceline" bench machine
show "$paceline" plan "$settings"

step "4 of 7: training on four ranks; half-way one of them is killed"
printf '$ %s\n' "$paceline train $settings --nproc 4" >&2
"$paceline" train "$settings" --nproc 4 &
launcher=$!
steps_done() { [[ -f $run/metrics.jsonl ]] && wc -l <"$run/metrics.jsonl" || echo 0; }
until (($(steps_done) >= 250)) || ! kill -0 "$launcher" 2>/dev/null; do sleep 0.2; done
kill -0 "$launcher" 2>/dev/null || { wait "$launcher"; exit $?; }

step "5 of 7: kill -9 of one rank at step $(steps_done)"
read -r -a ranks <"/proc/$launcher/task/$launcher/children" || true  # the list ends without a newline
killed=$SECONDS
kill -9 "${ranks[2]}"
wait "$launcher" && { echo "the run should have failed" >&2; exit 1; } || code=$?
((SECONDS - killed <= 10)) || { echo "the others took longer than 10 s to end" >&2; exit 1; }
printf 'all ranks ended %d s after the kill, exit code %d\n' $((SECONDS - killed)) "$code" >&2
step "the same command again resumes from the last checkpoint"
show "$paceline" train "$settings" --nproc 4

step "6 of 7: evaluate and generate"
show "$paceline" eval "$run"
show "$paceline" generate "$run" --prompt "The package manager" --max-new-tokens 60

step "7 of 7: where the time went, planned and measured"
show "$paceline" trace report "$run"
show "$paceline" trace export "$run" --to "$run/chrome.json"
step "done: open $run/chrome.json in https://ui.perfetto.dev; \`$paceline convert $run OUT\` gives a Hugging Face folder"
