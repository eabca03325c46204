package azure

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
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

const (
	tenant       = "11111111-1111-1111-1111-111111111111"
	clientID     = "22222222-2222-2222-2222-222222222222"
	clientSecret = "s3cr3t-of-the-application"
	podToken     = "token-of-the-service-account"
)

// fakeEntra answers as Entra ID does, whose part no emulator plays, and as the metadata service of a node.
type fakeEntra struct {
	*httptest.Server
	mu sync.Mutex
	// forms of the token requests.
	forms []url.Values
	// refuse, if set, answers instead.
	refuse func(w http.ResponseWriter)
}

func startEntra(t *testing.T, tls bool) *fakeEntra {
	t.Helper()
	e := &fakeEntra{}
	e.Server = httptest.NewUnstartedServer(e)
	e.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	if tls {
		e.StartTLS()
	} else {
		e.Start()
	}
	t.Cleanup(e.Close)
	return e
}

// jwt is what Azurite takes for a token: it looks at the claims and not at the signature.
func jwt(lifetime time.Duration) string {
	now := time.Now()
	part := func(v any) string {
		data, _ := json.Marshal(v) // of plain maps
		return base64.RawURLEncoding.EncodeToString(data)
	}
	return part(map[string]any{"alg": "RS256", "typ": "JWT"}) + "." + part(map[string]any{
		"aud": "https://storage.azure.com", "iss": "https://sts.windows.net/" + tenant + "/", "oid": clientID, "tid": tenant,
		"iat": now.Add(-time.Hour).Unix(), "nbf": now.Add(-time.Hour).Unix(), "exp": now.Add(lifetime).Unix(),
	}) + ".c2ln"
}

func (e *fakeEntra) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = r.ParseForm() // what does not parse is refused below
	switch {
	case strings.HasSuffix(r.URL.Path, "/.well-known/openid-configuration"):
		base := e.URL + "/" + tenant
		fmt.Fprintf(w, `{"issuer":"%s/v2.0","authorization_endpoint":"%s/oauth2/v2.0/authorize","token_endpoint":"%s/oauth2/v2.0/token"}`, base, base, base)
		return
	case strings.HasSuffix(r.URL.Path, "/oauth2/v2.0/token"), strings.HasSuffix(r.URL.Path, "/metadata/identity/oauth2/token"):
	default:
		http.NotFound(w, r)
		return
	}
	e.forms = append(e.forms, maps.Clone(r.Form))
	if e.refuse != nil {
		e.refuse(w)
		return
	}
	switch f := r.Form; {
	case r.Method == http.MethodGet: // the metadata service
		if r.Header.Get("Metadata") != "true" || f.Get("resource") != "https://storage.azure.com" || f.Get("client_id") == "unknown" {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":"invalid_request","error_description":"Identity not found"}`)
			return
		}
		// So short that it is not kept: the SDK keeps these tokens for the process and not for the credential.
		expires := time.Now().Add(4 * time.Minute).Unix()
		fmt.Fprintf(w, `{"access_token":%q,"expires_in":"240","expires_on":"%d","resource":"https://storage.azure.com","token_type":"Bearer"}`, jwt(time.Hour), expires)
	case f.Get("scope") != "" && strings.Contains(f.Get("scope"), "https://storage.azure.com/.default") && f.Get("client_id") == clientID &&
		(f.Get("client_secret") == clientSecret || f.Get("client_assertion") == podToken):
		fmt.Fprintf(w, `{"access_token":%q,"expires_in":3600,"token_type":"Bearer"}`, jwt(time.Hour))
	default:
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"error":"invalid_client","error_description":"AADSTS7000215: Invalid client secret provided. Trace ID: 1 Correlation ID: 2","error_codes":[7000215]}`)
	}
}

func (e *fakeEntra) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: e.Certificate().Raw})
}

// noAzure hides what the machine of the test may have of Azure.
func noAzure(t *testing.T) {
	t.Helper()
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "AZURE_") || strings.HasPrefix(name, "IDENTITY_") || strings.HasPrefix(name, "MSI_") {
			t.Setenv(name, "") // so that it is restored
			require.NoError(t, os.Unsetenv(name))
		}
	}
	t.Setenv("PATH", t.TempDir()) // no az, azd and pwsh
}

// requireWorks stores, lists, reads and deletes.
func requireWorks(t *testing.T, b *Bucket) {
	t.Helper()
	require.NoError(t, storetest.CheckList(t.Context(), b, "a/"))
	blob := storetest.Blob(1, 600<<10)
	require.NoError(t, b.Put(t.Context(), "a/b", blob))
	requireWhole(t, b, "a/b", blob)
	require.NoError(t, b.Delete(t.Context(), "a/b"))
	require.Empty(t, keys(t, b))
}

func TestTokens(t *testing.T) {
	az := emulator.StartAzurite(t, emulator.AzuriteConfig{TLS: true})
	noAzure(t)
	entra, imds := startEntra(t, true), startEntra(t, false)
	bundle := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(bundle, append(entra.ca(), az.CA...), 0o600))
	tokenFile := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(tokenFile, []byte(podToken), 0o600))

	destination := func(t *testing.T, auth v1.AzureAuth) *v1.AzureDestination {
		spec := newContainer(t, az)
		spec.Auth, spec.CABundleFile = auth, bundle
		return spec
	}
	// try opens with a metadata service that nothing but this test can reach.
	try := func(t *testing.T, spec *v1.AzureDestination) (*Bucket, error) {
		b := newBucket(quick())
		b.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == "169.254.169.254:80" {
				addr = imds.Listener.Addr().String()
			}
			return dial(ctx, network, addr)
		}
		t.Cleanup(func() { b.Close() })
		return b, b.open(t.Context(), spec)
	}
	works := func(t *testing.T, spec *v1.AzureDestination) {
		t.Helper()
		b, err := try(t, spec)
		require.NoError(t, err)
		requireWorks(t, b)
	}
	secret := func(t *testing.T, value string) v1.AzureAuth {
		return v1.AzureAuth{
			Method: v1.AzureAuthClientSecret, TenantID: tenant, ClientID: clientID, AuthorityHost: entra.URL,
			CredentialsDir: secrets(t, map[string]string{v1.AzureFileClientSecret: value}),
		}
	}
	last := func(e *fakeEntra) url.Values {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.forms[len(e.forms)-1]
	}

	t.Run("client secret", func(t *testing.T) {
		works(t, destination(t, secret(t, clientSecret+"\n")))
		require.Equal(t, clientSecret, last(entra).Get("client_secret"))
	})
	t.Run("wrong client secret", func(t *testing.T) {
		_, err := try(t, destination(t, secret(t, "not-the-secret")))
		require.ErrorIs(t, err, store.ErrAccessDenied)
		require.ErrorContains(t, err, "auth: method clientSecret: ")
		require.ErrorContains(t, err, "invalid_client: AADSTS7000215: Invalid client secret provided (check auth")
		require.NotContains(t, err.Error(), "not-the-secret")
		require.NotContains(t, err.Error(), "\n")
	})
	t.Run("authority of unknown certificate", func(t *testing.T) {
		spec := destination(t, secret(t, clientSecret))
		spec.CABundleFile = ""
		_, err := try(t, spec)
		require.ErrorContains(t, err, "x509: certificate signed by unknown authority")
		require.ErrorContains(t, err, "caBundleFile")
		require.NotContains(t, err.Error(), clientSecret)
	})
	t.Run("authority busy, then not", func(t *testing.T) {
		times := 0
		entra.refuse = func(w http.ResponseWriter) {
			if times++; times == 2 {
				entra.refuse = nil
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		works(t, destination(t, secret(t, clientSecret)))
		require.Equal(t, 2, times)
	})
	t.Run("authority busy for good", func(t *testing.T) {
		entra.refuse = func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }
		defer func() { entra.refuse = nil }()
		_, err := try(t, destination(t, secret(t, clientSecret)))
		require.ErrorContains(t, err, "503")
		require.NotErrorIs(t, err, store.ErrAccessDenied)
		require.NotErrorIs(t, err, store.ErrConfig)
	})
	t.Run("expired token", func(t *testing.T) {
		entra.refuse = func(w http.ResponseWriter) {
			fmt.Fprintf(w, `{"access_token":%q,"expires_in":3600,"token_type":"Bearer"}`, jwt(-time.Minute))
		}
		defer func() { entra.refuse = nil }()
		b, err := try(t, destination(t, secret(t, clientSecret)))
		require.NoError(t, err)
		for what, err := range calls(t, b) {
			require.ErrorIs(t, err, store.ErrAccessDenied, what)
			require.NotContains(t, err.Error(), "eyJ", "a token: "+what)
		}
	})
	t.Run("workload identity", func(t *testing.T) {
		spec := destination(t, v1.AzureAuth{Method: v1.AzureAuthWorkloadIdentity, TenantID: tenant, ClientID: clientID, AuthorityHost: entra.URL})
		_, err := try(t, spec)
		require.ErrorIs(t, err, store.ErrConfig)
		require.ErrorContains(t, err, `AZURE_FEDERATED_TOKEN_FILE: it is not set: the pod needs the label azure.workload.identity/use: "true"`)
		t.Setenv(envTokenFile, filepath.Join(t.TempDir(), "missing"))
		_, err = try(t, spec)
		require.ErrorIs(t, err, store.ErrConfig)
		require.ErrorIs(t, err, os.ErrNotExist)
		t.Setenv(envTokenFile, tokenFile)
		works(t, spec)
		require.Equal(t, podToken, last(entra).Get("client_assertion"))

		// As the webhook says.
		spec.Auth = v1.AzureAuth{Method: v1.AzureAuthWorkloadIdentity}
		_, err = try(t, spec)
		require.ErrorContains(t, err, "auth.clientID: neither it nor AZURE_CLIENT_ID is set")
		t.Setenv(envClientID, clientID)
		_, err = try(t, spec)
		require.ErrorContains(t, err, "auth.tenantID: neither it nor AZURE_TENANT_ID is set")
		t.Setenv(envTenantID, tenant)
		t.Setenv(envAuthorityHost, entra.URL)
		works(t, spec)
		t.Run("by default", func(t *testing.T) {
			spec.Auth = v1.AzureAuth{}
			works(t, spec)
			require.Equal(t, podToken, last(entra).Get("client_assertion"))
		})
	})
	t.Run("managed identity", func(t *testing.T) {
		works(t, destination(t, v1.AzureAuth{Method: v1.AzureAuthManagedIdentity}))
		require.Empty(t, last(imds).Get("client_id"))
		works(t, destination(t, v1.AzureAuth{Method: v1.AzureAuthManagedIdentity, ClientID: clientID}))
		require.Equal(t, clientID, last(imds).Get("client_id"))
		_, err := try(t, destination(t, v1.AzureAuth{Method: v1.AzureAuthManagedIdentity, ClientID: "unknown"}))
		require.ErrorIs(t, err, store.ErrAccessDenied)
		require.ErrorContains(t, err, "Identity not found")
	})
	t.Run("default: the environment's secret", func(t *testing.T) {
		t.Setenv(envClientID, clientID)
		t.Setenv(envTenantID, tenant)
		t.Setenv("AZURE_CLIENT_SECRET", clientSecret)
		t.Setenv(envAuthorityHost, entra.URL)
		works(t, destination(t, v1.AzureAuth{Method: v1.AzureAuthDefault}))
		require.Equal(t, clientSecret, last(entra).Get("client_secret"))
	})
	t.Run("default: the node's identity", func(t *testing.T) {
		t.Setenv(envClientID, "33333333-3333-3333-3333-333333333333")
		works(t, destination(t, v1.AzureAuth{}))
		require.Equal(t, "33333333-3333-3333-3333-333333333333", last(imds).Get("client_id"))
	})
	t.Run("default: nothing", func(t *testing.T) {
		imds.Close()
		_, err := try(t, destination(t, v1.AzureAuth{}))
		require.ErrorContains(t, err, "auth: method default: ")
		for _, name := range []string{"EnvironmentCredential", "WorkloadIdentityCredential", "ManagedIdentityCredential"} {
			require.ErrorContains(t, err, name)
		}
		require.NotContains(t, err.Error(), "\n")
		_, err = try(t, destination(t, v1.AzureAuth{Method: v1.AzureAuthManagedIdentity}))
		require.ErrorContains(t, err, "auth: method managedIdentity: ")
		require.ErrorContains(t, err, "connection refused")
	})
}

func TestTLS(t *testing.T) {
	az := emulator.StartAzurite(t, emulator.AzuriteConfig{TLS: true})
	spec := newContainer(t, az)
	unknown := open(t, spec, quick())
	for what, err := range calls(t, unknown) {
		require.ErrorContains(t, err, "x509: certificate signed by unknown authority", what)
		require.ErrorContains(t, err, "put the CA's certificate into caBundleFile", what)
		require.NotContains(t, err.Error(), "gave up", "another try does not help: "+what)
	}
	trusting := *spec
	trusting.CABundleFile = filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(trusting.CABundleFile, az.CA, 0o600))
	requireWorks(t, open(t, &trusting, quick()))
	careless := *spec
	careless.InsecureSkipTLSVerify = true
	requireWorks(t, open(t, &careless, quick()))

	plain := emulator.StartAzurite(t, emulator.AzuriteConfig{})
	mixed := newContainer(t, plain)
	mixed.ServiceURL = strings.Replace(mixed.ServiceURL, "http://", "https://", 1)
	require.ErrorContains(t, storetest.CheckList(t.Context(), open(t, mixed, quick()), ""), "write serviceURL with http://")
}

func TestSAS(t *testing.T) {
	az := emulator.StartAzurite(t, emulator.AzuriteConfig{})
	spec := newContainer(t, az)
	full := open(t, spec, quick())
	require.NoError(t, full.Put(t.Context(), "a/there", storetest.Text("there")))

	var log bytes.Buffer
	o := quick()
	o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	// What a SAS allows, and what is then denied.
	for permissions, denied := range map[string][]string{
		"racwdl": nil,
		"w":      {"get", "list", "delete", "check", "access"},
		"rwl":    {"delete"},
		"rl":     {"put", "put in parts", "delete"},
		"d":      {"put", "put in parts", "get", "list", "check", "access"},
	} {
		t.Run(permissions, func(t *testing.T) {
			s := *spec
			withSAS(t, az, &s, permissions)
			b, err := New(t.Context(), &s, o)
			require.NoError(t, err)
			defer b.Close()
			errs := calls(t, b)
			for _, what := range denied {
				require.ErrorIs(t, errs[what], store.ErrAccessDenied, what)
				require.ErrorContains(t, errs[what], "or the SAS needs sp=", what)
				requireNoSAS(t, errs[what].Error())
				delete(errs, what)
			}
			for what, err := range errs {
				require.NotErrorIs(t, err, store.ErrAccessDenied, what)
			}
			requireNoSAS(t, b.String())
			for _, key := range keys(t, full) {
				if key != "a/there" {
					require.NoError(t, full.Delete(t.Context(), key))
				}
			}
		})
	}

	// Nor does it show in what goes wrong below HTTP.
	s := *spec
	withSAS(t, az, &s, "racwdl")
	for _, to := range []string{"http://127.0.0.1:1/x", "https://nope.invalid", strings.Replace(az.ServiceURL, "http:", "https:", 1)} {
		s.ServiceURL = to
		o.Retry.GiveUp = time.Millisecond
		for _, err := range calls(t, open(t, &s, o)) {
			require.Error(t, err)
			requireNoSAS(t, err.Error())
		}
	}
	require.NotEmpty(t, log.String())
	requireNoSAS(t, log.String())
}

func requireNoSAS(t *testing.T, text string) {
	t.Helper()
	require.NotContains(t, text, "sig=")
	require.NotContains(t, text, "sv=20")
}

// TestBadCredentials: what cannot work is said before anything is asked, by the name of the field and of the file.
func TestBadCredentials(t *testing.T) {
	noAzure(t)
	const pasted = "se=2020-01-01&sig=hunter2"
	for name, c := range map[string]struct {
		auth   v1.AzureAuth
		files  map[string]string
		change func(*v1.AzureDestination)
		want   []string
	}{
		"no folder":               {auth: v1.AzureAuth{Method: v1.AzureAuthSharedKey, CredentialsDir: "/nonexistent"}, want: []string{"auth.credentialsDir", "/nonexistent/account-key"}},
		"folder not given":        {auth: v1.AzureAuth{Method: v1.AzureAuthSharedKey}, want: []string{"auth.credentialsDir"}},
		"no file":                 {auth: v1.AzureAuth{Method: v1.AzureAuthSAS}, files: map[string]string{"token": pasted}, want: []string{"auth.credentialsDir", "/sas-token"}},
		"empty file":              {auth: v1.AzureAuth{Method: v1.AzureAuthSharedKey}, files: map[string]string{"account-key": " \n"}, want: []string{"/account-key is empty"}},
		"two lines":               {auth: v1.AzureAuth{Method: v1.AzureAuthSharedKey}, files: map[string]string{"account-key": "hunter2\nhunter2"}, want: []string{"/account-key has more than one line"}},
		"no base64":               {auth: v1.AzureAuth{Method: v1.AzureAuthSharedKey}, files: map[string]string{"account-key": "hunter2!"}, want: []string{"/account-key holds no account key"}},
		"connection string":       {auth: v1.AzureAuth{Method: v1.AzureAuthSharedKey}, files: map[string]string{"account-key": "AccountName=x;AccountKey=hunter2"}, want: []string{"only what follows AccountKey="}},
		"expired SAS":             {auth: v1.AzureAuth{Method: v1.AzureAuthSAS}, files: map[string]string{"sas-token": pasted}, want: []string{"/sas-token expired at 2020-01-01T00:00:00Z"}},
		"no SAS":                  {auth: v1.AzureAuth{Method: v1.AzureAuthSAS}, files: map[string]string{"sas-token": "hunter2"}, want: []string{"/sas-token holds no SAS token"}},
		"SAS with its URL":        {auth: v1.AzureAuth{Method: v1.AzureAuthSAS}, files: map[string]string{"sas-token": "https://x/y?" + pasted}, want: []string{"only what follows the ?"}},
		"SAS in the URL":          {auth: v1.AzureAuth{Method: v1.AzureAuthSAS}, change: func(d *v1.AzureDestination) { d.ServiceURL = "https://x/?" + pasted }, want: []string{"serviceURL", "sas-token under auth.credentialsDir"}},
		"password in the URL":     {auth: v1.AzureAuth{Method: v1.AzureAuthSAS}, change: func(d *v1.AzureDestination) { d.ServiceURL = "https://me:hunter2@x" }, want: []string{"serviceURL"}},
		"no URL":                  {change: func(d *v1.AzureDestination) { d.ServiceURL = "https://hunter2%zz" }, want: []string{"serviceURL"}},
		"other scheme":            {change: func(d *v1.AzureDestination) { d.ServiceURL = "ftp://x" }, want: []string{"serviceURL"}},
		"neither account nor URL": {change: func(d *v1.AzureDestination) { d.Account = "" }, want: []string{"account: it is needed, or serviceURL"}},
		"whose key":               {auth: v1.AzureAuth{Method: v1.AzureAuthSharedKey}, files: map[string]string{"account-key": "AAAA"}, change: func(d *v1.AzureDestination) { d.Account, d.ServiceURL = "", "https://storage.example.com" }, want: []string{"account: it is needed"}},
		"token over http":         {change: func(d *v1.AzureDestination) { d.ServiceURL = "http://x" }, want: []string{"serviceURL: tokens are sent over https only"}},
		"secret without tenant":   {auth: v1.AzureAuth{Method: v1.AzureAuthClientSecret, ClientID: clientID}, files: map[string]string{"client-secret": "hunter2"}, want: []string{"auth.tenantID"}},
		"secret without client":   {auth: v1.AzureAuth{Method: v1.AzureAuthClientSecret, TenantID: tenant}, files: map[string]string{"client-secret": "hunter2"}, want: []string{"auth.clientID"}},
		"no secret":               {auth: v1.AzureAuth{Method: v1.AzureAuthClientSecret, TenantID: tenant, ClientID: clientID}, files: map[string]string{}, want: []string{"/client-secret"}},
		"bad tenant":              {auth: v1.AzureAuth{Method: v1.AzureAuthClientSecret, TenantID: "a/b", ClientID: clientID}, files: map[string]string{"client-secret": "hunter2"}, want: []string{"auth: "}},
		"authority over http":     {auth: v1.AzureAuth{Method: v1.AzureAuthManagedIdentity, AuthorityHost: "http://x"}, want: []string{"auth.authorityHost"}},
		"client of the default":   {auth: v1.AzureAuth{ClientID: clientID}, want: []string{"AZURE_CLIENT_ID"}},
		"unknown method":          {auth: v1.AzureAuth{Method: "password"}, want: []string{"auth.method", `"password"`}},
		"no CA file":              {change: func(d *v1.AzureDestination) { d.CABundleFile = "/nonexistent.crt" }, want: []string{"caBundleFile", "/nonexistent.crt"}},
		"CA file without a CA":    {change: func(d *v1.AzureDestination) { d.CABundleFile = "/dev/null" }, want: []string{"caBundleFile: /dev/null holds no certificate"}},
		"tier":                    {change: func(d *v1.AzureDestination) { d.AccessTier = "Archive" }, want: []string{"accessTier", "Archive"}},
		"metadata name":           {change: func(d *v1.AzureDestination) { d.Metadata = map[string]string{"my-key": "x"} }, want: []string{"metadata", "my-key"}},
		"metadata value":          {change: func(d *v1.AzureDestination) { d.Metadata = map[string]string{"key": "a\nb"} }, want: []string{"metadata", "key"}},
		"metadata beyond ASCII":   {change: func(d *v1.AzureDestination) { d.Metadata = map[string]string{"key": "ü"} }, want: []string{"metadata", "key"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &v1.AzureDestination{Account: "account", Container: "container", Auth: c.auth}
			if c.files != nil {
				spec.Auth.CredentialsDir = secrets(t, c.files)
			}
			if c.change != nil {
				c.change(spec)
			}
			_, err := New(t.Context(), spec, quick())
			require.ErrorIs(t, err, store.ErrConfig)
			for _, want := range append(c.want, "azure container container: ") {
				require.ErrorContains(t, err, want)
			}
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}

func TestAuthorityHost(t *testing.T) {
	noAzure(t)
	for service, want := range map[string]string{
		"https://a.blob.core.windows.net":       "https://login.microsoftonline.com/",
		"https://a.blob.core.usgovcloudapi.net": "https://login.microsoftonline.us/",
		"https://a.blob.core.chinacloudapi.cn":  "https://login.chinacloudapi.cn/",
		"https://storage.example.com":           "https://login.microsoftonline.com/",
	} {
		u, err := url.Parse(service)
		require.NoError(t, err)
		host, known, err := authorityHost("", u)
		require.NoError(t, err)
		require.Equal(t, want, host)
		require.True(t, known)
		host, known, err = authorityHost("https://login.example.com", u)
		require.NoError(t, err)
		require.Equal(t, "https://login.example.com", host)
		require.False(t, known)
	}
	u := &url.URL{Host: "a.blob.core.usgovcloudapi.net"}
	t.Setenv(envAuthorityHost, "https://login.microsoftonline.com")
	host, known, err := authorityHost("", u)
	require.NoError(t, err)
	require.Equal(t, "https://login.microsoftonline.com", host)
	require.True(t, known)
}

func TestAccountName(t *testing.T) {
	for service, want := range map[string]string{
		"https://mine.blob.core.windows.net/":      "mine",
		"https://mine.blob.core.chinacloudapi.cn":  "mine",
		"https://mine.blob.storage.azurestack.org": "mine",
		"http://127.0.0.1:10000/devstoreaccount1":  "devstoreaccount1",
		"http://127.0.0.1:10000/devstoreaccount1/": "devstoreaccount1",
		"https://storage.example.com":              "",
		"https://storage.example.com/a/b":          "",
	} {
		u, err := url.Parse(service)
		require.NoError(t, err)
		got, err := accountName(&v1.AzureDestination{ServiceURL: service}, u)
		require.Equal(t, want, got, service)
		require.Equal(t, want == "", err != nil, service)
		got, err = accountName(&v1.AzureDestination{ServiceURL: service, Account: "given"}, u)
		require.NoError(t, err)
		require.Equal(t, "given", got)
	}
}
