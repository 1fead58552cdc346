#!/bin/sh
# Unpacks WordNet 3.0 of Debian's packages into the cache, where all runs find
# it. Needs no root, and a Debian or Ubuntu that reaches its mirrors.
#   TRUENEGS_CACHE=/data/cache launch/wordnet_debian.sh
set -eu
corpora=${TRUENEGS_CACHE:-$HOME/.cache/truenegs_jax}/nltk_data/corpora
mkdir -p "$corpora"
cd "$corpora"
work=$(mktemp -d "$PWD/wordnet.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$work/lists/partial" "$work/archives/partial"
download() {
  apt-get -qq "$@" download wordnet-base wordnet-sense-index
}
cd "$work"
download 2> /dev/null || { # the lists of this machine are missing or old
  set -- -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work"
  apt-get -qq "$@" update
  download "$@"
}
for package in *.deb; do
  dpkg-deb -x "$package" .
done
test -s usr/share/wordnet/data.noun
test -s usr/share/wordnet/index.sense
rm -rf ../wordnet
mv usr/share/wordnet ../wordnet
echo "Unpacked WordNet of Debian in '$(dirname "$work")'"
