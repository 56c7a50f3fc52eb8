#!/bin/sh
# The `llm` command line against any endpoint, whole and streamed.
set -eu
llm=$1 base_url=$2 model=$3
LLM_USER_PATH=$(mktemp -d)
export LLM_USER_PATH
trap 'rm -rf "$LLM_USER_PATH"' EXIT
said=$(printf 'system\nRepeat me.')
test "$model" = "$("$llm" openai endpoint "$base_url" --models)"
test "$said" = "$("$llm" openai endpoint "$base_url" -m "$model" -s 'Repeat me.' hello)"
test "$said" = "$("$llm" openai endpoint "$base_url" -m "$model" -s 'Repeat me.' --no-stream hello)"
test system = "$("$llm" openai endpoint "$base_url" -m "$model" -s 'Repeat me.' -o max_tokens 2 hello)"
