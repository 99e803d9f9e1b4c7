#!/usr/bin/env bash
# run_golden.sh BACKPLANE MODEL GOLDEN DTYPE... - verifies one model in all modes for each cache dtype; act-bf16: with
# activations rounded to bf16 as well.
# $BP_GOLDEN_MODES replaces the four modes (whole chunk:7 chunk:64 step), $BP_GOLDEN_ROUNDED those of bf16 and f16.
# A model named without a folder is looked for in $BP_MODELS, then in ../shared/models beside the repository.
# Exit: 0 all passed, 1 something failed, 77 skipped (reason printed).
set -u
backplane=$1 model=$2 golden=$3
shift 3
here=$(cd "$(dirname "$0")/../.." && pwd)
if [[ $model != */* ]]; then
    name=$model
    for folder in "${BP_MODELS:-}" "$here/../shared/models" "$here/models"; do
        [[ -n $folder && -f $folder/$name ]] && model=$folder/$name && break
    done
    if [[ ! -f $model ]]; then
        echo "SKIP: $name not found; set BP_MODELS to the folder that holds it"
        exit 77
    fi
fi
failed=0 ran=0
for dtype in "$@"; do
    modes=${BP_GOLDEN_MODES:-whole chunk:7 chunk:64 step}
    [[ $dtype == f32 ]] || modes=${BP_GOLDEN_ROUNDED:-$modes}
    case $dtype in
        f32) limits=(--max-abs 5e-4) ;;
        bf16) limits=(--gap 0.25 --kl 2e-4) ;;
        f16) limits=(--gap 0.25 --kl 1e-5) ;;
        act-bf16) limits=(--gap 0.25 --kl 3e-3 -s engine.act=bf16) ;;
        *) echo "unknown dtype $dtype"; exit 2 ;;
    esac
    for mode in $modes; do
        ran=$((ran + 1))
        echo "== kv.dtype=$dtype mode=$mode"
        "$backplane" verify -m "$model" --golden "$golden" --mode "$mode" -s kv.dtype="${dtype#act-}" "${limits[@]}" || failed=$((failed + 1))
    done
done
echo "$ran runs, $failed failed"
[[ $ran -gt 0 && $failed -eq 0 ]]
