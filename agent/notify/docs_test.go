package notify

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// documented gives the only block of a language in docs/notifications.md.
func documented(t *testing.T, language string) string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/notifications.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(doc), -1)
	require.Len(t, blocks, 1)
	return blocks[0][1]
}

// The notice that the documents show is one, in every field.
func TestDocumentedNotice(t *testing.T) {
	text := documented(t, "json")
	schema, err := jsonschema.NewCompiler().Compile("../../schemas/notice.schema.json")
	require.NoError(t, err)
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	require.NoError(t, err)
	require.NoError(t, schema.Validate(doc))
	var n v1.Notice
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(&n))
	again, err := json.Marshal(n)
	require.NoError(t, err)
	require.JSONEq(t, text, string(again))
	require.Equal(t, Summary(&n), n.Summary)
}

// The receiver that the documents show takes what we sign, and nothing else.
func TestDocumentedReceiver(t *testing.T) {
	dir := t.TempDir()
	source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "receiver")
	require.NoError(t, os.WriteFile(source, []byte(documented(t, "go")), 0o600))
	build := exec.Command("go", "build", "-o", program, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	var stdout, stderr bytes.Buffer
	receiver := exec.Command(program, address)
	receiver.Env = append(os.Environ(), "SIGNING_KEY="+signingKey)
	receiver.Stdout, receiver.Stderr = &stdout, &stderr
	require.NoError(t, receiver.Start())
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			_ = receiver.Process.Kill()
			_ = receiver.Wait() // it was killed
		}
	}
	t.Cleanup(stop)
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	}, time.Minute, 10*time.Millisecond, "%s", &stderr)

	spec := webhook(t, "http://"+address+"/hook", v1.WebhookJSON)
	require.ErrorContains(t, sent(t, notice(v1.EventFailed), spec).Err, "401 Unauthorized", "it is not signed")
	spec.Webhook.Signed, spec.Webhook.CredentialsDir = true, secret(t, "http://"+address+"/hook", "whsec_"+strings.Repeat("AAAA", 10))
	require.ErrorContains(t, sent(t, notice(v1.EventFailed), spec).Err, "401 Unauthorized", "it is signed by another key")
	spec.Webhook.CredentialsDir = secret(t, "http://"+address+"/hook", signingKey)
	require.NoError(t, sent(t, notice(v1.EventFailed), spec).Err)

	// An old one, sent again.
	key, err := parseKey(signingKey)
	require.NoError(t, err)
	for age, want := range map[time.Duration]int{0: http.StatusOK, 10 * time.Minute: http.StatusUnauthorized, -10 * time.Minute: http.StatusUnauthorized} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/", strings.NewReader("{}"))
		require.NoError(t, err)
		sign(req.Header, key, "msg_1", time.Now().Add(-age), []byte("{}"))
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		res, err := client.Do(req)
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		require.Equal(t, want, res.StatusCode, "%s", age)
	}
	stop()
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	require.Len(t, lines, 2)
	require.Contains(t, lines[0], `"event":"failed"`)
}
