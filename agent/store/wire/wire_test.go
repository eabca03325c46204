package wire

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCertificates: what does not verify is told with what helps, which is not always a CA.
func TestCertificates(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	clock := func(at time.Time) func() time.Time { return func() time.Time { return at } }
	for name, c := range map[string]struct {
		conf *tls.Config
		says string
	}{
		"authority": {&tls.Config{}, "put the CA's certificate into caBundleFile"},
		"too early": {&tls.Config{RootCAs: roots, Time: clock(server.Certificate().NotBefore.Add(-time.Hour))}, "set this machine's clock, or renew the certificate"},
		"too late":  {&tls.Config{RootCAs: roots, Time: clock(server.Certificate().NotAfter.Add(time.Hour))}, "set this machine's clock, or renew the certificate"},
		"name":      {&tls.Config{RootCAs: roots, ServerName: "other.test"}, "it is for another name: correct the address"},
	} {
		t.Run(name, func(t *testing.T) {
			transport := &http.Transport{TLSClientConfig: c.conf}
			defer transport.CloseIdleConnections()
			resp, err := (&http.Client{Transport: transport}).Get(server.URL)
			if err == nil {
				resp.Body.Close()
			}
			require.Error(t, err)
			require.ErrorContains(t, Explain(err, server.URL, "endpoint"), "(the certificate of "+server.URL+" does not verify: "+c.says)
		})
	}
}
