#!/bin/bash
# Startup script for an image without cloud-init, such as Google's image of Debian 12: it installs
# cloud-init and starts the machine again. cloud-init then reads the key `user-data` of the
# machine's metadata. Google's own programs still set up the network.
set -euo pipefail
if command -v cloud-init > /dev/null; then exit 0; fi
mkdir -p /etc/cloud/cloud.cfg.d
echo 'network: {config: disabled}' > /etc/cloud/cloud.cfg.d/99-network.cfg
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends cloud-init
reboot
