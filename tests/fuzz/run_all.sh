#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs each for SECONDS: first its seeds whole, then mutations of them.
# One line a target; what was found lies in build-fuzz/findings. Ends with 1 where something was.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

seconds=${1:-30}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "usage: tests/fuzz/run_all.sh SECONDS" >&2; exit 2; }
build=build-fuzz
memory_mb=1024

cmake -S tests/fuzz -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang-14 -DCMAKE_CXX_COMPILER=clang++-14 >"$build.cmake.log" 2>&1 ||
  { tail -n 30 "$build.cmake.log" >&2; exit 1; }
rm -f "$build.cmake.log"
ninja -C "$build" >&2

work=$(mktemp -d "$build/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
export TMPDIR=$PWD/$work
# The quarantine of freed memory would count as the parser's.
export ASAN_OPTIONS=quarantine_size_mb=8:malloc_context_size=8 UBSAN_OPTIONS=print_stacktrace=1
export PACELINE_FUZZ_SEEDS
mkdir -p "$build/findings"

failed=0
for source in tests/fuzz/*_fuzz.cc; do
  target=$(basename "$source" .cc)
  seeds=$work/$target
  log=$build/findings/$target.log
  findings=$PWD/$build/findings/${target}_
  mkdir "$seeds"
  PACELINE_FUZZ_SEEDS=$seeds "$build/$target"
  unset PACELINE_FUZZ_SEEDS
  limits=(-timeout=10 -rss_limit_mb=$memory_mb -artifact_prefix="$findings")
  if "$build/$target" "${limits[@]}" "$seeds"/* >"$log" 2>&1 &&
    "$build/$target" "${limits[@]}" -max_total_time="$seconds" -max_len=4096 -print_final_stats=1 "$seeds" >>"$log" 2>&1; then
    printf '%-28s ok, %s inputs\n' "$target" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
    rm "$log"
  else
    failed=1
    printf '%-28s FOUND: %s (%s)\n' "$target" \
      "$(grep -m1 -E '^(SUMMARY|fuzz:|ALARM|.*ERROR: |.*runtime error|terminate)' "$log" || tail -n 1 "$log")" "$log"
  fi
done
exit $failed
