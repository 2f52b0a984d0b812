#!/usr/bin/env bash
# Makes all artefacts of this version and checks them as users get them: wheel, sdist, Debian packages, checksums.
#   deploy/package/release.sh OUTPUT_FOLDER
# The version stands in CMakeLists.txt alone; CHANGELOG.md must have its heading and the tree must be clean.
set -euo pipefail
output=$(realpath -m "${1:?release.sh: give the folder for the artefacts}")
cd "$(dirname "$0")/../.."

version=$(sed -n 's/^project(ddprun VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
stop() { echo "release.sh: $*" >&2; exit 1; }
[ -n "$version" ] || stop "no version in CMakeLists.txt"
[ -z "$(git status --porcelain)" ] || stop "the tree has changes that are not committed: what is released must be in git"
grep -qE "^## ${version%.0}(\.0)?( |$)" CHANGELOG.md || stop "CHANGELOG.md has no heading '## $version'"

deploy/install-dependencies.sh build data test package
tests/packages/run.sh || stop "the packages do not pass their tests"

# Those that were tested, not others of the same source.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ddprun-packages
mkdir -p "$output"
cp "$cache"/latest/*.whl "$cache"/latest/*.tar.gz "$cache"/latest/*.deb "$output"/
(cd "$output" && sha256sum -- *.whl *.tar.gz *.deb >SHA256SUMS)
echo "release.sh: ddprun $version ($(git rev-parse --short HEAD)) is in $output"
cat "$output/SHA256SUMS"
