package secrets

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// public are the keys of the agent's Secrets that anybody may know.
var public = []string{v1.S3FileAccessKeyID, v1.MetricsFileUsername, "ca.crt"}

// inline are the fields of kubeconfigs, EncryptionConfigurations and the like that hold a secret themselves.
var inline = []string{"client-key-data", "token", "password", "secret", "private_key", "client_secret"}

var (
	keyInPEM   = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----`)
	identity   = regexp.MustCompile(`AGE-SECRET-KEY-[0-9A-Z-]+`)
	assignment = regexp.MustCompile(`(?m)^\s*(aws_secret_access_key|aws_session_token)\s*=\s*(\S+)`)
)

// mostText is the size up to which a file is looked into, in bytes: what is larger is a snapshot.
const mostText = 1 << 20

// KeepOf notes every secret that is behind a command line: in the files that it names, in those that these name, and in
// the folders that are Secrets' mounts. So whatever a test gives the agent is searched for, without a word in the test.
func (s *Search) KeepOf(args []string) {
	for _, arg := range args {
		if _, value, ok := strings.Cut(arg, "="); ok {
			arg = value
		}
		s.keepFile(arg, 2)
	}
}

// KeepIn is KeepOf for what is in a document, such as a policy that the agent reads from an API server.
func (s *Search) KeepIn(name string, doc any) { s.walk(name, doc, 2) }

// keepFile looks into a file, and into those that it names, so many steps deep.
func (s *Search) keepFile(path string, depth int) {
	if !filepath.IsAbs(path) {
		return
	}
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > mostText {
		return
	}
	data, err := os.ReadFile(path)
	if err != nil || !utf8.Valid(data) {
		return
	}
	s.KeepText(filepath.Base(path), string(data))
	var doc any
	if yaml.Unmarshal(data, &doc) == nil && depth > 0 {
		s.walk(filepath.Base(path), doc, depth)
	}
}

// KeepText notes what is secret by its look: private keys and age identities.
func (s *Search) KeepText(name, text string) {
	for _, secret := range identity.FindAllString(text, -1) {
		s.Keep(name, secret)
	}
	for _, key := range keyInPEM.FindAllString(text, -1) {
		s.keepKey(name, key)
	}
	for _, match := range assignment.FindAllStringSubmatch(text, -1) {
		s.Keep(name, match[2])
	}
}

// keepKey notes the lines of a private key, but those that hold the public one, which certificates show.
func (s *Search) keepKey(name, text string) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		s.Keep(name, text)
		return
	}
	public := publicPart(block.Bytes)
	from := bytes.Index(block.Bytes, public)
	to := from + len(public)
	begin := 0
	for line := range strings.Lines(text) {
		data, err := base64.StdEncoding.DecodeString(strings.TrimSpace(line))
		if err != nil { // the lines around, or those of another length
			s.Keep(name, line)
			continue
		}
		end := begin + len(data)
		if len(public) == 0 || end <= from || to <= begin {
			s.Keep(name, line)
		}
		begin = end
	}
}

// publicPart gives the bytes of a key in DER that are its public half; nil of one in another form.
func publicPart(der []byte) []byte {
	var key any
	if rsaKey, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		key = rsaKey
	} else if ecKey, err := x509.ParseECPrivateKey(der); err == nil {
		key = ecKey
	} else if key, err = x509.ParsePKCS8PrivateKey(der); err != nil {
		return nil
	}
	switch key := key.(type) {
	case *rsa.PrivateKey:
		return key.N.Bytes()
	case *ecdsa.PrivateKey:
		if point, err := key.PublicKey.Bytes(); err == nil {
			return point
		}
	}
	return nil
}

func (s *Search) walk(at string, value any, depth int) {
	switch value := value.(type) {
	case map[string]any:
		for key, v := range value {
			text, isText := v.(string)
			switch {
			case isText && key == "credentialsDir":
				s.KeepMount(at+"."+key, text)
			case isText && slices.Contains(inline, key):
				s.Keep(at+"."+key, text)
			default:
				s.walk(at+"."+key, v, depth)
			}
		}
	case []any:
		for _, v := range value {
			s.walk(at, v, depth)
		}
	case string:
		s.KeepText(at, value)
		s.keepFile(value, depth-1)
	}
}

// KeepMount notes the files of a Secret that is mounted as a folder.
func (s *Search) KeepMount(name, dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // the agent will say so
	}
	for _, e := range entries {
		if data, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil {
			s.KeepValue(name+"/"+e.Name(), e.Name(), string(data))
		}
	}
}

// KeepValue notes one value of a Secret, by its key: of a URL all but the host is secret, of a file what looks so, and some
// keys are public.
func (s *Search) KeepValue(name, key, value string) {
	switch {
	case slices.Contains(public, key):
	case key == v1.NotificationFileURL:
		s.keepURL(name, value)
	case key == v1.S3FileCredentials || strings.Contains(value, "-----BEGIN ") || strings.HasPrefix(key, "identity"):
		s.KeepText(name, value)
	default:
		s.Keep(name, value)
	}
}

func (s *Search) keepURL(name, text string) {
	u, err := url.Parse(strings.TrimSpace(text))
	if err != nil {
		return
	}
	if password, ok := u.User.Password(); ok {
		s.Keep(name, password)
	}
	for part := range strings.SplitSeq(u.Path, "/") {
		s.Keep(name, part)
	}
	for _, values := range u.Query() {
		for _, v := range values {
			s.Keep(name, v)
		}
	}
}
