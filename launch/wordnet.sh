#!/usr/bin/env bash
# Downloads WordNet 3.0 from NLTK or Debian into the cache, unless it is there.
# Needs no root.
#   TRUENEGS_CACHE: the cache folder, default ~/.cache/truenegs_jax
#   PYTHON: a Python with nltk, default .venv/bin/python or else python3
set -euo pipefail
umask 022  # NLTK refuses files that others can write to.
case ${PYTHON:-} in ""|/*) ;; */*) PYTHON=$PWD/$PYTHON ;; esac
cd "$(dirname "$0")/.."
python=${PYTHON:-$(ls .venv/bin/python 2>/dev/null || echo python3)}
target=${TRUENEGS_CACHE:-$HOME/.cache/truenegs_jax}/nltk_data/corpora/wordnet
module=truenegs_jax.synonyms.wordnet

# There is one line for each of the 117,659 synsets; lines of the licence are
# indented.
has_all() { [ "$(cat "$1"/data.* 2>/dev/null | grep -vc '^  ')" = 117659 ]; }
loads() { "$python" -c "from $module import open_wordnet as o; o('${1:-}')"; }

# Called as "$way" below.
# shellcheck disable=SC2329
from_nltk() {
  "$python" -c 'import nltk.downloader as n, urllib.request as u
u.urlopen(n.Downloader.DEFAULT_URL, timeout=5)' &&
    # Its exit status is unreliable, so its files are checked below.
    timeout 300 "$python" -m nltk.downloader -q -d "$new/nltk" wordnet
  "$python" -m zipfile -e "$new/nltk/corpora/wordnet.zip" "$new"
}

# shellcheck disable=SC2329
from_debian() {
  local names=(wordnet-base wordnet-sense-index)
  mkdir -p "$new/apt/lists/partial" "$new/apt/archives/partial" && cd "$new/apt"
  if ! apt-get -qq download "${names[@]}"; then
    # The lists are missing or old: get new ones.
    export APT_CONFIG="$PWD/apt.conf"
    printf 'Dir::State::Lists "%s/lists"; Dir::Cache "%s";' "$PWD"{,} >apt.conf
    timeout 120 apt-get -qq update
    apt-get -qq download "${names[@]}" || return
  fi
  for package in ./*.deb; do dpkg-deb -x "$package" . || return; done
  mv usr/share/wordnet "$new/wordnet"
}

! has_all "$target" || exit 0
[ -e "$target" ] || ! loads >/dev/null 2>&1 || exit 0
echo "Downloading WordNet to '$target'"
mkdir -p "$(dirname "$target")"
new=$(mktemp -d "$(dirname "$target")/.new.XXXXXX")
trap 'rm -rf "$new"' EXIT
for way in from_nltk from_debian; do
  ( "$way" ) >"$new/$way.log" 2>&1 || continue
  if has_all "$new/wordnet" && loads "$new/wordnet" >>"$new/$way.log" 2>&1; then
    rm -rf "$target"
    mv -T "$new/wordnet" "$target" || has_all "$target"  # Another was faster.
    exit
  fi
  rm -rf "$new/wordnet"
done
tail -n 3 "$new"/*.log >&2
echo "error: WordNet could not be downloaded. On a machine with internet, run
  python -m nltk.downloader -d FOLDER wordnet
Copy FOLDER to this machine and set NLTK_DATA to it." >&2
exit 1
