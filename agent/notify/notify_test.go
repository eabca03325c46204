package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// token is the secret part of every URL in these tests, and signingKey a key.
const (
	token      = "T0PsEcReT/B00/xyzzyplugh"
	signingKey = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
)

// call is one request that arrived.
type call struct {
	method, path, query, body string
	header                    http.Header
}

// receiver is a real HTTP server that keeps what it gets and answers as it is told.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	calls []call
}

func receive(t *testing.T, answer http.HandlerFunc) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(r.keep(answer))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) keep(answer http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		r.mu.Lock()
		r.calls = append(r.calls, call{q.Method, q.URL.Path, q.URL.RawQuery, string(body), q.Header})
		r.mu.Unlock()
		if answer != nil {
			answer(w, q)
		}
	})
}

func (r *receiver) got() []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]call{}, r.calls...)
}

// secret writes the files of a mounted Secret.
func secret(t *testing.T, url, key string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{v1.NotificationFileURL: url, v1.NotificationFileSigningKey: key} {
		if text != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600))
		}
	}
	return dir
}

func webhook(t *testing.T, url, form string) v1.Notification {
	return v1.Notification{Name: "ops", Webhook: &v1.Webhook{Format: form, Events: []string{v1.EventEvery}, NotificationTarget: v1.NotificationTarget{CredentialsDir: secret(t, url, "")}}}
}

func ping(t *testing.T, url, run string) v1.Notification {
	return v1.Notification{Name: "switch", Ping: &v1.Ping{Run: run, NotificationTarget: v1.NotificationTarget{CredentialsDir: secret(t, url, "")}}}
}

func notice(event string) *v1.Notice {
	failures := int32(3)
	n := &v1.Notice{
		SchemaVersion: v1.NoticeSchemaVersion, Event: event, Run: v1.RunSnapshot, Policy: v1.NoticePolicy{Name: "etcd", Namespace: "kube-system"},
		ClusterName: "prod-eu", Node: "n1", AgentVersion: "1.0.0", ExitCode: 1, ConsecutiveFailures: &failures,
		StartTime: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), EndTime: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 15, 0, time.UTC)),
		Message: "no member <answers> & nothing ```works```",
	}
	n.Summary = Summary(n)
	return n
}

// logged sends one notice and gives what came of it and what was logged, which never holds the secret.
func logged(t *testing.T, ctx context.Context, budget time.Duration, n *v1.Notice, specs ...v1.Notification) ([]Result, string) {
	t.Helper()
	var log bytes.Buffer
	notifier := New(specs, Options{Budget: budget, Backoff: time.Millisecond, Version: "1.0.0", Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	results := notifier.End(ctx, n)
	text := log.String()
	for _, r := range results {
		text += fmt.Sprintln(r.Err)
	}
	for part := range strings.SplitSeq(token, "/") {
		if len(part) >= shortestSecret {
			require.NotContains(t, text, part, "a URL is a secret")
		}
	}
	return results, text
}

func sent(t *testing.T, n *v1.Notice, specs ...v1.Notification) Result {
	t.Helper()
	results, _ := logged(t, t.Context(), time.Minute, n, specs...)
	require.Len(t, results, 1)
	return results[0]
}

func TestWebhookGetsTheNotice(t *testing.T) {
	server := receive(t, nil)
	want := notice(v1.EventFailed)
	r := sent(t, want, webhook(t, server.URL+"/"+token+"?sig=abc%2Fdef", v1.WebhookJSON))
	require.NoError(t, r.Err)
	require.Equal(t, 1, r.Tries)
	require.Equal(t, strings.TrimPrefix(server.URL, "http://"), r.Host)
	require.Len(t, server.got(), 1)
	c := server.got()[0]
	require.Equal(t, []string{"POST", "/" + token, "sig=abc%2Fdef"}, []string{c.method, c.path, c.query})
	require.Equal(t, "application/json", c.header.Get("Content-Type"))
	require.Equal(t, "etcd-snapshot-agent/1.0.0", c.header.Get("User-Agent"))
	require.Empty(t, c.header.Get(headerSignature))
	var got v1.Notice
	require.NoError(t, json.Unmarshal([]byte(c.body), &got))
	require.Equal(t, want.Message, got.Message)
	require.True(t, want.StartTime.Equal(&got.StartTime))
	require.Equal(t, "etcd snapshot of prod-eu failed, for the 3rd time in a row", got.Summary)
}

// Who wants to know what.
func TestEvents(t *testing.T) {
	hook := func(events ...string) v1.Notification {
		return v1.Notification{Webhook: &v1.Webhook{Events: events}}
	}
	for _, test := range []struct {
		spec  v1.Notification
		event string
		want  bool
	}{
		{hook(v1.EventFailed), v1.EventFailed, true},
		{hook(v1.EventFailed), v1.EventPartial, false},
		{hook(v1.EventFailed), v1.EventSucceeded, false},
		{hook(v1.EventRecovered, v1.EventPartial), v1.EventRecovered, true},
		{hook(v1.EventEvery), v1.EventSucceeded, true},
		{hook(v1.EventEvery), v1.EventVerificationFailed, true},
		{v1.Notification{Ping: &v1.Ping{Run: v1.RunSnapshot}}, v1.EventSucceeded, true},
		{v1.Notification{Ping: &v1.Ping{Run: v1.RunVerify}}, v1.EventSucceeded, false},
	} {
		got := (&target{spec: test.spec}).wants(&v1.Notice{Run: v1.RunSnapshot, Event: test.event})
		require.Equal(t, test.want, got, "%+v %s", test.spec, test.event)
	}
}

func TestPings(t *testing.T) {
	for event, path := range map[string]string{
		v1.EventSucceeded: "", v1.EventRecovered: "", v1.EventFailed: "/fail", v1.EventPartial: "/fail", v1.EventVerificationFailed: "/fail", v1.EventTest: "/log",
	} {
		t.Run(event, func(t *testing.T) {
			release := make(chan struct{})
			server := receive(t, func(_ http.ResponseWriter, q *http.Request) {
				if strings.HasSuffix(q.URL.Path, "/start") {
					<-release
				}
			})
			notifier := New([]v1.Notification{ping(t, server.URL+"/"+token+"?create=1", v1.RunSnapshot), ping(t, server.URL+"/other", v1.RunVerify)},
				Options{Log: slog.New(slog.DiscardHandler)})
			notifier.Start(t.Context(), v1.RunSnapshot)
			require.Eventually(t, func() bool { return len(server.got()) == 1 }, 30*time.Second, time.Millisecond)
			ended := make(chan []Result)
			go func() { ended <- notifier.End(t.Context(), notice(event)) }()
			select {
			case <-ended:
				require.Fail(t, "the end was told before the beginning was taken")
			case <-time.After(50 * time.Millisecond): // nothing to wait for: it must not happen
			}
			close(release)
			results := <-ended
			require.Len(t, results, 1)
			require.NoError(t, results[0].Err)
			calls := server.got()
			require.Len(t, calls, 2)
			require.Equal(t, "/"+token+"/start", calls[0].path)
			require.Empty(t, calls[0].body)
			require.Equal(t, "/"+token+path, calls[1].path)
			require.Equal(t, []string{"POST", "create=1"}, []string{calls[1].method, calls[1].query})
			require.Contains(t, calls[1].body, "prod-eu")
			require.Contains(t, calls[1].body, "no member <answers>")
		})
	}
}

func TestAbandonedRun(t *testing.T) {
	server := receive(t, nil)
	notifier := New([]v1.Notification{ping(t, server.URL, v1.RunSnapshot)}, Options{Log: slog.New(slog.DiscardHandler)})
	notifier.Start(t.Context(), v1.RunSnapshot)
	notifier.Abandon()
	require.Len(t, server.got(), 1)
}

// Faults of servers and networks, each made with a real server. Those that may pass are tried again, the others are not,
// and each is told so that one knows what to do.
func TestFaults(t *testing.T) {
	elsewhere := receive(t, nil)
	for name, test := range map[string]struct {
		answer  http.HandlerFunc
		retried bool
		says    []string
	}{
		"500": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "oh no", http.StatusInternalServerError) }, true, []string{"500 Internal Server Error", `"oh no"`, "gave up"}},
		"429": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }, true, []string{"429 Too Many Requests"}},
		"asks for an hour": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusServiceUnavailable)
		}, false, []string{"503", "the server asks to wait another 1h0m0s"}},
		"404": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "channel_is_archived", http.StatusNotFound)
		}, false, []string{"404 Not Found", `"channel_is_archived"`}},
		"repeats the URL": {func(w http.ResponseWriter, q *http.Request) {
			http.Error(w, "no such thing: "+q.URL.Path, http.StatusForbidden)
		}, false, []string{"403 Forbidden", "no such thing"}},
		"drops the connection": {func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				c.Close()
			}
		}, true, []string{"the connection was cut"}},
		"answers nonsense": {func(w http.ResponseWriter, q *http.Request) {
			c, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				fmt.Fprintf(c, "what is %s?\r\n\r\n", q.URL.Path)
				c.Close()
			}
		}, true, []string{"malformed HTTP"}},
		"redirects elsewhere": {func(w http.ResponseWriter, q *http.Request) {
			http.Redirect(w, q, elsewhere.URL+q.URL.Path, http.StatusTemporaryRedirect)
		}, false, []string{"redirects to " + elsewhere.URL + ",", "names another server"}},
		"redirects to nowhere": {func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("Location", "https://host:port"+q.URL.Path)
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, true, []string{"Location"}},
		"redirect drops the body": {func(w http.ResponseWriter, q *http.Request) { http.Redirect(w, q, "/there", http.StatusFound) }, false, []string{"would drop the message"}},
		"redirects in circles": {func(w http.ResponseWriter, q *http.Request) {
			http.Redirect(w, q, q.URL.Path, http.StatusTemporaryRedirect)
		}, false, []string{"too many"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := receive(t, test.answer)
			results, log := logged(t, t.Context(), 300*time.Millisecond, notice(v1.EventFailed), webhook(t, server.URL+"/"+token, v1.WebhookJSON))
			require.Error(t, results[0].Err)
			for _, part := range test.says {
				require.Contains(t, results[0].Err.Error(), part)
			}
			require.Contains(t, log, "could not notify")
			require.Contains(t, log, results[0].Host)
			if test.retried {
				require.Greater(t, results[0].Tries, 1)
				require.NotErrorIs(t, results[0].Err, store.ErrConfig)
			} else {
				require.Equal(t, 1, results[0].Tries)
			}
		})
	}
	require.Empty(t, elsewhere.got(), "another server got something")
}

func TestRetriedUntilTaken(t *testing.T) {
	var server *receiver
	server = receive(t, func(w http.ResponseWriter, _ *http.Request) {
		if len(server.got()) < 4 {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	r := sent(t, notice(v1.EventFailed), webhook(t, server.URL, v1.WebhookJSON))
	require.NoError(t, r.Err)
	require.Equal(t, 4, r.Tries)
	ids := map[string]bool{}
	for _, c := range server.got() {
		ids[c.header.Get(headerID)] = true
	}
	require.Len(t, ids, 1, "tries of one message have one ID")
}

func TestRedirectThatStays(t *testing.T) {
	server := receive(t, func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path != "/new" {
			http.Redirect(w, q, "/new", http.StatusPermanentRedirect)
		}
	})
	r := sent(t, notice(v1.EventFailed), webhook(t, server.URL+"/"+token, v1.WebhookJSON))
	require.NoError(t, r.Err)
	calls := server.got()
	require.Len(t, calls, 2)
	require.Equal(t, calls[0].body, calls[1].body)
}

// A server that takes its time, or all of it.
func TestServerThatHangs(t *testing.T) {
	hang := make(chan struct{})
	server := receive(t, func(http.ResponseWriter, *http.Request) { <-hang })
	t.Cleanup(func() { close(hang) })
	begin := time.Now()
	results, _ := logged(t, t.Context(), 500*time.Millisecond, notice(v1.EventFailed), webhook(t, server.URL+"/"+token, v1.WebhookJSON))
	require.ErrorContains(t, results[0].Err, "no answer within 500ms")
	require.Less(t, time.Since(begin), tryTime, "the budget is for all tries")
}

func TestServerThatIsSlow(t *testing.T) {
	server := receive(t, func(http.ResponseWriter, *http.Request) { time.Sleep(200 * time.Millisecond) }) // what is tested is a delay
	require.NoError(t, sent(t, notice(v1.EventFailed), webhook(t, server.URL, v1.WebhookJSON)).Err)
	require.Len(t, server.got(), 1)
}

func TestInterrupted(t *testing.T) {
	arrived, hang := make(chan struct{}, 1), make(chan struct{})
	server := receive(t, func(http.ResponseWriter, *http.Request) { arrived <- struct{}{}; <-hang })
	t.Cleanup(func() { close(hang) })
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-arrived; cancel(errors.New("somebody pulled the plug")) }()
	results, _ := logged(t, ctx, time.Hour, notice(v1.EventFailed), webhook(t, server.URL+"/"+token, v1.WebhookJSON))
	require.ErrorContains(t, results[0].Err, "somebody pulled the plug")
}

func TestServerThatRefuses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	results, _ := logged(t, t.Context(), 200*time.Millisecond, notice(v1.EventFailed), webhook(t, "http://"+address+"/"+token, v1.WebhookJSON))
	require.ErrorContains(t, results[0].Err, "connection refused")
	require.ErrorContains(t, results[0].Err, "nothing listens at http://"+address)
	require.Greater(t, results[0].Tries, 1)
}

func TestOneThatHangsHoldsUpNoOther(t *testing.T) {
	hang := make(chan struct{})
	bad, good := receive(t, func(http.ResponseWriter, *http.Request) { <-hang }), receive(t, nil)
	t.Cleanup(func() { close(hang) })
	results, _ := logged(t, t.Context(), 500*time.Millisecond, notice(v1.EventFailed), webhook(t, bad.URL, v1.WebhookJSON), webhook(t, good.URL, v1.WebhookJSON))
	require.Error(t, results[0].Err)
	require.NoError(t, results[1].Err)
	require.Equal(t, 1, results[1].Tries)
}

func TestTLS(t *testing.T) {
	r := &receiver{}
	r.Server = httptest.NewTLSServer(r.keep(nil))
	t.Cleanup(r.Close)
	spec := webhook(t, r.URL+"/"+token, v1.WebhookJSON)
	one := sent(t, notice(v1.EventFailed), spec)
	require.ErrorContains(t, one.Err, "x509")
	require.ErrorContains(t, one.Err, "caBundleFile")
	require.Equal(t, 1, one.Tries, "trying again does not help")

	spec.Webhook.CABundleFile = filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(spec.Webhook.CABundleFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw}), 0o600))
	require.NoError(t, sent(t, notice(v1.EventFailed), spec).Err)

	require.NoError(t, os.WriteFile(spec.Webhook.CABundleFile, []byte("nothing"), 0o600))
	require.ErrorIs(t, sent(t, notice(v1.EventFailed), spec).Err, store.ErrConfig)

	plain := webhook(t, strings.Replace(r.URL, "https://", "http://", 1), v1.WebhookJSON)
	require.ErrorContains(t, sent(t, notice(v1.EventFailed), plain).Err, "400 Bad Request")
	tls := receive(t, nil)
	require.ErrorContains(t, sent(t, notice(v1.EventFailed), webhook(t, strings.Replace(tls.URL, "http://", "https://", 1), v1.WebhookJSON)).Err, "does not speak TLS")
}

// What is wrong with a Secret is told without what is in it.
func TestSecretsThatCannotBeUsed(t *testing.T) {
	for name, test := range map[string]struct{ url, key, says string }{
		"no URL":        {"", signingKey, "url: no such file or directory (the Secret, or this key in it, is missing)"},
		"no scheme":     {"hooks.example/" + token, signingKey, "it is no URL"},
		"other scheme":  {"ftp://hooks.example/" + token, signingKey, "it is no URL"},
		"no host":       {"https:///" + token, signingKey, "it is no URL"},
		"bad port":      {"https://hooks.example:x/" + token, signingKey, "it is no URL"},
		"two lines":     {"https://hooks.example/" + token + "\nhttps://b.example", signingKey, "it is no URL"},
		"empty":         {"   ", signingKey, "it is empty"},
		"endless":       {"https://hooks.example/" + strings.Repeat(token, 1000), signingKey, "more than 8192 bytes"},
		"no key":        {"https://hooks.example/" + token, "", "signing-key: no such file"},
		"key is a word": {"https://hooks.example/" + token, "xyzzyplugh", "it is no signing key"},
		"key too short": {"https://hooks.example/" + token, "whsec_eHl6enlwbHVnaA==", "it is no signing key"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := webhook(t, test.url, v1.WebhookJSON)
			spec.Webhook.Signed, spec.Webhook.CredentialsDir = true, secret(t, test.url, test.key)
			results, log := logged(t, t.Context(), time.Minute, notice(v1.EventFailed), spec)
			require.ErrorIs(t, results[0].Err, store.ErrConfig)
			require.ErrorContains(t, results[0].Err, test.says)
			require.ErrorContains(t, results[0].Err, spec.Webhook.CredentialsDir)
			require.Zero(t, results[0].Tries)
			require.NotContains(t, log, "eHl6enlwbHVnaA")
		})
	}
}

func TestPasswordInURL(t *testing.T) {
	server := receive(t, func(w http.ResponseWriter, q *http.Request) {
		user, password, _ := q.BasicAuth()
		http.Error(w, user+":"+password, http.StatusUnauthorized)
	})
	spec := webhook(t, strings.Replace(server.URL, "http://", "http://etcd:pw1@", 1)+"/x", v1.WebhookJSON)
	_, log := logged(t, t.Context(), time.Minute, notice(v1.EventFailed), spec)
	require.Contains(t, log, "401 Unauthorized")
	require.NotContains(t, log, "pw1")
}

func TestReach(t *testing.T) {
	server := receive(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	notifier := New([]v1.Notification{webhook(t, server.URL+"/"+token+"?q=1", v1.WebhookJSON), ping(t, "", v1.RunSnapshot)}, Options{Log: slog.New(slog.DiscardHandler)})
	results := notifier.Reach(t.Context())
	require.NoError(t, results[0].Err, "any answer will do")
	require.ErrorIs(t, results[1].Err, store.ErrConfig)
	require.Len(t, server.got(), 1)
	require.Equal(t, call{method: "HEAD", path: "/", header: server.got()[0].header}, server.got()[0], "nothing of the secret is sent")
}
