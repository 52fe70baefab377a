#!/bin/bash
# base-image.sh TAG: Debian 12 with Python 3.11, from the package sources of this machine. It stands in for the
# Dockerfile's BASE_IMAGE where no image registry can be reached.
set -euo pipefail
tag=${1:?the image\'s name}
command -v mmdebstrap >/dev/null || {
  apt="apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3"
  export DEBIAN_FRONTEND=noninteractive
  { $apt update && $apt install -y --no-install-recommends mmdebstrap; } >/dev/null
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# As one-line entries, whatever form they have here.
apt-get indextargets --format \
  'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(REPO_URI) $(RELEASE) $(COMPONENT)' \
  'Created-By: Packages' | grep -E ' bookworm(-updates|-security)? main$' | sort -u >"$work/sources.list"
[ -s "$work/sources.list" ] || { echo "base-image: this machine has no sources of Debian 12" >&2; exit 1; }
mmdebstrap --quiet --variant=minbase --mode=root \
  --include=python3,python3-venv,ca-certificates \
  --aptopt='Acquire::Retries "3"' --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Check-Date "false"' \
  --aptopt='APT::Install-Recommends "false"' \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --customize-hook='ln -sf python3 "$1/usr/bin/python"' \
  --customize-hook='rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED' \
  bookworm "$work/root.tar" "$work/sources.list"
docker import --change 'ENV LANG=C.UTF-8' --change 'CMD ["python3"]' "$work/root.tar" "$tag-bare" >/dev/null
# pip in a build has to trust what this machine trusts.
cp /etc/ssl/certs/ca-certificates.crt "$work/ca.crt"
cat >"$work/Dockerfile" <<EOF
FROM $tag-bare
COPY ca.crt /usr/local/share/build-ca.crt
ENV PIP_CERT=/usr/local/share/build-ca.crt
EOF
DOCKER_BUILDKIT=0 docker build --quiet --tag "$tag" --file "$work/Dockerfile" "$work" >/dev/null
docker rmi --no-prune "$tag-bare" >/dev/null 2>&1 || true
