package catalog

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What an error is about, for errors.Is. All but ErrUnauthorized come in a *ConfigError.
var (
	// ErrNotFound: the API server has no such object.
	ErrNotFound = errors.New("does not exist")
	// ErrNotInstalled: the API server does not know the kind: the CRDs are missing, or serve another version.
	ErrNotInstalled = errors.New("the CRDs of etcdsnapshot.dev/v1 are not installed")
	// ErrForbidden: RBAC does not grant us the request.
	ErrForbidden = errors.New("forbidden")
	// ErrUnauthorized: the API server does not accept our credentials, now: the next pod gets a new token.
	ErrUnauthorized = errors.New("credentials not accepted")
)

// ConfigError is a failure that stays until somebody changes something.
type ConfigError struct {
	// What was tried.
	What string
	Err  error
}

func (e *ConfigError) Error() string { return e.What + ": " + e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

// UnavailableError says that the API server is away, too busy, or broken: trying again may help.
type UnavailableError struct {
	Server string
	// What was tried.
	What string
	Err  error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("%s: API server %s: %v", e.What, e.Server, e.Err)
}
func (e *UnavailableError) Unwrap() error { return e.Err }

// detailed is an error of ours for errors.Is, told in words of its own.
type detailed struct {
	is   error
	text string
	err  error
}

func (e *detailed) Error() string   { return e.text }
func (e *detailed) Unwrap() []error { return []error{e.is, e.err} }

// explain sorts an error of client-go: what it is, what was tried, and what to do.
func (c *Client) explain(ctx context.Context, err error, verb string, t target) error {
	if err == nil {
		return nil
	}
	what := verb + " " + t.String()
	config := func(is error, format string, args ...any) error {
		return &ConfigError{What: what, Err: &detailed{is: is, text: fmt.Sprintf(format, args...), err: err}}
	}
	var (
		untrusted *tls.CertificateVerificationError
		invalid   x509.CertificateInvalidError
		alert     tls.AlertError
	)
	switch {
	case ctx.Err() != nil && !isStatus(err):
		return fmt.Errorf("%s: API server %s: %w", what, c.server, context.Cause(ctx))
	case apierrors.IsForbidden(err):
		return config(ErrForbidden, "%v: grant the verb %q on %q in a Role or ClusterRole, as the chart does", err, verb, t.rbac())
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: %w", what, &detailed{is: ErrUnauthorized, err: err,
			text: fmt.Sprintf("the API server %s does not accept our credentials: %v: check the service account's token or the kubeconfig's user", c.server, err)})
	case apierrors.IsNotFound(err) && unknownResource(err):
		return config(ErrNotInstalled, "the API server %s does not know %s: %v: install them with the chart (crds.enabled)", c.server, t.rbac(), ErrNotInstalled)
	case apierrors.IsNotFound(err):
		return config(ErrNotFound, "there is no such object: check the name and the namespace (kubectl get %s --all-namespaces)", t.resource)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return &ConfigError{What: what, Err: fmt.Errorf("API server %s: %w (set this machine's clock, or renew the API server's certificate)", c.server, err)}
	case errors.As(err, &untrusted), errors.As(err, &invalid), errors.As(err, &alert):
		return &ConfigError{What: what, Err: fmt.Errorf("API server %s: %w", c.server, err)}
	case isStatus(err) && !worthRetrying(err):
		return fmt.Errorf("%s: API server %s: %w", what, c.server, err)
	}
	return &UnavailableError{Server: c.server, What: what, Err: err}
}

// unknownResource tells a resource that the API server does not serve from an object that it does not have: the
// former is answered by a bare "404 page not found", which client-go puts into a cause of its own.
func unknownResource(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// isStatus reports whether err is an answer of the API server.
func isStatus(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

// worthRetrying tells answers about the API server's state from those about what was asked: 5xx, and 429 and 408 of the
// others.
func worthRetrying(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout
}
