package gcs

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"time"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
)

// scope is what our tokens allow: to read, write and delete objects, but not to change who may
// (https://developers.google.com/identity/protocols/oauth2/scopes#storage).
const scope = "https://www.googleapis.com/auth/devstorage.read_write"

// credential is a source of tokens. Nil is nobody.
type credential struct {
	*auth.Credentials
	// universe is the domain of the cloud that the credentials' file is of; empty is Google's public one.
	universe string
	// quotaProject is billed for the requests; empty is the bucket's own.
	quotaProject string
	transport    *http.Transport
}

// newCredential reads what a names. Nil is no credential.
func (b *Bucket) newCredential(a v1.GCSAuth) (*credential, error) {
	c := &credential{transport: b.transport.Clone()}
	// That holds for the bucket's endpoint. A key is worth more than what is in the bucket.
	c.transport.TLSClientConfig.InsecureSkipVerify = false
	o := &credentials.DetectOptions{
		Scopes: []string{scope},
		Client: &http.Client{Transport: tokenTransport{c.transport}},
		// Tokens are renewed when they are needed, and not by a goroutine of their own.
		DisableAsyncRefresh: true,
		// GOOGLE_SDK_GO_LOGGING_LEVEL would have requests for tokens printed, keys and all.
		Logger: slog.New(slog.DiscardHandler),
	}
	var err error
	switch a.Method {
	case v1.GCSAuthDefault, "":
		if a.CredentialsFile != "" {
			return nil, bad("auth.credentialsFile", fmt.Errorf("it goes with the methods %s and %s", v1.GCSAuthServiceAccountKey, v1.GCSAuthWorkloadIdentityFederation))
		}
		if c.Credentials, err = credentials.DetectDefault(o); err != nil {
			return nil, bad("auth", fmt.Errorf("no Application Default Credentials: %w (set GOOGLE_APPLICATION_CREDENTIALS, attach a service account to the node, or choose another auth.method)", err))
		}
	case v1.GCSAuthServiceAccountKey:
		c.Credentials, err = fromFile(a, credentials.ServiceAccount, o)
	case v1.GCSAuthWorkloadIdentityFederation:
		c.Credentials, err = fromFile(a, credentials.ExternalAccount, o)
	case v1.GCSAuthAnonymous:
		return nil, nil
	default:
		return nil, bad("auth.method", fmt.Errorf("%q is not known", a.Method))
	}
	if err != nil {
		return nil, err
	}
	return c, c.properties()
}

// properties reads what else a file says. Of the metadata server that is not asked.
func (c *credential) properties() error {
	if len(c.JSON()) == 0 {
		c.quotaProject = os.Getenv("GOOGLE_CLOUD_QUOTA_PROJECT")
		return nil
	}
	ctx := context.Background() // nothing is sent
	var err error
	if c.universe, err = c.UniverseDomain(ctx); err != nil {
		return bad("auth", err)
	}
	if c.quotaProject, err = c.QuotaProjectID(ctx); err != nil {
		return bad("auth", err)
	}
	return nil
}

// fromFile reads a file that must be of one type. An attacker's file of another could make us send our tokens, or run
// programs, wherever it says.
func fromFile(a v1.GCSAuth, want credentials.CredType, o *credentials.DetectOptions) (*auth.Credentials, error) {
	const field = "auth.credentialsFile"
	if a.CredentialsFile == "" {
		return nil, bad(field, errors.New("it is needed"))
	}
	data, err := os.ReadFile(a.CredentialsFile)
	if err != nil {
		return nil, bad(field, err)
	}
	var file struct {
		Type   string `json:"type"`
		Key    string `json:"private_key"`
		Source struct {
			Certificate json.RawMessage `json:"certificate"`
		} `json:"credential_source"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, bad(field, fmt.Errorf("%s is not JSON", a.CredentialsFile))
	}
	if file.Type != string(want) {
		err := fmt.Errorf("%s has the type %q, and the method %s wants %q", a.CredentialsFile, file.Type, a.Method, want)
		switch credentials.CredType(file.Type) {
		case credentials.ServiceAccount:
			err = fmt.Errorf("%w: choose auth.method %s", err, v1.GCSAuthServiceAccountKey)
		case credentials.ExternalAccount:
			err = fmt.Errorf("%w: choose auth.method %s", err, v1.GCSAuthWorkloadIdentityFederation)
		}
		return nil, bad(field, err)
	}
	// The library's words for this are hundreds.
	if block, _ := pem.Decode([]byte(file.Key)); file.Key != "" && block == nil {
		return nil, bad(field, fmt.Errorf("%s: its private_key is no key in PEM format", a.CredentialsFile))
	}
	if len(file.Source.Certificate) > 0 {
		return nil, bad(field, fmt.Errorf("%s wants an X.509 certificate for its credential source, which is not supported", a.CredentialsFile))
	}
	creds, err := credentials.NewCredentialsFromJSON(want, data, o)
	if err != nil {
		return nil, bad(field, fmt.Errorf("%s: %w", a.CredentialsFile, err))
	}
	return creds, nil
}

// firstToken fetches a token, so that an identity that does not work is found before there is anything to store. It is
// kept and renewed by the credential.
func (b *Bucket) firstToken(ctx context.Context) error {
	p := b.policy(opToken)
	if p.GiveUp <= 0 || p.GiveUp > tokenTime {
		p.GiveUp = tokenTime
	}
	return b.tries(ctx, p, func(ctx context.Context) error {
		return b.once(ctx, opToken, "", func(ctx context.Context) error { return b.creds.authorize(ctx, http.Header{}) })
	})
}

// authorize sets the headers that say who we are.
func (c *credential) authorize(ctx context.Context, h http.Header) error {
	if c == nil {
		return nil
	}
	t, err := c.Token(ctx)
	if err != nil {
		return &tokenError{err}
	}
	store.Touch(ctx, 0)
	kind := t.Type
	if kind == "" {
		kind = "Bearer"
	}
	h.Set("Authorization", kind+" "+t.Value)
	if c.quotaProject != "" {
		h.Set("X-Goog-User-Project", c.quotaProject)
	}
	return nil
}

// tokenTransport makes errors of answers that say no, which the library would otherwise put into words of its own.
type tokenTransport struct{ base http.RoundTripper }

func (t tokenTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.base.RoundTrip(req)
	if err != nil || resp.StatusCode < 400 {
		return resp, err
	}
	defer resp.Body.Close()
	e := &ResponseError{StatusCode: resp.StatusCode, header: resp.Header}
	if data, err := io.ReadAll(io.LimitReader(resp.Body, maxError)); err == nil {
		e.Reason, e.Message = oauthError(data)
	}
	if e.StatusCode < 500 && !retryable(e) {
		e.sentinel, e.Advice = store.ErrAccessDenied, tokenAdvice(e, time.Now())
	}
	return nil, fmt.Errorf("%s answers: %w", req.URL.Redacted(), e)
}
