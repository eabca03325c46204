package etcd

import (
	"fmt"
	"net"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// defaultPort is etcd's registered port for clients.
const defaultPort = "2379"

// maxSocketPath is what sockaddr_un holds on Linux, without the final zero byte.
const maxSocketPath = 107

// address is an endpoint, taken apart.
type address struct {
	endpoint      string // as it was written
	network, addr string // for net.Dial
	secure        bool
	serverName    string // that a certificate must be for
	authority     string // for the requests' :authority
}

// parseEndpoint reads a client URL the way etcd's server and client do.
func parseEndpoint(endpoint string) (address, error) {
	a := address{endpoint: endpoint}
	bad := func(format string, args ...any) (address, error) {
		return address{}, fmt.Errorf("endpoint %q: %s", endpoint, fmt.Sprintf(format, args...))
	}
	scheme, rest, ok := strings.Cut(endpoint, "://")
	if !ok {
		return bad("a scheme is missing: write https://%s, or http, unix or unixs", endpoint)
	}
	switch scheme {
	case "unix", "unixs":
		if rest == "" {
			return bad("the path of a socket is missing")
		}
		if len(rest) > maxSocketPath {
			return bad("the path of a socket is at most %d bytes long, this one has %d", maxSocketPath, len(rest))
		}
		name, _, _ := strings.Cut(path.Base(rest), ":")
		a.network, a.addr, a.secure = "unix", rest, scheme == "unixs"
		a.serverName, a.authority = name, "localhost"
		return a, nil
	case "http", "https":
	default:
		return bad("the scheme %q is none of https, http, unix, unixs", scheme)
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		// The URL is in our text already.
		return bad("%v", err.(*url.Error).Err) //nolint:errorlint // url.Parse gives nothing else
	}
	switch {
	case u.Hostname() == "":
		return bad("a host is missing")
	case u.User != nil:
		return address{}, fmt.Errorf("endpoint %s: a user and a password are not for an endpoint; use a client certificate", u.Redacted())
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return bad("only a host and a port are expected after %s://", scheme)
	}
	port := u.Port()
	if port == "" {
		port = defaultPort
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return bad("the port %q is not between 1 and 65535", port)
	}
	// The zone of a link-local address is ours alone: it is in no certificate and in no request.
	host, _, _ := strings.Cut(u.Hostname(), "%")
	a.network, a.addr, a.secure = "tcp", net.JoinHostPort(u.Hostname(), port), scheme == "https"
	a.serverName, a.authority = host, net.JoinHostPort(host, port)
	return a, nil
}
