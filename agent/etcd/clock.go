package etcd

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"
)

// ServerTime asks the member behind an endpoint what time it is, to the second. gRPC does not tell, but the HTTP server
// that etcd runs on the same port does with each answer. An error wraps http.ErrNotSupported where the member answered
// without a time: etcd can be told to serve HTTP elsewhere (--listen-client-http-urls).
func (c *Cluster) ServerTime(ctx context.Context, endpoint string) (time.Time, error) {
	for _, l := range c.links {
		if l.endpoint == endpoint {
			return l.serverTime(ctx)
		}
	}
	return time.Time{}, fmt.Errorf("no such endpoint is configured: %s", endpoint)
}

func (l *link) serverTime(ctx context.Context) (time.Time, error) {
	u := url.URL{Scheme: "http", Host: l.authority, Path: "/version"}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, l.network, l.addr)
		},
		DisableKeepAlives: true,
	}
	if l.secure {
		u.Scheme = "https"
		transport.TLSClientConfig = l.conf.Clone()
		transport.TLSClientConfig.NextProtos = []string{"http/1.1"} // the other one is gRPC's
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, u.String(), nil)
	if err != nil {
		return time.Time{}, err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return time.Time{}, fmt.Errorf("ask %s for the time: %w", l.endpoint, err)
	}
	answer.Body.Close()
	date := answer.Header.Get("Date")
	if date == "" {
		return time.Time{}, fmt.Errorf("ask %s for the time: %w: the answer has none", l.endpoint, http.ErrNotSupported)
	}
	return http.ParseTime(date)
}
