#!/bin/sh
# Makes the server certificates of the tests: each self-signed with CA:TRUE, as a home lab's. Needs openssl.
set -eu
cd "$(dirname "$0")"
make() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -sha256 -days 36500 \
        -subj "/CN=slipway test" -addext "subjectAltName=$2" -addext basicConstraints=critical,CA:TRUE \
        -keyout "$1.key" -out "$1.pem"
}
make server IP:127.0.0.1
make other IP:127.0.0.1
rm other.key
make misnamed IP:127.0.0.2
make named DNS:registry.example,DNS:localhost,DNS:*.blob.core.windows.net,DNS:*.blob.core.usgovcloudapi.net

# Not valid yet, and not any more: 2090 to 2100, and 2000 to 2001.
dated() {
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -subj "/CN=slipway test" \
        -keyout "$1.key" -out "$work/$1.csr"
    openssl ca -batch -notext -selfsign -config "$work/ca.conf" -keyfile "$1.key" -in "$work/$1.csr" \
        -startdate "$2" -enddate "$3" -rand_serial -out "$1.pem"
}
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
subjectAltName = IP:127.0.0.1
basicConstraints = critical,CA:TRUE
END
dated future 20900101000000Z 21000101000000Z
dated past 20000101000000Z 20010101000000Z
rm -r "$work"
