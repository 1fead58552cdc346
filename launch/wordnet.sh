#!/usr/bin/env bash
# Puts WordNet 3.0, of NLTK or Debian, into the cache if there is none. No root.
#   TRUENEGS_CACHE: folder to put it under, default ~/.cache/truenegs_jax
#   PYTHON: a Python with nltk, default .venv/bin/python or else python3
set -euo pipefail
umask 022  # NLTK reads nothing that others may write.
case ${PYTHON:-} in ""|/*) ;; */*) PYTHON=$PWD/$PYTHON ;; esac
cd "$(dirname "$0")/.."
python=${PYTHON:-$(ls .venv/bin/python 2>/dev/null || echo python3)}
target=${TRUENEGS_CACHE:-$HOME/.cache/truenegs_jax}/nltk_data/corpora/wordnet
module=truenegs_jax.synonyms.wordnet

# Each of the 117,659 synsets is a line; only the licence's lines are indented.
whole() { [ "$(cat "$1"/data.* 2>/dev/null | grep -vc '^  ')" = 117659 ]; }
opens() { "$python" -c "from $module import open_wordnet as o; o('${1:-}')"; }

# Called as "$way" below.
# shellcheck disable=SC2329
from_nltk() {
  "$python" -c 'import nltk.downloader as n, urllib.request as u
u.urlopen(n.Downloader.DEFAULT_URL, timeout=5)' &&
    # Its exit status says little: what it left is checked.
    timeout 300 "$python" -m nltk.downloader -q -d "$new/nltk" wordnet
  "$python" -m zipfile -e "$new/nltk/corpora/wordnet.zip" "$new"
}

# shellcheck disable=SC2329
from_debian() {
  local names=(wordnet-base wordnet-sense-index)
  mkdir -p "$new/apt/lists/partial" "$new/apt/archives/partial" && cd "$new/apt"
  if ! apt-get -qq download "${names[@]}"; then  # No or old lists: our own.
    export APT_CONFIG="$PWD/apt.conf"
    printf 'Dir::State::Lists "%s/lists"; Dir::Cache "%s";' "$PWD"{,} >apt.conf
    timeout 120 apt-get -qq update
    apt-get -qq download "${names[@]}" || return
  fi
  for package in ./*.deb; do dpkg-deb -x "$package" . || return; done
  mv usr/share/wordnet "$new/wordnet"
}

# WordNet's file of lexicographer files (lexnames(5WN)): number, name, part of
# speech. NLTK reads it; Debian's package lacks it.
lexnames() {
  local names=(adj.all adj.pert adv.all
    noun.{Tops,act,animal,artifact,attribute,body,cognition,communication}
    noun.{event,feeling,food,group,location,motive,object,person,phenomenon}
    noun.{plant,possession,process,quantity,relation,shape,state,substance,time}
    verb.{body,change,cognition,communication,competition,consumption,contact}
    verb.{creation,emotion,motion,perception,possession,social,stative,weather}
    adj.ppl)
  local -A number=([noun]=1 [verb]=2 [adj]=3 [adv]=4)
  for i in "${!names[@]}"; do
    printf '%02d\t%s\t%s\n' "$i" "${names[$i]}" "${number[${names[$i]%%.*}]}"
  done
}

! whole "$target" || exit 0
[ -e "$target" ] || ! opens >/dev/null 2>&1 || exit 0
echo "Fetching WordNet into $target"
mkdir -p "$(dirname "$target")"
new=$(mktemp -d "$(dirname "$target")/.new.XXXXXX")
trap 'rm -rf "$new"' EXIT
for way in from_nltk from_debian; do
  ( "$way" ) >"$new/$way.log" 2>&1 || continue
  [ -e "$new/wordnet/lexnames" ] || lexnames >"$new/wordnet/lexnames"
  if whole "$new/wordnet" && opens "$new/wordnet" >>"$new/$way.log" 2>&1; then
    rm -rf "$target"
    mv -T "$new/wordnet" "$target" || whole "$target"  # Another was faster.
    exit
  fi
  rm -rf "$new/wordnet"
done
tail -n 3 "$new"/*.log >&2
echo "WordNet could not be fetched. Where there is internet, run
  python -m nltk.downloader -d FOLDER wordnet
bring FOLDER here and set NLTK_DATA to it." >&2
exit 1
