package s3_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/signer"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/s3"
	"etcdsnapshot.dev/agent/store/storetest"
	"etcdsnapshot.dev/ci/emulator"
)

const sessionToken = "the-session-token"

// cleanEnv unsets whatever of AWS this machine has, and gives a home without credentials. Start servers before it:
// what they are built with lies at home.
func cleanEnv(t *testing.T) {
	t.Helper()
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "") // so that it is restored
			require.NoError(t, os.Unsetenv(name))
		}
	}
	t.Setenv("HOME", t.TempDir())
}

// newService is a small server that hands out credentials.
func newService(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s
}

// sts speaks AssumeRoleWithWebIdentity
// (https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html).
func sts(t *testing.T, srv *emulator.S3, token, role string) *httptest.Server {
	return newService(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/xml")
		if err := r.ParseForm(); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if r.Form.Get("Action") != "AssumeRoleWithWebIdentity" || r.Form.Get("Version") != "2011-06-15" ||
			r.Form.Get("WebIdentityToken") != token || r.Form.Get("RoleArn") != role || r.Form.Get("RoleSessionName") != "etcd-snapshot" {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>Not authorized to perform sts:AssumeRoleWithWebIdentity</Message></Error><RequestId>1</RequestId></ErrorResponse>`)
			return
		}
		fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials>
			<AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</SecretAccessKey><SessionToken>%s</SessionToken><Expiration>%s</Expiration>
			</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, srv.AccessKey, srv.SecretKey, sessionToken, inOneHour())
	})
}

func inOneHour() string { return time.Now().UTC().Add(time.Hour).Format(time.RFC3339) }

// containerCredentials speaks what EKS Pod Identity Agent does.
func containerCredentials(t *testing.T, srv *emulator.S3, token string) *httptest.Server {
	return newService(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/v1/credentials" || r.Header.Get("Authorization") != token {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{
			"AccessKeyId": srv.AccessKey, "SecretAccessKey": srv.SecretKey, "Token": sessionToken, "Expiration": inOneHour(),
			"AccountId": "123456789012",
		})
	})
}

// metadata speaks IMDSv2, and nothing to those who know version 1 only.
func metadata(t *testing.T, srv *emulator.S3) *httptest.Server {
	const imdsToken, role = "imds-token", "node-role"
	return newService(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" && r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds") == "21600":
			fmt.Fprint(w, imdsToken)
		case r.Header.Get("X-Aws-Ec2-Metadata-Token") != imdsToken:
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/latest/meta-data/iam/security-credentials/":
			fmt.Fprint(w, role)
		case r.URL.Path == "/latest/meta-data/iam/security-credentials/"+role:
			_ = json.NewEncoder(w).Encode(map[string]string{
				"Code": "Success", "Type": "AWS-HMAC", "LastUpdated": "2026-01-01T00:00:00Z",
				"AccessKeyId": srv.AccessKey, "SecretAccessKey": srv.SecretKey, "Token": sessionToken, "Expiration": inOneHour(),
			})
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})
}

func sharedFile(accessKey, secretKey, token string) string {
	return fmt.Sprintf("[default]\naws_access_key_id = wrong\naws_secret_access_key = wrong\n\n[backup]\naws_access_key_id = %s\naws_secret_access_key = %s\naws_session_token = %s\n", accessKey, secretKey, token)
}

func writeFile(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

// TestIdentity stores an object with each method, and looks at what was really sent.
func TestIdentity(t *testing.T) {
	srv := emulator.StartS3(t)
	const role = "arn:aws:iam::123456789012:role/backup"
	tests := map[string]struct {
		auth v1.S3Auth
		set  func(t *testing.T, a *v1.S3Auth)
		// noToken and anonymous say what the requests lack.
		noToken, anonymous bool
	}{
		"static": {noToken: true, set: func(t *testing.T, a *v1.S3Auth) {
			*a = staticAuth(t, srv.AccessKey, srv.SecretKey)
		}},
		"static with session token": {set: func(t *testing.T, a *v1.S3Auth) {
			*a = staticAuth(t, srv.AccessKey, srv.SecretKey)
			require.NoError(t, os.WriteFile(filepath.Join(a.CredentialsDir, "session-token"), []byte(sessionToken+"\n"), 0o600))
		}},
		"shared file": {auth: v1.S3Auth{Method: v1.S3AuthSharedFile, Profile: "backup"}, set: func(t *testing.T, a *v1.S3Auth) {
			a.CredentialsDir = secretDir(t, map[string]string{"credentials": sharedFile(srv.AccessKey, srv.SecretKey, sessionToken)})
		}},
		"web identity": {auth: v1.S3Auth{Method: v1.S3AuthWebIdentity}, set: func(t *testing.T, a *v1.S3Auth) {
			t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", writeFile(t, "the-jwt"))
			t.Setenv("AWS_ROLE_ARN", role)
			a.STSEndpoint = sts(t, srv, "the-jwt", role).URL
		}},
		"web identity, role in the policy": {auth: v1.S3Auth{Method: v1.S3AuthWebIdentity, RoleARN: role}, set: func(t *testing.T, a *v1.S3Auth) {
			t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", writeFile(t, "the-jwt"))
			t.Setenv("AWS_ENDPOINT_URL_STS", sts(t, srv, "the-jwt", role).URL)
		}},
		"pod identity": {auth: v1.S3Auth{Method: v1.S3AuthPodIdentity}, set: func(t *testing.T, a *v1.S3Auth) {
			t.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", writeFile(t, "the-pod-token"))
			t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", containerCredentials(t, srv, "the-pod-token").URL+"/v1/credentials")
			// What another webhook has injected does not count.
			t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nothing")
		}},
		"instance metadata": {auth: v1.S3Auth{Method: v1.S3AuthInstanceMetadata}, set: func(t *testing.T, a *v1.S3Auth) {
			t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata(t, srv).URL)
			t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nothing")
		}},
		"anonymous": {auth: v1.S3Auth{Method: v1.S3AuthAnonymous}, anonymous: true, set: func(*testing.T, *v1.S3Auth) {}},
		"default, environment": {set: func(t *testing.T, _ *v1.S3Auth) {
			t.Setenv("AWS_ACCESS_KEY_ID", srv.AccessKey)
			t.Setenv("AWS_SECRET_ACCESS_KEY", srv.SecretKey)
			t.Setenv("AWS_SESSION_TOKEN", sessionToken)
			t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nothing")
		}},
		"default, shared file named": {auth: v1.S3Auth{Method: v1.S3AuthDefault}, set: func(t *testing.T, _ *v1.S3Auth) {
			t.Setenv("AWS_SHARED_CREDENTIALS_FILE", writeFile(t, sharedFile(srv.AccessKey, srv.SecretKey, sessionToken)))
			t.Setenv("AWS_PROFILE", "backup")
		}},
		"default, shared file at home": {auth: v1.S3Auth{Profile: "backup"}, set: func(t *testing.T, _ *v1.S3Auth) {
			dir := filepath.Join(os.Getenv("HOME"), ".aws")
			require.NoError(t, os.Mkdir(dir, 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "credentials"), []byte(sharedFile(srv.AccessKey, srv.SecretKey, sessionToken)), 0o600))
		}},
		"default, web identity": {set: func(t *testing.T, a *v1.S3Auth) {
			t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", writeFile(t, "the-jwt"))
			t.Setenv("AWS_ROLE_ARN", role)
			a.STSEndpoint = sts(t, srv, "the-jwt", role).URL
		}},
		"default, pod identity": {set: func(t *testing.T, _ *v1.S3Auth) {
			t.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", writeFile(t, "the-pod-token"))
			t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", containerCredentials(t, srv, "the-pod-token").URL+"/v1/credentials")
		}},
		"default, instance metadata": {set: func(t *testing.T, _ *v1.S3Auth) {
			t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata(t, srv).URL)
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cleanEnv(t)
			p := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
			spec := newSpec(t, srv, p.URL, emulator.S3BucketOptions{Policy: `{"Version": "2012-10-17", "Statement": [
				{"Effect": "Allow", "Principal": "*", "Action": ["s3:PutObject", "s3:GetObject"], "Resource": "arn:aws:s3:::BUCKET/*"},
				{"Effect": "Allow", "Principal": "*", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::BUCKET"}]}`})
			tt.set(t, &tt.auth)
			spec.Auth = tt.auth
			ignore := goleak.IgnoreCurrent()
			// The server has no token service of its own, so it gets the request without the token.
			p.Add(emulator.Rule{Forward: func(r *http.Request) {
				if r.Header.Get("X-Amz-Security-Token") != "" {
					r.Header.Del("X-Amz-Security-Token")
					*r = *signer.SignV4(*r, srv.AccessKey, srv.SecretKey, "", srv.Region)
				}
			}})
			b, err := s3.New(t.Context(), spec, s3.Options{Retry: quick, Logger: quiet})
			require.NoError(t, err)
			blob := storetest.Text("content")
			require.NoError(t, b.Put(t.Context(), "key", blob))
			require.NoError(t, b.Check(t.Context(), "key", blob))
			require.NoError(t, storetest.CheckList(t.Context(), b, ""))
			for _, r := range p.Requests(emulator.Rule{}) {
				switch {
				case tt.anonymous:
					require.Empty(t, r.Header.Get("Authorization"))
					require.Empty(t, r.Header.Get("X-Amz-Security-Token"))
					if r.Method == http.MethodPut {
						require.NotEmpty(t, r.Header.Get("Content-Md5"), "nothing else protects the content")
					}
				case tt.noToken:
					require.Contains(t, r.Header.Get("Authorization"), "Credential="+srv.AccessKey+"/")
					require.Empty(t, r.Header.Get("X-Amz-Security-Token"))
				default:
					require.Contains(t, r.Header.Get("Authorization"), "Credential="+srv.AccessKey+"/")
					require.Equal(t, sessionToken, r.Header.Get("X-Amz-Security-Token"))
				}
			}
			require.NoError(t, b.Close())
			require.Eventually(t, func() bool { return goleak.Find(ignore, goleak.IgnoreAnyFunction("net/http.(*conn).serve")) == nil }, 10*time.Second, 10*time.Millisecond)
		})
	}
}

// TestIdentityMissing: what is missing is named before there is anything to store, and no secret is.
func TestIdentityMissing(t *testing.T) {
	refuse := func(status int) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, "do not repeat this secret")
		}
	}
	tests := map[string]struct {
		auth v1.S3Auth
		set  func(t *testing.T, a *v1.S3Auth)
		want error
		text []string
	}{
		"static without folder": {auth: v1.S3Auth{Method: "static"}, want: store.ErrConfig, text: []string{"auth: method static: credentialsDir"}},
		"static, files missing": {auth: v1.S3Auth{Method: "static", CredentialsDir: "/nowhere"}, want: store.ErrConfig,
			text: []string{"credentialsDir: open /nowhere/access-key-id: no such file", "/nowhere/secret-access-key"}},
		"static, empty file": {auth: v1.S3Auth{Method: "static"}, want: store.ErrConfig, text: []string{"secret-access-key is empty"}, set: func(t *testing.T, a *v1.S3Auth) {
			a.CredentialsDir = secretDir(t, map[string]string{"access-key-id": "AKIA", "secret-access-key": "\n"})
		}},
		"static, two lines": {auth: v1.S3Auth{Method: "static"}, want: store.ErrConfig, text: []string{"secret-access-key has more than one line"}, set: func(t *testing.T, a *v1.S3Auth) {
			a.CredentialsDir = secretDir(t, map[string]string{"access-key-id": "AKIA", "secret-access-key": "do not\nrepeat this secret"})
		}},
		"shared file missing": {auth: v1.S3Auth{Method: "sharedFile", CredentialsDir: "/nowhere"}, want: store.ErrConfig, text: []string{"open /nowhere/credentials: no such file"}},
		"shared file without the profile": {auth: v1.S3Auth{Method: "sharedFile", Profile: "prod"}, want: store.ErrConfig, text: []string{"prod"}, set: func(t *testing.T, a *v1.S3Auth) {
			a.CredentialsDir = secretDir(t, map[string]string{"credentials": sharedFile("AKIA", "do not repeat this secret", "x")})
		}},
		"shared file without keys": {auth: v1.S3Auth{Method: "sharedFile"}, want: store.ErrConfig, text: []string{"holds no access key"}, set: func(t *testing.T, a *v1.S3Auth) {
			a.CredentialsDir = secretDir(t, map[string]string{"credentials": "[default]\n"})
		}},
		"web identity, no token": {auth: v1.S3Auth{Method: "webIdentity"}, want: store.ErrConfig, text: []string{"AWS_WEB_IDENTITY_TOKEN_FILE is not set", "annotate the service account"}},
		"web identity, token file missing": {auth: v1.S3Auth{Method: "webIdentity", RoleARN: "arn:r"}, want: store.ErrConfig, text: []string{"AWS_WEB_IDENTITY_TOKEN_FILE: open /nowhere"}, set: func(t *testing.T, _ *v1.S3Auth) {
			t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nowhere")
		}},
		"web identity, no role": {auth: v1.S3Auth{Method: "webIdentity"}, want: store.ErrConfig, text: []string{"neither AWS_ROLE_ARN nor roleARN is set"}, set: func(t *testing.T, _ *v1.S3Auth) {
			t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", writeFile(t, "do not repeat this secret"))
		}},
		"web identity, role refused": {auth: v1.S3Auth{Method: "webIdentity", RoleARN: "arn:other"}, want: store.ErrAccessDenied, text: []string{"AccessDenied: Not authorized to perform sts:AssumeRoleWithWebIdentity", "trust policy"}, set: func(t *testing.T, a *v1.S3Auth) {
			t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", writeFile(t, "do not repeat this secret"))
			a.STSEndpoint = sts(t, &emulator.S3{}, "x", "arn:r").URL
		}},
		"pod identity, not set up": {auth: v1.S3Auth{Method: "podIdentity"}, want: store.ErrConfig, text: []string{"AWS_CONTAINER_CREDENTIALS_FULL_URI is not set", "pod identity association"}},
		"pod identity, token file missing": {auth: v1.S3Auth{Method: "podIdentity"}, want: store.ErrConfig, text: []string{"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE: open /nowhere"}, set: func(t *testing.T, _ *v1.S3Auth) {
			t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/")
			t.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/nowhere")
		}},
		"pod identity, token would leave the node": {auth: v1.S3Auth{Method: "podIdentity"}, want: store.ErrConfig, text: []string{"http://192.0.2.1/ is neither https nor an address on this node"}, set: func(t *testing.T, _ *v1.S3Auth) {
			t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://192.0.2.1/")
		}},
		"pod identity, refused": {auth: v1.S3Auth{Method: "podIdentity"}, want: store.ErrAccessDenied, text: []string{"answers 403 Forbidden"}, set: func(t *testing.T, _ *v1.S3Auth) {
			t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", newService(t, refuse(403)).URL)
			t.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", writeFile(t, "do not repeat this secret"))
		}},
		"instance metadata, no role": {auth: v1.S3Auth{Method: "instanceMetadata"}, want: store.ErrConfig, text: []string{"instance metadata service at http://127.0.0.1", "404"}, set: func(t *testing.T, _ *v1.S3Auth) {
			t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", newService(t, refuse(404)).URL)
		}},
		"instance metadata, nobody there": {auth: v1.S3Auth{Method: "instanceMetadata"}, text: []string{"connection refused"}, set: func(t *testing.T, _ *v1.S3Auth) {
			t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
		}},
		"default, half a key": {want: store.ErrConfig, text: []string{"AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not"}, set: func(t *testing.T, _ *v1.S3Auth) {
			t.Setenv("AWS_ACCESS_KEY_ID", "AKIA")
		}},
		"default, nothing": {want: store.ErrConfig, text: []string{"there are no credentials", "AWS_ACCESS_KEY_ID", "~/.aws/credentials", "AWS_WEB_IDENTITY_TOKEN_FILE"}, set: func(t *testing.T, _ *v1.S3Auth) {
			t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
		}},
		"default does not fall through": {want: store.ErrConfig, text: []string{"AWS_WEB_IDENTITY_TOKEN_FILE: open /nowhere"}, set: func(t *testing.T, _ *v1.S3Auth) {
			t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nowhere")
			t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata(t, &emulator.S3{AccessKey: "x", SecretKey: "y"}).URL)
		}},
		"no such method": {auth: v1.S3Auth{Method: "magic"}, want: store.ErrConfig, text: []string{"method magic: no such method"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cleanEnv(t)
			if tt.set != nil {
				tt.set(t, &tt.auth)
			}
			spec := &v1.S3Destination{Bucket: "backups", Endpoint: "http://127.0.0.1:1", Auth: tt.auth}
			_, err := s3.New(t.Context(), spec, s3.Options{Retry: quick, Logger: quiet})
			require.Error(t, err)
			if tt.want != nil {
				require.ErrorIs(t, err, tt.want)
			}
			for _, text := range tt.text {
				require.ErrorContains(t, err, text)
			}
			require.ErrorContains(t, err, "s3 bucket backups: ")
			require.NotContains(t, err.Error(), "do not")
		})
	}
}

// TestIdentityReadAgain: a new run sees new files.
func TestIdentityReadAgain(t *testing.T) {
	srv := emulator.StartS3(t)
	spec := newSpec(t, srv, srv.Endpoint, emulator.S3BucketOptions{})
	spec.Auth = staticAuth(t, srv.AccessKey, "old")
	require.ErrorIs(t, storetest.CheckList(t.Context(), open(t, spec, s3.Options{}), ""), store.ErrAccessDenied)
	require.NoError(t, os.WriteFile(filepath.Join(spec.Auth.CredentialsDir, "secret-access-key"), []byte(srv.SecretKey), 0o600))
	require.NoError(t, storetest.CheckList(t.Context(), open(t, spec, s3.Options{}), ""))
}

// TestIdentityExpires: credentials that run out during a run are fetched again, with the token as it is then.
func TestIdentityExpires(t *testing.T) {
	srv := emulator.StartS3(t)
	cleanEnv(t)
	tokenFile := writeFile(t, "first")
	var tokens []string
	agent := newService(t, func(w http.ResponseWriter, r *http.Request) {
		tokens = append(tokens, r.Header.Get("Authorization"))
		_ = json.NewEncoder(w).Encode(map[string]string{"AccessKeyId": srv.AccessKey, "SecretAccessKey": srv.SecretKey, "Expiration": time.Now().UTC().Format(time.RFC3339)})
	})
	t.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", tokenFile)
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.URL)
	spec := newSpec(t, srv, srv.Endpoint, emulator.S3BucketOptions{})
	spec.Auth = v1.S3Auth{Method: v1.S3AuthPodIdentity}
	b := open(t, spec, s3.Options{})
	require.NoError(t, os.WriteFile(tokenFile, []byte("second"), 0o600))
	require.NoError(t, storetest.CheckList(t.Context(), b, ""))
	agent.Close()
	require.Equal(t, "first", tokens[0])
	require.Contains(t, tokens[1:], "second")
}
