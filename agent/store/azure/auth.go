package azure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// Variables that the workload identity webhook sets, and azidentity reads.
const (
	envTokenFile     = "AZURE_FEDERATED_TOKEN_FILE"
	envClientID      = "AZURE_CLIENT_ID"
	envTenantID      = "AZURE_TENANT_ID"
	envAuthorityHost = "AZURE_AUTHORITY_HOST"
)

// tokenScope is the audience of Azure Storage in every cloud.
const tokenScope = "https://storage.azure.com/.default"

// credential is who we are: one of a source of tokens, a shared key and a SAS.
type credential struct {
	token azcore.TokenCredential
	key   *container.SharedKeyCredential
	sas   string
}

// newCredential reads what spec.Auth names.
func newCredential(spec *v1.AzureDestination, service *url.URL, transport http.RoundTripper) (c credential, err error) {
	a := spec.Auth
	switch a.Method {
	case v1.AzureAuthSharedKey:
		c.key, err = sharedKey(spec, service)
		return c, err
	case v1.AzureAuthSAS:
		c.sas, err = sasToken(a.CredentialsDir, time.Now())
		return c, err
	}
	// The SDK would refuse this too, but with each request.
	if service.Scheme != "https" {
		return c, bad("serviceURL", errors.New("tokens are sent over https only"))
	}
	o := azcore.ClientOptions{
		Transport: newHTTPClient(transport, ""),
		Retry:     policy.RetryOptions{MaxRetries: -1}, // tries are ours
	}
	var known bool
	if o.Cloud.ActiveDirectoryAuthorityHost, known, err = authorityHost(a.AuthorityHost, service); err != nil {
		return c, err
	}
	switch a.Method {
	case v1.AzureAuthDefault, "":
		if a.ClientID != "" || a.TenantID != "" {
			return c, bad("auth", fmt.Errorf("clientID and tenantID go with the methods that use them; the method default reads %s and %s", envClientID, envTenantID))
		}
		c.token, err = azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: o, DisableInstanceDiscovery: !known})
	case v1.AzureAuthWorkloadIdentity:
		if err := checkWorkloadIdentity(a); err != nil {
			return c, err
		}
		c.token, err = azidentity.NewWorkloadIdentityCredential(&azidentity.WorkloadIdentityCredentialOptions{
			ClientOptions: o, ClientID: a.ClientID, TenantID: a.TenantID, DisableInstanceDiscovery: !known,
		})
	case v1.AzureAuthManagedIdentity:
		mo := &azidentity.ManagedIdentityCredentialOptions{ClientOptions: o}
		if a.ClientID != "" {
			mo.ID = azidentity.ClientID(a.ClientID)
		}
		c.token, err = azidentity.NewManagedIdentityCredential(mo)
	case v1.AzureAuthClientSecret:
		var secret string
		switch {
		case a.TenantID == "":
			return c, bad("auth.tenantID", errors.New("it is needed"))
		case a.ClientID == "":
			return c, bad("auth.clientID", errors.New("it is needed"))
		}
		if secret, err = readSecret(a.CredentialsDir, v1.AzureFileClientSecret); err != nil {
			return c, err
		}
		c.token, err = azidentity.NewClientSecretCredential(a.TenantID, a.ClientID, secret, &azidentity.ClientSecretCredentialOptions{ClientOptions: o, DisableInstanceDiscovery: !known})
	default:
		return c, bad("auth.method", fmt.Errorf("%q is not known", a.Method))
	}
	if err != nil {
		return c, bad("auth", err)
	}
	return c, nil
}

// firstToken fetches a token, so that an identity that does not work is found before there is anything to store. It is
// kept and renewed by the credential.
func (b *Bucket) firstToken(ctx context.Context, cred azcore.TokenCredential) error {
	p := b.policy(opToken)
	// A token that takes this long is not coming: the run has other destinations to fail for.
	if limit := 30 * time.Second; p.GiveUp <= 0 || p.GiveUp > limit {
		p.GiveUp = limit
	}
	return b.do(ctx, opToken, "", p, func(ctx context.Context) error {
		_, err := cred.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{tokenScope}})
		return err
	})
}

// authorityHost is where tokens come from: as configured, or as the environment says, or the one of the cloud that
// the blob service belongs to. Of a host that is not known the SDK must not ask Microsoft's public one.
func authorityHost(configured string, service *url.URL) (host string, known bool, err error) {
	field := "auth.authorityHost"
	host = configured
	if host == "" {
		host, field = os.Getenv(envAuthorityHost), envAuthorityHost
	}
	if host == "" {
		switch name := service.Hostname(); {
		case strings.HasSuffix(name, ".usgovcloudapi.net"):
			host = cloud.AzureGovernment.ActiveDirectoryAuthorityHost
		case strings.HasSuffix(name, ".chinacloudapi.cn"):
			host = cloud.AzureChina.ActiveDirectoryAuthorityHost
		default:
			host = cloud.AzurePublic.ActiveDirectoryAuthorityHost
		}
	}
	u, err := url.Parse(host)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return "", false, bad(field, errors.New("it must be https:// and a host"))
	}
	for _, c := range []cloud.Configuration{cloud.AzurePublic, cloud.AzureGovernment, cloud.AzureChina} {
		known = known || strings.TrimSuffix(c.ActiveDirectoryAuthorityHost, "/") == strings.TrimSuffix(host, "/")
	}
	return host, known, nil
}

// checkWorkloadIdentity says what the webhook has not done.
func checkWorkloadIdentity(a v1.AzureAuth) error {
	const advice = `the pod needs the label azure.workload.identity/use: "true", and its service account the annotation azure.workload.identity/client-id`
	file := os.Getenv(envTokenFile)
	if file == "" {
		return bad(envTokenFile, errors.New("it is not set: "+advice))
	}
	f, err := os.Open(file)
	if err != nil {
		return bad(envTokenFile, err)
	}
	f.Close()
	if a.ClientID == "" && os.Getenv(envClientID) == "" {
		return bad("auth.clientID", fmt.Errorf("neither it nor %s is set: %s", envClientID, advice))
	}
	if a.TenantID == "" && os.Getenv(envTenantID) == "" {
		return bad("auth.tenantID", fmt.Errorf("neither it nor %s is set", envTenantID))
	}
	return nil
}

// readSecret reads one value of a mounted Secret.
func readSecret(dir, name string) (string, error) {
	const field = "auth.credentialsDir"
	if dir == "" {
		return "", bad(field, errors.New("it is needed"))
	}
	file := filepath.Join(dir, name)
	data, err := os.ReadFile(file)
	if err != nil {
		return "", bad(field, err)
	}
	value := strings.TrimSpace(string(data))
	switch {
	case value == "":
		return "", bad(field, fmt.Errorf("%s is empty", file))
	case strings.ContainsAny(value, "\r\n"):
		return "", bad(field, fmt.Errorf("%s has more than one line", file))
	}
	return value, nil
}

func sharedKey(spec *v1.AzureDestination, service *url.URL) (*container.SharedKeyCredential, error) {
	account, err := accountName(spec, service)
	if err != nil {
		return nil, err
	}
	value, err := readSecret(spec.Auth.CredentialsDir, v1.AzureFileAccountKey)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(spec.Auth.CredentialsDir, v1.AzureFileAccountKey)
	if strings.Contains(value, "AccountKey=") {
		return nil, bad("auth.credentialsDir", fmt.Errorf("%s holds a connection string: only what follows AccountKey= is wanted", file))
	}
	key, err := container.NewSharedKeyCredential(account, value)
	if err != nil {
		return nil, bad("auth.credentialsDir", fmt.Errorf("%s holds no account key: it is not base64", file))
	}
	return key, nil
}

// sasToken reads a SAS and checks what can be checked without asking
// (https://learn.microsoft.com/rest/api/storageservices/create-service-sas).
func sasToken(dir string, now time.Time) (string, error) {
	value, err := readSecret(dir, v1.AzureFileSASToken)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, v1.AzureFileSASToken)
	value = strings.TrimPrefix(value, "?")
	if strings.HasPrefix(value, "http://") || strings.HasPrefix(value, "https://") {
		return "", bad("auth.credentialsDir", fmt.Errorf("%s holds a URL: only what follows the ? is wanted", file))
	}
	q, err := url.ParseQuery(value)
	if err != nil || q.Get("sig") == "" {
		return "", bad("auth.credentialsDir", fmt.Errorf("%s holds no SAS token: it has no sig=", file))
	}
	if end, ok := parseSASTime(q.Get("se")); ok && !end.After(now) {
		return "", bad("auth.credentialsDir", fmt.Errorf("the SAS token in %s expired at %s", file, end.Format(time.RFC3339)))
	}
	return value, nil
}

// parseSASTime reads the forms of ISO 8601 that a SAS may have.
func parseSASTime(s string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04Z07:00", time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}
