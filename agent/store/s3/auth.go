package s3

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
)

// Variables of the environment that the AWS SDKs share
// (https://docs.aws.amazon.com/sdkref/latest/guide/settings-reference.html).
const (
	envAccessKeyID       = "AWS_ACCESS_KEY_ID"
	envSecretAccessKey   = "AWS_SECRET_ACCESS_KEY"
	envSharedFile        = "AWS_SHARED_CREDENTIALS_FILE"
	envProfile           = "AWS_PROFILE"
	envRegion            = "AWS_REGION"
	envTokenFile         = "AWS_WEB_IDENTITY_TOKEN_FILE"
	envRoleARN           = "AWS_ROLE_ARN"
	envSessionName       = "AWS_ROLE_SESSION_NAME"
	envSTSEndpoint       = "AWS_ENDPOINT_URL_STS"
	envContainerURI      = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
	envContainerRelative = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"
	envContainerToken    = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
	envMetadataEndpoint  = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
	envMetadataDisabled  = "AWS_EC2_METADATA_DISABLED"
)

// credentialsTime bounds one request for credentials: these services are near.
const credentialsTime = 10 * time.Second

// source is where credentials come from: a method of auth, and what it read, for messages.
type source struct {
	provider credentials.Provider
	method   string
	from     string
}

// newCredentials gives the credentials of spec.Auth, fetched once, so that what is missing is found before there is
// anything to store. They are read or fetched again when they expire. client speaks to the token service, as to S3
// itself.
func newCredentials(ctx context.Context, spec *v1.S3Destination, client *http.Client, policy store.RetryPolicy) (*credentials.Credentials, source, error) {
	src, err := newSource(spec, client)
	if err != nil {
		return nil, src, fmt.Errorf("%w: auth: method %s: %w", store.ErrConfig, src.method, err)
	}
	creds := credentials.New(src.provider)
	// Credentials that take this long are not coming: the run has other destinations to fail for.
	if policy.GiveUp == 0 || policy.GiveUp > 30*time.Second {
		policy.GiveUp = 30 * time.Second
	}
	err = store.Retry(ctx, policy, func(ctx context.Context) error {
		v, err := creds.GetWithContext(&credentials.CredContext{Client: client, Context: ctx})
		switch {
		case err != nil:
			return src.explain(err)
		case src.method != v1.S3AuthAnonymous && (v.AccessKeyID == "" || v.SecretAccessKey == ""):
			return fmt.Errorf("%w: it holds no access key", store.ErrConfig)
		}
		return nil
	})
	if err != nil {
		return nil, src, fmt.Errorf("auth: method %s: credentials from %s: %w", src.method, src.from, err)
	}
	return creds, src, nil
}

func newSource(spec *v1.S3Destination, client *http.Client) (source, error) {
	a := spec.Auth
	switch a.Method {
	case v1.S3AuthDefault, "":
		return defaultSource(spec, client)
	case v1.S3AuthAnonymous:
		return source{&credentials.Static{Value: credentials.Value{SignerType: credentials.SignatureAnonymous}}, a.Method, "nowhere"}, nil
	case v1.S3AuthStatic:
		v, err := staticValue(a.CredentialsDir)
		return source{&credentials.Static{Value: v}, a.Method, a.CredentialsDir}, err
	case v1.S3AuthSharedFile:
		if a.CredentialsDir == "" {
			return source{method: a.Method}, errors.New("credentialsDir is needed")
		}
		file := filepath.Join(a.CredentialsDir, v1.S3FileCredentials)
		return source{sharedFile(file, a.Profile), a.Method, file}, readable(file)
	case v1.S3AuthWebIdentity:
		return webIdentitySource(spec, client)
	case v1.S3AuthPodIdentity:
		return containerSource(a.Method)
	case v1.S3AuthInstanceMetadata:
		return metadataSource(), nil
	}
	return source{method: a.Method}, errors.New("no such method")
}

// defaultSource takes the first of the sources that is configured, and never falls through one that is but does not
// work: which identity a run has must not depend on the weather.
func defaultSource(spec *v1.S3Destination, client *http.Client) (source, error) {
	home, _ := os.UserHomeDir() // without one there is no file in it
	shared := filepath.Join(home, ".aws", "credentials")
	switch {
	case os.Getenv(envAccessKeyID) != "":
		if os.Getenv(envSecretAccessKey) == "" {
			return source{method: v1.S3AuthDefault}, fmt.Errorf("%s is set and %s is not", envAccessKeyID, envSecretAccessKey)
		}
		return source{&credentials.EnvAWS{}, v1.S3AuthDefault, "the environment"}, nil
	case os.Getenv(envSharedFile) != "":
		file := os.Getenv(envSharedFile)
		return source{sharedFile(file, spec.Auth.Profile), v1.S3AuthDefault, file}, readable(file)
	case home != "" && readable(shared) == nil:
		return source{sharedFile(shared, spec.Auth.Profile), v1.S3AuthDefault, shared}, nil
	case os.Getenv(envTokenFile) != "":
		src, err := webIdentitySource(spec, client)
		src.method = v1.S3AuthDefault
		return src, err
	case os.Getenv(envContainerURI) != "" || os.Getenv(envContainerRelative) != "":
		return containerSource(v1.S3AuthDefault)
	case strings.EqualFold(os.Getenv(envMetadataDisabled), "true"):
		return source{method: v1.S3AuthDefault}, fmt.Errorf("there are no credentials: %s", notFound)
	}
	src := metadataSource()
	src.method = v1.S3AuthDefault
	src.from += fmt.Sprintf(" (%s)", notFound)
	return src, nil
}

const notFound = "none of " + envAccessKeyID + ", " + envSharedFile + ", ~/.aws/credentials, " + envTokenFile + " and " + envContainerURI + " is there"

// staticValue reads the keys from the files of a mounted Secret.
func staticValue(dir string) (v credentials.Value, err error) {
	if dir == "" {
		return v, errors.New("credentialsDir is needed")
	}
	read := func(name string, optional bool) string {
		data, readErr := os.ReadFile(filepath.Join(dir, name))
		value := strings.TrimSpace(string(data))
		switch {
		case optional && errors.Is(readErr, fs.ErrNotExist):
		case readErr != nil:
			err = errors.Join(err, fmt.Errorf("credentialsDir: %w", readErr))
		case value == "" && !optional:
			err = errors.Join(err, fmt.Errorf("credentialsDir: %s is empty", filepath.Join(dir, name)))
		case strings.ContainsAny(value, "\r\n"):
			err = errors.Join(err, fmt.Errorf("credentialsDir: %s has more than one line", filepath.Join(dir, name)))
		}
		return value
	}
	v.SignerType = credentials.SignatureV4
	v.AccessKeyID = read(v1.S3FileAccessKeyID, false)
	v.SecretAccessKey = read(v1.S3FileSecretAccessKey, false)
	v.SessionToken = read(v1.S3FileSessionToken, true)
	return v, err
}

func sharedFile(file, profile string) credentials.Provider {
	if profile == "" {
		profile = os.Getenv(envProfile)
	}
	return &credentials.FileAWSCredentials{Filename: file, Profile: profile}
}

// webIdentitySource exchanges the service account's token for credentials (AssumeRoleWithWebIdentity), as IRSA on EKS
// does.
func webIdentitySource(spec *v1.S3Destination, client *http.Client) (source, error) {
	src := source{method: v1.S3AuthWebIdentity}
	token := os.Getenv(envTokenFile)
	if token == "" {
		return src, fmt.Errorf("%s is not set: annotate the service account with its role, so that the token is mounted", envTokenFile)
	}
	if err := readable(token); err != nil {
		return src, fmt.Errorf("%s: %w", envTokenFile, err)
	}
	role := os.Getenv(envRoleARN)
	if role == "" {
		role = spec.Auth.RoleARN
	}
	if role == "" && spec.Auth.STSEndpoint == "" {
		return src, fmt.Errorf("neither %s nor roleARN is set", envRoleARN)
	}
	session := os.Getenv(envSessionName)
	if session == "" {
		session = "etcd-snapshot"
	}
	iam := &credentials.IAM{Client: client, Endpoint: stsEndpoint(spec)}
	iam.EKSIdentity.TokenFile, iam.EKSIdentity.RoleARN, iam.EKSIdentity.RoleSessionName = token, role, session
	src.provider, src.from = iam, iam.Endpoint
	return src, nil
}

// stsEndpoint is the token service of the region, whose outage would be S3's as well, and not the global one.
func stsEndpoint(spec *v1.S3Destination) string {
	if spec.Auth.STSEndpoint != "" {
		return spec.Auth.STSEndpoint
	}
	if e := os.Getenv(envSTSEndpoint); e != "" {
		return e
	}
	region := spec.Region
	if r := os.Getenv(envRegion); r != "" {
		region = r
	}
	switch {
	case region == "":
		return "https://sts.amazonaws.com"
	case strings.HasPrefix(region, "cn-"):
		return "https://sts." + region + ".amazonaws.com.cn"
	}
	return "https://sts." + region + ".amazonaws.com"
}

func containerSource(method string) (source, error) {
	src := source{method: method}
	uri := os.Getenv(envContainerURI)
	if rel := os.Getenv(envContainerRelative); uri == "" && rel != "" {
		uri = "http://169.254.170.2" + rel
	}
	if uri == "" {
		return src, fmt.Errorf("%s is not set: is there a pod identity association for the service account?", envContainerURI)
	}
	u, err := url.Parse(uri)
	if err != nil {
		return src, fmt.Errorf("%s: %w", envContainerURI, err)
	}
	if err := localOrTLS(u); err != nil {
		return src, fmt.Errorf("%s: %w", envContainerURI, err)
	}
	token := os.Getenv(envContainerToken)
	if token != "" {
		if err := readable(token); err != nil {
			return src, fmt.Errorf("%s: %w", envContainerToken, err)
		}
	}
	src.provider, src.from = &containerProvider{uri: uri, tokenFile: token}, uri
	return src, nil
}

func metadataSource() source {
	endpoint := strings.TrimSuffix(os.Getenv(envMetadataEndpoint), "/")
	if endpoint == "" {
		endpoint = credentials.DefaultIAMRoleEndpoint
	}
	return source{&metadataProvider{endpoint: endpoint}, v1.S3AuthInstanceMetadata, "the instance metadata service at " + endpoint}
}

func readable(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	return f.Close()
}

// explain says whether another try may help, and what to do.
func (s source) explain(err error) error {
	if _, ok := s.provider.(*credentials.FileAWSCredentials); ok {
		return fmt.Errorf("%w: %w", store.ErrConfig, err)
	}
	var sts credentials.ErrorResponse
	var status *statusError
	var path *fs.PathError
	switch {
	case errors.As(err, &sts):
		err = fmt.Errorf("%s: %s", sts.STSError.Code, sts.STSError.Message)
		switch sts.STSError.Code {
		case "AccessDenied", "ExpiredTokenException", "InvalidIdentityToken", "InvalidParameterValue", "ValidationError", "MalformedPolicyDocument":
			return fmt.Errorf("%w: %w (check the role's trust policy: audience, service account and namespace)", store.ErrAccessDenied, err)
		}
		return err
	case errors.As(err, &status) && (status.code == http.StatusUnauthorized || status.code == http.StatusForbidden):
		return fmt.Errorf("%w: %w", store.ErrAccessDenied, err)
	case errors.As(err, &status) && status.code < 500 && status.code != http.StatusTooManyRequests:
		return fmt.Errorf("%w: %w", store.ErrConfig, err)
	case errors.As(err, &path):
		return fmt.Errorf("%w: %w", store.ErrConfig, err)
	}
	return err
}
