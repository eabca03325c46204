package s3

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// The providers of minio-go for these two sources look at the whole environment and may pick another one, fall back
// to IMDSv1, and send the pod's token to any host; hence these.

// localClient speaks to services on the node: no proxy, no redirects, no connection kept.
var localClient = &http.Client{
	Timeout:       credentialsTime,
	Transport:     &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: 2 * time.Second}).DialContext},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// keys is what both services answer.
type keys struct {
	AccessKeyID     string `json:"AccessKeyId"`
	SecretAccessKey string
	Token           string
	Expiration      time.Time
	// Code and Message are the metadata service's.
	Code, Message string
}

func (k keys) value() credentials.Value {
	return credentials.Value{
		AccessKeyID: k.AccessKeyID, SecretAccessKey: k.SecretAccessKey, SessionToken: k.Token,
		Expiration: k.Expiration, SignerType: credentials.SignatureV4,
	}
}

// containerProvider speaks the container credentials protocol of EKS pod identity and ECS
// (https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html).
type containerProvider struct {
	credentials.Expiry
	uri, tokenFile string
}

func (p *containerProvider) Retrieve() (credentials.Value, error) {
	return p.RetrieveWithCredContext(&credentials.CredContext{})
}

func (p *containerProvider) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	header := http.Header{}
	if p.tokenFile != "" {
		// Read each time: the token is renewed.
		token, err := os.ReadFile(p.tokenFile)
		if err != nil {
			return credentials.Value{}, err
		}
		header.Set("Authorization", strings.TrimSpace(string(token)))
	}
	body, err := call(contextOf(cc), http.MethodGet, p.uri, header)
	if err != nil {
		return credentials.Value{}, err
	}
	var k keys
	if err := json.Unmarshal(body, &k); err != nil {
		return credentials.Value{}, fmt.Errorf("read the answer of %s: %w", p.uri, err)
	}
	p.SetExpiration(k.Expiration, credentials.DefaultExpiryWindow)
	return k.value(), nil
}

// localOrTLS refuses to send the pod's token in the clear to anything but the loopback interface and the addresses
// that ECS (169.254.170.2) and EKS (169.254.170.23, fd00:ec2::23) use.
func localOrTLS(u *url.URL) error {
	host := u.Hostname()
	if u.Scheme == "https" || host == "localhost" {
		return nil
	}
	ip := net.ParseIP(host)
	for _, known := range []string{"169.254.170.2", "169.254.170.23", "fd00:ec2::23"} {
		if ip.Equal(net.ParseIP(known)) && ip != nil {
			return nil
		}
	}
	if u.Scheme == "http" && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%s is neither https nor an address on this node", u.Redacted())
}

// metadataProvider speaks to the instance metadata service, version 2
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html).
type metadataProvider struct {
	credentials.Expiry
	endpoint string
}

func (p *metadataProvider) Retrieve() (credentials.Value, error) {
	return p.RetrieveWithCredContext(&credentials.CredContext{})
}

func (p *metadataProvider) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	ctx := contextOf(cc)
	token, err := call(ctx, http.MethodPut, p.endpoint+credentials.TokenPath, http.Header{
		http.CanonicalHeaderKey(credentials.TokenRequestTTLHeader): {credentials.TokenTTL},
	})
	if err != nil {
		return credentials.Value{}, err
	}
	header := http.Header{http.CanonicalHeaderKey(credentials.TokenRequestHeader): {string(token)}}
	roles, err := call(ctx, http.MethodGet, p.endpoint+credentials.DefaultIAMSecurityCredsPath, header)
	if err != nil {
		return credentials.Value{}, err
	}
	// An instance has one role at most.
	role, _, _ := strings.Cut(strings.TrimSpace(string(roles)), "\n")
	if role == "" {
		return credentials.Value{}, errors.New("the instance has no role")
	}
	body, err := call(ctx, http.MethodGet, p.endpoint+credentials.DefaultIAMSecurityCredsPath+url.PathEscape(role), header)
	if err != nil {
		return credentials.Value{}, err
	}
	var k keys
	if err := json.Unmarshal(body, &k); err != nil {
		return credentials.Value{}, fmt.Errorf("read the credentials of role %s: %w", role, err)
	}
	if k.Code != "Success" {
		return credentials.Value{}, fmt.Errorf("credentials of role %s: %s: %s", role, k.Code, k.Message)
	}
	p.SetExpiration(k.Expiration, credentials.DefaultExpiryWindow)
	return k.value(), nil
}

func contextOf(cc *credentials.CredContext) context.Context {
	if cc == nil || cc.Context == nil {
		return context.Background()
	}
	return cc.Context
}

// statusError is an answer that is not 200.
type statusError struct {
	url  string
	code int
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s answers %d %s", e.url, e.code, http.StatusText(e.code))
}

// call makes one request. No part of the answer's body is in an error: it may be a secret.
func call(ctx context.Context, method, to string, header http.Header) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, to, nil)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := localClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, &statusError{to, resp.StatusCode}
	}
	return io.ReadAll(io.LimitReader(resp.Body, 1<<20))
}
