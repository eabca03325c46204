# The image is the static binary, the roots that cloud endpoints' certificates are checked against, and the licences of
# all that is in the binary. `make image` puts them under bin/ first; nothing is compiled or downloaded here.
FROM scratch
ARG TARGETOS=linux
ARG TARGETARCH=amd64
COPY bin/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY LICENSE /licenses/LICENSE
COPY bin/THIRD_PARTY_LICENSES.txt /licenses/THIRD_PARTY_LICENSES.txt
COPY bin/etcd-snapshot-agent-${TARGETOS}-${TARGETARCH} /etcd-snapshot-agent
# Reading root-only etcd keys on a hostPath needs uid 0; the chart drops everything else.
USER 0:0
ENTRYPOINT ["/etcd-snapshot-agent"]
