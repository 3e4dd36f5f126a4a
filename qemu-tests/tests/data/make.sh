#!/bin/sh
# Makes the certificates of the promises for the host's address in QEMU's user network: each self-signed with CA:TRUE, one valid
# from 2020 to 2120, one from 2000 to 2001. Needs openssl.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
: >"$work/index"
cat >"$work/ca.conf" <<END
[ca]
default_ca = ca_default
[ca_default]
database = $work/index
new_certs_dir = $work
serial = $work/serial
unique_subject = no
default_md = sha256
policy = any
x509_extensions = extensions
[any]
commonName = supplied
[extensions]
subjectAltName = IP:10.0.2.2
basicConstraints = critical,CA:TRUE
END
dated() {
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -subj "/CN=slipway test" \
        -keyout "$1.key" -out "$work/$1.csr"
    openssl ca -batch -notext -selfsign -config "$work/ca.conf" -keyfile "$1.key" -in "$work/$1.csr" \
        -startdate "$2" -enddate "$3" -rand_serial -out "$1.pem"
}
dated valid 20200101000000Z 21200101000000Z
dated expired 20000101000000Z 20010101000000Z
rm -r "$work"
