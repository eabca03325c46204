package metrics

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/wire"
)

// transport sends requests to a MetricsEndpoint as who we are to it. An answer that is no success is an error, which says
// whether trying again may help.
type transport struct {
	base                      *http.Transport
	endpoint                  *v1.MetricsEndpoint
	agent                     string
	username, password, token string
}

func newTransport(e *v1.MetricsEndpoint, version string) (*transport, error) {
	base, err := wire.NewTransport(e.EndpointSpec, 1)
	if err != nil {
		return nil, err
	}
	t := &transport{base: base, endpoint: e, agent: "etcd-snapshot-agent/" + version}
	if e.CredentialsDir == "" {
		return t, nil
	}
	var errs [3]error
	t.token, errs[0] = t.file(v1.MetricsFileToken)
	t.username, errs[1] = t.file(v1.MetricsFileUsername)
	t.password, errs[2] = t.file(v1.MetricsFilePassword)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("%w: credentialsDir: %w", store.ErrConfig, err)
	}
	if (t.token == "") == (t.username == "") {
		return nil, fmt.Errorf("%w: credentialsDir: %s holds neither the file %s nor %s and %s, or both", store.ErrConfig, e.CredentialsDir,
			v1.MetricsFileToken, v1.MetricsFileUsername, v1.MetricsFilePassword)
	}
	return t, nil
}

// client sends by it. Elsewhere than told nobody gets our credentials.
func (t *transport) client() *http.Client {
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// file gives what a file of the Secret holds, "" where there is none.
func (t *transport) file(name string) (string, error) {
	data, err := os.ReadFile(filepath.Join(t.endpoint.CredentialsDir, name))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	text := strings.TrimSpace(string(data))
	if err == nil && strings.ContainsAny(text, "\r\n") {
		err = fmt.Errorf("%s has more than one line", filepath.Join(t.endpoint.CredentialsDir, name))
	}
	return text, err
}

// RoundTrip is http.RoundTripper's.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("User-Agent", t.agent)
	switch {
	case t.token != "":
		r.Header.Set("Authorization", "Bearer "+t.token)
	case t.username != "":
		r.SetBasicAuth(t.username, t.password)
	}
	resp, err := t.base.RoundTrip(r)
	if err != nil || resp.StatusCode < 300 {
		return resp, err
	}
	defer resp.Body.Close()
	return nil, t.refused(resp)
}

// maxAnswer is how much of a server's reason is told.
const maxAnswer = 512

func (t *transport) refused(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // what there is of it is told
	err := fmt.Errorf("%s answered %s: %s", t.endpoint.URL, resp.Status, strings.Join(strings.Fields(strings.ToValidUTF8(string(text), "")), " "))
	switch code := resp.StatusCode; {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return store.Permanent(fmt.Errorf("%w (check credentialsDir)", err))
	case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code >= 500:
		return store.WithRetryAfter(err, resp.Header)
	}
	return store.Permanent(fmt.Errorf("%w (check url)", err))
}

// explain says what to do about an error of the network.
func (t *transport) explain(err error) error {
	if err == nil {
		return nil
	}
	return wire.Explain(err, t.endpoint.URL, "url")
}

// Close ends the connections.
func (t *transport) Close() { t.base.CloseIdleConnections() }
