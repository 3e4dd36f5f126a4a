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
