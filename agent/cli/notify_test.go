package cli_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/etcdtest"
)

// hookToken is the secret part of the URLs in these tests.
const hookToken = "xyzzyplugh"

// inbox is a real HTTP server that keeps what is sent to it, by path.
type inbox struct {
	*httptest.Server
	mu   sync.Mutex
	mail map[string][]string
	// paths are in the order of their arrival.
	paths []string
}

func newInbox(t *testing.T) *inbox {
	t.Helper()
	in := &inbox{mail: map[string][]string{}}
	in.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		path := strings.TrimPrefix(q.URL.Path, "/"+hookToken+"/")
		in.mu.Lock()
		defer in.mu.Unlock()
		in.mail[path] = append(in.mail[path], string(body))
		in.paths = append(in.paths, path)
	}))
	t.Cleanup(in.Close)
	return in
}

// url is that of a box, with a secret in it.
func (in *inbox) url(box string) string { return in.URL + "/" + hookToken + "/" + box }

// take empties all boxes.
func (in *inbox) take() (mail map[string][]string, paths []string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	mail, paths = in.mail, in.paths
	in.mail, in.paths = map[string][]string{}, nil
	return mail, paths
}

// notices reads what came into a box, each against the schema that is documented.
func notices(t *testing.T, bodies []string) (all []v1.Notice) {
	t.Helper()
	schema, err := jsonschema.NewCompiler().Compile("../../schemas/notice.schema.json")
	require.NoError(t, err)
	for _, body := range bodies {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
		require.NoError(t, err)
		require.NoError(t, schema.Validate(doc), body)
		var n v1.Notice
		require.NoError(t, json.Unmarshal([]byte(body), &n))
		require.NotEmpty(t, n.Summary)
		require.Equal(t, "etcd", n.Policy.Name)
		require.False(t, n.StartTime.IsZero())
		require.False(t, n.EndTime.Before(&n.StartTime))
		all = append(all, n)
	}
	return all
}

// notified adds notifications to the policy: spec gives each one's webhook or ping, urls where they go.
func (s *site) notified(t *testing.T, urls map[string]string, specs ...map[string]any) {
	t.Helper()
	var list []any
	for _, spec := range specs {
		name := spec["name"].(string)
		dir := filepath.Join(s.dir, "secret-"+name)
		require.NoError(t, os.MkdirAll(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "url"), []byte(urls[name]+"\n"), 0o600))
		for _, kind := range []string{"webhook", "ping"} {
			if k, ok := spec[kind].(map[string]any); ok {
				k["credentialsDir"] = dir
			}
		}
		list = append(list, spec)
	}
	s.spec()["notifications"] = list
}

func hook(name string, fields map[string]any) map[string]any {
	return map[string]any{"name": name, "webhook": fields}
}

// everyKind notifies four boxes: all of every run, the default events, a chat, and two switches.
func (s *site) everyKind(t *testing.T, in *inbox) {
	t.Helper()
	s.notified(t, map[string]string{"all": in.url("all"), "alarm": in.url("alarm"), "chat": in.url("chat"), "switch": in.url("switch"), "proof": in.url("proof")},
		hook("all", map[string]any{"events": []string{"every"}}), hook("alarm", map[string]any{}), hook("chat", map[string]any{"format": "slack"}),
		map[string]any{"name": "switch", "ping": map[string]any{}}, map[string]any{"name": "proof", "ping": map[string]any{"run": "verify"}})
}

// TestNotifications takes and proves real snapshots, well and badly, and looks at what arrives.
func TestNotifications(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 1<<20)
	in := newInbox(t)
	s := newSite(t, c.Endpoints(), "node", "second")
	s.everyKind(t, in)
	secretly := func(o outcome) outcome {
		require.NotContains(t, o.stdout+o.stderr, hookToken, "a URL is a secret")
		return o
	}

	t.Run("a run that succeeds", func(t *testing.T) {
		o := secretly(s.snapshot(t))
		require.Zero(t, o.code)
		mail, paths := in.take()
		require.Equal(t, "switch/start", paths[0])
		require.ElementsMatch(t, []string{"switch/start", "switch", "all"}, paths)
		n := notices(t, mail["all"])[0]
		require.Equal(t, []string{v1.EventSucceeded, v1.RunSnapshot, "prod"}, []string{n.Event, n.Run, n.ClusterName})
		require.Nil(t, n.ConsecutiveFailures, "nobody counts")
		require.Equal(t, s.listed(t, "node"), []string{n.Snapshot.Name})
		require.Positive(t, n.Snapshot.DatabaseBytes)
		require.Len(t, n.Snapshot.Destinations, 2)
		require.True(t, strings.HasPrefix(n.Snapshot.Destinations[0].URI, "file://"))
		require.Equal(t, "n1", n.Node)
		require.Contains(t, mail["switch"][0], n.Snapshot.Name)
		requireContains(t, o.stderr, `"msg":"notified"`, strings.TrimPrefix(in.URL, "http://"))
	})
	t.Run("a run that reaches one of two", func(t *testing.T) {
		good := s.destination(1)["hostPath"]
		s.destination(1)["hostPath"] = map[string]any{"path": "/dev/null/folder"}
		defer func() { s.destination(1)["hostPath"] = good }()
		require.Equal(t, 3, secretly(s.snapshot(t)).code)
		mail, paths := in.take()
		require.ElementsMatch(t, []string{"switch/start", "switch/fail", "all", "alarm", "chat"}, paths)
		n := notices(t, mail["alarm"])[0]
		require.Equal(t, []any{v1.EventPartial, 3}, []any{n.Event, n.ExitCode})
		require.Equal(t, v1.PhaseFailed, n.Snapshot.Destinations[1].Result)
		require.Contains(t, n.Message, "second")
		require.NotEmpty(t, n.Diagnosis)
		requireContains(t, mail["chat"][0], ":warning:", "not in every required destination", "second: failed")
	})
	t.Run("a run that fails", func(t *testing.T) {
		good := s.etcd()["endpoints"]
		s.etcd()["endpoints"] = []string{"http://127.0.0.1:1"}
		defer func() { s.etcd()["endpoints"] = good }()
		require.Equal(t, 1, secretly(s.snapshot(t)).code)
		mail, paths := in.take()
		require.ElementsMatch(t, []string{"switch/start", "switch/fail", "all", "alarm", "chat"}, paths)
		n := notices(t, mail["alarm"])[0]
		require.Equal(t, []any{v1.EventFailed, 1}, []any{n.Event, n.ExitCode})
		require.Contains(t, n.Message, "connection refused")
		require.Nil(t, n.Snapshot)
		requireContains(t, mail["switch/fail"][0], "prod failed", "connection refused")
	})
	t.Run("a folder of another cluster", func(t *testing.T) {
		// The run ends before etcd is asked for anything.
		s.spec()["clusterUID"] = "other"
		defer delete(s.spec(), "clusterUID")
		require.NoError(t, os.WriteFile(filepath.Join(s.stores["node"], "prod", "cluster.json"), []byte(`{"clusterName":"prod","clusterUID":"theirs"}`), 0o600))
		defer os.Remove(filepath.Join(s.stores["node"], "prod", "cluster.json"))
		require.Equal(t, 2, secretly(s.snapshot(t)).code)
		mail, _ := in.take()
		require.Equal(t, 2, notices(t, mail["alarm"])[0].ExitCode)
	})
	t.Run("one of several runs", func(t *testing.T) {
		require.Zero(t, secretly(s.snapshot(t, "--index", "1")).code)
		_, paths := in.take()
		require.Empty(t, paths, "whether all is well is the run 0's to say")
		good := s.etcd()["endpoints"]
		s.etcd()["endpoints"] = []string{"http://127.0.0.1:1"}
		defer func() { s.etcd()["endpoints"] = good }()
		require.Equal(t, 1, s.snapshot(t, "--index", "1").code)
		_, paths = in.take()
		require.ElementsMatch(t, []string{"switch/fail", "all", "alarm", "chat"}, paths)
	})
	t.Run("asked to be quiet", func(t *testing.T) {
		require.Zero(t, s.snapshot(t, "--notify-timeout", "0").code)
		_, paths := in.take()
		require.Empty(t, paths)
	})
	t.Run("pruning", func(t *testing.T) {
		require.Zero(t, secretly(agent(t, "prune", "--policy-file", s.file(t), "--dry-run")).code)
		_, paths := in.take()
		require.Empty(t, paths)
		require.Zero(t, secretly(agent(t, "prune", "--policy-file", s.file(t))).code)
		mail, paths := in.take()
		require.Equal(t, []string{"all"}, paths)
		require.Equal(t, v1.RunPrune, notices(t, mail["all"])[0].Run)
	})
	t.Run("a verification that passes", func(t *testing.T) {
		require.Zero(t, secretly(agent(t, "verify", "--policy-file", s.file(t), "--level", "database")).code)
		mail, paths := in.take()
		require.Equal(t, "proof/start", paths[0])
		require.ElementsMatch(t, []string{"proof/start", "proof", "all"}, paths)
		n := notices(t, mail["all"])[0]
		require.Equal(t, []string{v1.EventSucceeded, v1.RunVerify}, []string{n.Event, n.Run})
		require.Equal(t, &v1.NoticeVerification{Level: "database", Passed: 2}, n.Verification)
	})
	t.Run("a verification that finds a damaged copy", func(t *testing.T) {
		newest := s.listed(t, "second")[0]
		for _, f := range files(t, s.stores["second"]) {
			if strings.Contains(f, newest) && !strings.HasSuffix(f, ".json") {
				data, err := os.ReadFile(f)
				require.NoError(t, err)
				data[len(data)/2] ^= 1
				require.NoError(t, os.WriteFile(f, data, 0o600))
			}
		}
		require.Equal(t, 4, secretly(agent(t, "verify", "--policy-file", s.file(t), "--level", "checksum")).code)
		mail, paths := in.take()
		require.ElementsMatch(t, []string{"proof/start", "proof/fail", "all", "alarm", "chat"}, paths)
		n := notices(t, mail["alarm"])[0]
		require.Equal(t, []any{v1.EventVerificationFailed, 4}, []any{n.Event, n.ExitCode})
		require.Equal(t, []int{1, 1, 0}, []int{n.Verification.Passed, n.Verification.Failed, n.Verification.Unknown})
		require.Equal(t, []string{newest, "second"}, []string{n.Verification.Problems[0].Snapshot, n.Verification.Problems[0].Destination})
		requireContains(t, mail["chat"][0], "CORRUPT", newest)
	})
	t.Run("a verification that cannot look", func(t *testing.T) {
		good := s.destination(1)["hostPath"]
		s.destination(1)["hostPath"] = map[string]any{"path": "/dev/null/folder"}
		defer func() { s.destination(1)["hostPath"] = good }()
		require.NotZero(t, secretly(agent(t, "verify", "--policy-file", s.file(t), "--level", "checksum")).code)
		mail, _ := in.take()
		require.Equal(t, v1.EventFailed, notices(t, mail["alarm"])[0].Event)
	})
	t.Run("interrupted", func(t *testing.T) {
		proxy := etcdtest.StartProxy(t, c.Members[0].ClientURL)
		proxy.StallAfter(64 << 10)
		good := s.etcd()["endpoints"]
		s.etcd()["endpoints"] = []string{proxy.URL()}
		defer func() { s.etcd()["endpoints"] = good }()
		cmd := process(t, s.args(t)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		require.NoError(t, cmd.Start())
		require.Eventually(t, func() bool { return len(files(t, s.spool)) == 1 }, time.Minute, 10*time.Millisecond)
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.Error(t, cmd.Wait())
		require.Equal(t, 130, cmd.ProcessState.ExitCode(), stderr.String())
		mail, paths := in.take()
		require.Contains(t, paths, "switch/fail")
		n := notices(t, mail["alarm"])[0]
		require.Equal(t, []any{v1.EventFailed, 130}, []any{n.Event, n.ExitCode})
		require.Contains(t, n.Message, "interrupted")
	})
}

// TestNotificationsThatFail: a run stays what it was, whatever becomes of its notifications.
func TestNotificationsThatFail(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 64<<10)
	hang := make(chan struct{})
	hanging := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	t.Cleanup(hanging.Close)
	t.Cleanup(func() { close(hang) })
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		http.Error(w, q.URL.Path, http.StatusInternalServerError)
	}))
	t.Cleanup(broken.Close)
	s := newSite(t, c.Endpoints(), "node")
	every := map[string]any{"events": []string{"every"}}
	s.notified(t, map[string]string{"hangs": hanging.URL + "/" + hookToken, "broken": broken.URL + "/" + hookToken, "away": "http://127.0.0.1:1/" + hookToken, "nonsense": hookToken},
		hook("hangs", every), map[string]any{"name": "broken", "ping": map[string]any{}}, hook("away", map[string]any{"events": []string{"every"}}), hook("nonsense", map[string]any{"events": []string{"every"}}))

	begin := time.Now()
	o := s.snapshot(t, "--notify-timeout", "2s")
	require.Zero(t, o.code)
	require.Len(t, s.listed(t, "node"), 1)
	require.NotContains(t, o.stdout+o.stderr, hookToken)
	requireContains(t, o.stderr, `"notification":"hangs"`, "no answer within 2s", "500 Internal Server Error", "connection refused", "it is no URL")
	t.Logf("took %s", time.Since(begin))

	o = agent(t, "notify", "--policy-file", s.file(t), "--timeout", "1s")
	require.Equal(t, 1, o.code)
	require.NotContains(t, o.stdout+o.stderr, hookToken)
	o = agent(t, "notify", "--policy-file", s.file(t), "--notification", "nonsense")
	require.Equal(t, 2, o.code)
	requireContains(t, lastLine(o.stderr), "notification nonsense", filepath.Join(s.dir, "secret-nonsense", "url"))

	o = agent(t, "doctor", "--policy-file", s.file(t), "--spool-dir", s.spool, "--timeout", "2s")
	require.Zero(t, o.code, "a run does without them")
	require.NotContains(t, o.stdout+o.stderr, hookToken)
	requireContains(t, o.stdout, "hangs", "does not answer", "connection refused", "it is no URL", "without TLS")
	require.Equal(t, 1, agent(t, "doctor", "--policy-file", s.file(t), "--spool-dir", s.spool, "--timeout", "2s", "--strict").code)
}

func TestNotifyVerb(t *testing.T) {
	in := newInbox(t)
	s := newSite(t, []string{"http://127.0.0.1:1"}, "node")
	require.Equal(t, 2, agent(t, "notify", "--policy-file", s.file(t)).code, "there is nothing to try")
	s.everyKind(t, in)

	o := agent(t, "notify", "--policy-file", s.file(t))
	require.Zero(t, o.code)
	require.NotContains(t, o.stdout+o.stderr, hookToken)
	requireContains(t, o.stdout, "NOTIFICATION", "chat", "webhook", "ping", "sent", strings.TrimPrefix(in.URL, "http://"))
	mail, paths := in.take()
	require.ElementsMatch(t, []string{"all", "alarm", "chat", "switch/log", "proof/log"}, paths)
	require.Equal(t, v1.EventTest, notices(t, mail["alarm"])[0].Event)

	o = agent(t, "notify", "--policy-file", s.file(t), "--notification", "alarm,switch", "--event", "failed", "-o", "json")
	require.Zero(t, o.code)
	var said struct {
		Event         string
		Notifications []struct{ Name, Kind, Host, Result string }
	}
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &said))
	require.Len(t, said.Notifications, 2)
	require.Equal(t, "sent", said.Notifications[0].Result)
	mail, paths = in.take()
	require.ElementsMatch(t, []string{"alarm", "switch/fail"}, paths)
	n := notices(t, mail["alarm"])[0]
	require.True(t, n.Test)
	require.Equal(t, []any{v1.EventFailed, 1}, []any{n.Event, n.ExitCode})
	require.Contains(t, n.Summary, "TEST")

	for _, event := range []string{"succeeded", "partial", "recovered", "verificationFailed"} {
		require.Zero(t, agent(t, "notify", "--policy-file", s.file(t), "--notification", "all", "--event", event).code)
	}
	mail, _ = in.take()
	require.Len(t, notices(t, mail["all"]), 4)

	for _, args := range [][]string{{"--event", "nope"}, {"--notification", "nope"}, {"--timeout", "0"}, {"-o", "xml"}} {
		require.Equal(t, 2, agent(t, append([]string{"notify", "--policy-file", s.file(t)}, args...)...).code, args)
	}
}

// TestNotificationsThroughProxy: the environment's proxy is used, as for everything else.
func TestNotificationsThroughProxy(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, q.Method+" "+q.URL.String())
	}))
	t.Cleanup(proxy.Close)
	s := newSite(t, []string{"http://127.0.0.1:1"}, "node")
	s.notified(t, map[string]string{"ops": "http://hooks.example/" + hookToken}, hook("ops", map[string]any{}))
	cmd := process(t, "notify", "--policy-file", s.file(t))
	cmd.Env = append(cmd.Env, "HTTP_PROXY="+proxy.URL, "NO_PROXY=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, []string{"POST http://hooks.example/" + hookToken}, asked)
	require.NotContains(t, string(out), hookToken)
}

// TestRecoveryIsNotified: the API server remembers how the runs before this one ended.
func TestRecoveryIsNotified(t *testing.T) {
	a := newAPIServer(t)
	in := newInbox(t)
	a.site.everyKind(t, in)
	good := a.site.etcd()["endpoints"]
	event := func(want string, failures int32) v1.Notice {
		t.Helper()
		mail, _ := in.take()
		n := notices(t, mail["all"])[0]
		require.Equal(t, want, n.Event)
		require.NotNil(t, n.ConsecutiveFailures)
		require.Equal(t, failures, *n.ConsecutiveFailures)
		require.Equal(t, want != v1.EventSucceeded, len(mail["alarm"]) == 1)
		return n
	}
	a.apply()
	require.Zero(t, a.agent("snapshot").code)
	n := event(v1.EventSucceeded, 0)
	require.Equal(t, "kube-system", n.Policy.Namespace)
	require.Equal(t, n.ClusterUID, n.ClusterName)

	a.site.etcd()["endpoints"] = []string{"https://127.0.0.1:1"}
	a.apply()
	require.Equal(t, 1, a.agent("snapshot", "--dial-timeout", "1s").code)
	require.NotNil(t, event(v1.EventFailed, 1).LastSuccessTime)
	require.Equal(t, 1, a.agent("snapshot", "--dial-timeout", "1s").code)
	require.Contains(t, event(v1.EventFailed, 2).Summary, "for the 2nd time in a row")

	a.site.etcd()["endpoints"] = good
	a.apply()
	require.Zero(t, a.agent("snapshot").code)
	n = event(v1.EventRecovered, 0)
	require.Equal(t, n.LastSuccessTime, &n.StartTime)
	require.Zero(t, a.agent("snapshot").code)
	event(v1.EventSucceeded, 0)

	t.Run("of a verification", func(t *testing.T) {
		proved := func(code int, want string) {
			t.Helper()
			require.Equal(t, code, a.agent("verify", "--level", "checksum").code)
			mail, _ := in.take()
			n := notices(t, mail["all"])[0]
			require.Equal(t, []string{v1.RunVerify, want}, []string{n.Run, n.Event})
			require.Nil(t, n.ConsecutiveFailures, "those are of snapshots")
		}
		proved(0, v1.EventSucceeded)
		newest := strings.Fields(a.agent("list", "-o", "name").stdout)[0]
		for _, f := range files(t, a.site.stores["node"]) {
			if strings.Contains(f, newest) && !strings.HasSuffix(f, ".json") {
				require.NoError(t, os.Truncate(f, 100))
			}
		}
		proved(4, v1.EventVerificationFailed)
		proved(4, v1.EventVerificationFailed)
		require.Zero(t, a.agent("snapshot").code)
		event(v1.EventSucceeded, 0)
		proved(0, v1.EventRecovered)
		proved(0, v1.EventSucceeded)
	})
	t.Run("tried out", func(t *testing.T) {
		require.Zero(t, a.agent("notify").code)
		_, paths := in.take()
		require.Len(t, paths, 5)
	})
}
