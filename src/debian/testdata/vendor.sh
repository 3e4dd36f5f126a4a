#!/bin/sh
# Makes the files vendor-* with GnuPG: for each kind of key a certificate, and one text signed in both of apt's forms.
# The secret keys are thrown away. Run it in this folder.
set -eu
GNUPGHOME=$(mktemp -d)
export GNUPGHOME
trap 'rm -rf "$GNUPGHOME"' EXIT
sum=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
printf '%s\n' 'Origin: Vendor' 'Suite: stable' 'Codename: trixie' 'Date: Fri, 20 Nov 2026 02:11:10 UTC' \
    'Architectures: amd64' 'Components: main' 'SHA256:' " $sum 0 main/binary-amd64/Packages" > vendor.Release
for kind in rsa4096 ed25519; do
    gpg() { command gpg --batch --quiet --faked-system-time 20261120T021110 --local-user "$kind" "$@"; }
    command gpg --batch --quiet --faked-system-time 20260101T000000 --passphrase '' \
        --quick-generate-key "Test archive of a vendor, $kind" "$kind" sign never
    gpg --export --armor "$kind" > "vendor-$kind.asc"
    gpg --export "$kind" > "vendor-$kind.pgp"
    gpg --clearsign --output "vendor-$kind.InRelease" vendor.Release
    gpg --armor --detach-sign --output "vendor-$kind.Release.gpg" vendor.Release
done
