package gcs

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/storetest"
	"etcdsnapshot.dev/ci/emulator"
)

// tokens gives tokens as Google's services do, over https: /token for keys of service accounts, /sts for tokens of
// others, /impersonate for tokens of a service account.
type tokens struct {
	*httptest.Server
	key *rsa.PrivateKey

	mu sync.Mutex
	// fail is answered, so often, before anything else.
	fail     func(w http.ResponseWriter)
	failures int
	asked    []string
}

const (
	email        = "agent@project.iam.gserviceaccount.com"
	subjectToken = "subject-token-of-this-cluster"
)

func startTokens(t *testing.T) *tokens {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	s := &tokens{key: key}
	s.Server = httptest.NewTLSServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *tokens) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.URL.Path)
	if s.failures > 0 {
		s.failures--
		s.fail(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := s.check(r); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"error":"invalid_grant","error_description":%q}`, err)
		return
	}
	if r.URL.Path == "/impersonate" {
		fmt.Fprintf(w, `{"accessToken":"token-of-impersonate","expireTime":%q}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		return
	}
	fmt.Fprintf(w, `{"access_token":"token-of-%s","issued_token_type":"urn:ietf:params:oauth:token-type:access_token","token_type":"Bearer","expires_in":3600}`, r.URL.Path[1:])
}

// check is what makes this more than a machine that says yes.
func (s *tokens) check(r *http.Request) error {
	switch r.URL.Path {
	case "/token":
		parts := strings.Split(r.PostFormValue("assertion"), ".")
		if len(parts) != 3 {
			return errors.New("no assertion")
		}
		signature, err := base64.RawURLEncoding.DecodeString(parts[2])
		if err != nil {
			return err
		}
		sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
		if err := rsa.VerifyPKCS1v15(&s.key.PublicKey, crypto.SHA256, sum[:], signature); err != nil {
			return errors.New("Invalid JWT Signature")
		}
		claims, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err != nil || !strings.Contains(string(claims), scope) || !strings.Contains(string(claims), email) {
			return fmt.Errorf("claims %s", claims)
		}
	case "/sts":
		if got := r.PostFormValue("subject_token"); got != subjectToken {
			return fmt.Errorf("subject token %q", got)
		}
	case "/impersonate":
		if got := r.Header.Get("Authorization"); got != "Bearer token-of-sts" {
			return fmt.Errorf("authorization %q", got)
		}
	}
	return nil
}

// keyFile is the file of a service account's key.
func (s *tokens) keyFile(t *testing.T, key *rsa.PrivateKey, change map[string]string) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return writeJSON(t, map[string]any{
		"type": "service_account", "project_id": "project", "private_key_id": "id", "client_email": email,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "token_uri": s.URL + "/token",
	}, change)
}

// federationFile is the configuration of a workload identity federation.
func (s *tokens) federationFile(t *testing.T, change map[string]string) string {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte(subjectToken), 0o600))
	return writeJSON(t, map[string]any{
		"type": "external_account", "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/c",
		"subject_token_type": "urn:ietf:params:oauth:token-type:jwt", "token_url": s.URL + "/sts", "credential_source": map[string]any{"file": token},
	}, change)
}

func writeJSON(t *testing.T, v map[string]any, change map[string]string) string {
	t.Helper()
	for k, c := range change {
		v[k] = c
	}
	data, err := json.Marshal(v)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "credentials.json")
	require.NoError(t, os.WriteFile(file, data, 0o600))
	return file
}

// private is a bucket behind https, and the tokens to get in.
type private struct {
	*tokens
	proxy *emulator.FaultProxy
	spec  *v1.GCSDestination
}

func newPrivate(t *testing.T) *private {
	t.Helper()
	srv := emulator.StartGCS(t)
	p := &private{tokens: startTokens(t), proxy: emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{TLS: true})}
	p.spec = newSpec(t, srv, p.proxy.URL, emulator.GCSBucketOptions{})
	p.spec.CABundleFile = filepath.Join(t.TempDir(), "ca.crt")
	ca := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw}), p.proxy.CA...)
	require.NoError(t, os.WriteFile(p.spec.CABundleFile, ca, 0o600))
	return p
}

// use stores and reads an object and requires that each request carried the token.
func (p *private) use(t *testing.T, token string) {
	t.Helper()
	p.proxy.Clear()
	b := open(t, p.spec, quick())
	require.NoError(t, b.Put(t.Context(), "a/"+token, storetest.Text("content")))
	require.Equal(t, "content", content(t, b, "a/"+token))
	require.NoError(t, b.Delete(t.Context(), "a/"+token))
	for _, r := range p.proxy.Requests(emulator.Rule{}) {
		require.Equal(t, "Bearer "+token, r.Header.Get("Authorization"), "%s %s", r.Method, r.URL)
	}
	require.Equal(t, 4, p.proxy.Count(emulator.Rule{}))
}

func TestAuthServiceAccountKey(t *testing.T) {
	p := newPrivate(t)
	p.spec.Auth = v1.GCSAuth{Method: v1.GCSAuthServiceAccountKey, CredentialsFile: p.keyFile(t, p.key, nil)}
	p.use(t, "token-of-token")
	require.Equal(t, []string{"/token"}, p.asked, "one token is enough")

	t.Run("quota project", func(t *testing.T) {
		t.Setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "payer")
		p.use(t, "token-of-token")
		for _, r := range p.proxy.Requests(emulator.Rule{}) {
			require.Equal(t, "payer", r.Header.Get("X-Goog-User-Project"))
		}
	})
}

func TestAuthFederation(t *testing.T) {
	p := newPrivate(t)
	p.spec.Auth = v1.GCSAuth{Method: v1.GCSAuthWorkloadIdentityFederation, CredentialsFile: p.federationFile(t, nil)}
	p.use(t, "token-of-sts")
	p.spec.Auth.CredentialsFile = p.federationFile(t, map[string]string{"service_account_impersonation_url": p.URL + "/impersonate"})
	p.use(t, "token-of-impersonate")
}

func TestAuthDefaultFile(t *testing.T) {
	p := newPrivate(t)
	for file, token := range map[string]string{p.keyFile(t, p.key, nil): "token-of-token", p.federationFile(t, nil): "token-of-sts"} {
		t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
		for _, method := range []string{"", v1.GCSAuthDefault} {
			p.spec.Auth = v1.GCSAuth{Method: method}
			p.use(t, token)
		}
	}
}

// TestAuthConfig: what is wrong with the configuration is said at once, by the name of the field and of the file, and
// nothing is asked.
func TestAuthConfig(t *testing.T) {
	s := startTokens(t)
	dir := t.TempDir()
	write := func(name, data string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(data), 0o600))
		return file
	}
	key, federation := s.keyFile(t, s.key, nil), s.federationFile(t, nil)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(dir, "not-there.json"))
	for name, c := range map[string]struct {
		auth v1.GCSAuth
		says []string
	}{
		"no file":               {v1.GCSAuth{Method: v1.GCSAuthServiceAccountKey}, []string{"auth.credentialsFile"}},
		"file missing":          {v1.GCSAuth{Method: v1.GCSAuthServiceAccountKey, CredentialsFile: dir + "/nope.json"}, []string{"auth.credentialsFile", dir + "/nope.json", "no such file"}},
		"not JSON":              {v1.GCSAuth{Method: v1.GCSAuthServiceAccountKey, CredentialsFile: write("a", "secret: x")}, []string{"auth.credentialsFile", dir + "/a is not JSON"}},
		"key for federation":    {v1.GCSAuth{Method: v1.GCSAuthWorkloadIdentityFederation, CredentialsFile: key}, []string{"auth.credentialsFile", key, `"service_account"`, "choose auth.method serviceAccountKey"}},
		"federation for key":    {v1.GCSAuth{Method: v1.GCSAuthServiceAccountKey, CredentialsFile: federation}, []string{`"external_account"`, "choose auth.method workloadIdentityFederation"}},
		"somebody's own":        {v1.GCSAuth{Method: v1.GCSAuthServiceAccountKey, CredentialsFile: write("b", `{"type":"authorized_user","refresh_token":"secret"}`)}, []string{`"authorized_user"`}},
		"no type":               {v1.GCSAuth{Method: v1.GCSAuthServiceAccountKey, CredentialsFile: write("c", `{"private_key":"secret"}`)}, []string{`type ""`}},
		"no key":                {v1.GCSAuth{Method: v1.GCSAuthServiceAccountKey, CredentialsFile: write("d", `{"type":"service_account","client_email":"x"}`)}, []string{"auth.credentialsFile", "private key"}},
		"bad key":               {v1.GCSAuth{Method: v1.GCSAuthServiceAccountKey, CredentialsFile: s.keyFile(t, s.key, map[string]string{"private_key": "secret"})}, []string{"auth.credentialsFile", "private_key is no key"}},
		"certificate":           {v1.GCSAuth{Method: v1.GCSAuthWorkloadIdentityFederation, CredentialsFile: write("e", `{"type":"external_account","credential_source":{"certificate":{}}}`)}, []string{"X.509"}},
		"unknown method":        {v1.GCSAuth{Method: "magic"}, []string{"auth.method", `"magic"`}},
		"default with file":     {v1.GCSAuth{CredentialsFile: key}, []string{"auth.credentialsFile"}},
		"default, file missing": {v1.GCSAuth{}, []string{"Application Default Credentials", "not-there.json", "no such file"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(t.Context(), &v1.GCSDestination{Bucket: "bucket", Auth: c.auth}, quick())
			require.ErrorIs(t, err, store.ErrConfig)
			t.Log(err)
			require.ErrorContains(t, err, "gcs bucket bucket: ")
			for _, s := range c.says {
				require.ErrorContains(t, err, s)
			}
			require.NotContains(t, err.Error(), "secret")
		})
	}
	t.Run("subject token missing", func(t *testing.T) {
		file := writeJSON(t, map[string]any{
			"type": "external_account", "audience": "a", "subject_token_type": "t", "token_url": s.URL + "/sts", "credential_source": map[string]any{"file": dir + "/no-token"},
		}, nil)
		_, err := New(t.Context(), &v1.GCSDestination{Bucket: "bucket", Auth: v1.GCSAuth{Method: v1.GCSAuthWorkloadIdentityFederation, CredentialsFile: file}}, quick())
		require.ErrorIs(t, err, store.ErrConfig)
		require.ErrorContains(t, err, dir+"/no-token")
	})
	t.Run("token in the clear", func(t *testing.T) {
		_, err := New(t.Context(), &v1.GCSDestination{Bucket: "bucket", Endpoint: "http://127.0.0.1:1", Auth: v1.GCSAuth{Method: v1.GCSAuthServiceAccountKey, CredentialsFile: key}}, quick())
		require.ErrorIs(t, err, store.ErrConfig)
		require.ErrorContains(t, err, "https only")
	})
	require.Empty(t, s.asked)
}

func TestAuthRefused(t *testing.T) {
	p := newPrivate(t)
	newBucket := func(t *testing.T, file, method string) error {
		p.spec.Auth = v1.GCSAuth{Method: method, CredentialsFile: file}
		b, err := New(t.Context(), p.spec, quick())
		if err == nil {
			b.Close()
		} else {
			t.Log(err)
		}
		return err
	}
	answer := func(status int, header, body string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			if k, v, ok := strings.Cut(header, ": "); ok {
				w.Header().Set(k, v)
			}
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}
	}
	t.Run("another key", func(t *testing.T) {
		other, err := rsa.GenerateKey(rand.Reader, 2048)
		require.NoError(t, err)
		err = newBucket(t, p.keyFile(t, other, nil), v1.GCSAuthServiceAccountKey)
		require.ErrorIs(t, err, store.ErrAccessDenied)
		for _, s := range []string{"auth: method serviceAccountKey: get a token for gs://", p.URL + "/token answers", "400 invalid_grant: Invalid JWT Signature", "still there and enabled"} {
			require.ErrorContains(t, err, s)
		}
	})
	t.Run("another subject", func(t *testing.T) {
		file := p.federationFile(t, nil)
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		var v struct {
			Source struct{ File string } `json:"credential_source"`
		}
		require.NoError(t, json.Unmarshal(data, &v))
		require.NoError(t, os.WriteFile(v.Source.File, []byte("secret"), 0o600))
		p.fail, p.failures = answer(400, "", `{"error":"invalid_target","error_description":"The target service indicated by the \"audience\" parameters is invalid."}`), 1
		err = newBucket(t, file, v1.GCSAuthWorkloadIdentityFederation)
		require.ErrorIs(t, err, store.ErrAccessDenied)
		require.ErrorContains(t, err, "400 invalid_target: The target service")
		require.NotContains(t, err.Error(), "secret")
	})
	t.Run("impersonation denied", func(t *testing.T) {
		file := p.federationFile(t, map[string]string{"service_account_impersonation_url": p.URL + "/impersonate"})
		p.fail, p.failures = answer(403, "", `{"error":{"code":403,"message":"Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist).","status":"PERMISSION_DENIED"}}`), 1
		err := newBucket(t, file, v1.GCSAuthWorkloadIdentityFederation)
		require.ErrorIs(t, err, store.ErrAccessDenied)
		require.ErrorContains(t, err, "403 PERMISSION_DENIED: Permission 'iam.serviceAccounts.getAccessToken' denied")
	})
	t.Run("clock", func(t *testing.T) {
		p.fail, p.failures = answer(400, "Date: "+time.Now().Add(2*time.Hour).UTC().Format(http.TimeFormat), `{"error":"invalid_grant","error_description":"Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe."}`), 1
		err := newBucket(t, p.keyFile(t, p.key, nil), v1.GCSAuthServiceAccountKey)
		require.ErrorIs(t, err, store.ErrAccessDenied)
		require.Regexp(t, `the clock of this node is (2h|1h59m)\w+ behind Google's: set it right`, err.Error())
	})
	t.Run("busy", func(t *testing.T) {
		p.fail, p.failures = answer(503, "", "<html>busy</html>"), 2
		require.NoError(t, newBucket(t, p.keyFile(t, p.key, nil), v1.GCSAuthServiceAccountKey))
	})
	t.Run("unreachable", func(t *testing.T) {
		err := newBucket(t, p.keyFile(t, p.key, map[string]string{"token_uri": "https://nope.invalid/token"}), v1.GCSAuthServiceAccountKey)
		require.ErrorContains(t, err, "lookup nope.invalid")
		require.NotErrorIs(t, err, store.ErrConfig)
	})
	// Who reads along what goes to the bucket may not thereby get the key's tokens.
	t.Run("no verification of the endpoint", func(t *testing.T) {
		bundle := p.spec.CABundleFile
		p.spec.CABundleFile, p.spec.InsecureSkipTLSVerify = "", true
		err := newBucket(t, p.keyFile(t, p.key, nil), v1.GCSAuthServiceAccountKey)
		require.ErrorContains(t, err, "x509: ")
		p.spec.CABundleFile = bundle
		require.NoError(t, newBucket(t, p.keyFile(t, p.key, nil), v1.GCSAuthServiceAccountKey))
	})
}

func TestUniverse(t *testing.T) {
	s := startTokens(t)
	// Tokens of other universes are signed here and not fetched.
	b, err := New(t.Context(), &v1.GCSDestination{Bucket: "bucket", Auth: v1.GCSAuth{
		Method: v1.GCSAuthServiceAccountKey, CredentialsFile: s.keyFile(t, s.key, map[string]string{"universe_domain": "cloud.example"}),
	}}, quick())
	require.NoError(t, err)
	defer b.Close()
	require.Equal(t, "https://storage.cloud.example", b.endpoint.String())
	require.Empty(t, s.asked)
}
