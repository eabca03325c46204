package notify

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

var update = flag.Bool("update", false, "write testdata")

// full is a notice with all that can be in it.
func full() *v1.Notice {
	n := notice(v1.EventPartial)
	last := metav1.NewTime(time.Date(2026, 1, 1, 21, 4, 5, 0, time.UTC))
	n.ClusterUID, n.LastSuccessTime, n.ExitCode = "0f7c2f9e-1111-2222-3333-444455556666", &last, 3
	n.Message = "snapshot is stored, but not in every required destination: offsite: <!channel> & *more*"
	n.Diagnosis = []string{"destination offsite: access denied → grant s3:PutObject"}
	n.Snapshot = &v1.NoticeSnapshot{Name: "etcd-20260102t030405z-k3x7q", Revision: 815, DatabaseBytes: 88444960, StoredBytes: 18672215, Destinations: []v1.NoticeDestination{
		{Name: "node", Required: true, Result: v1.PhaseStored, URI: "file:///var/lib/etcd-snapshots/prod-eu/etcd-20260102t030405z-k3x7q.db.zst"},
		{Name: "offsite", Required: true, Result: v1.PhaseFailed, Message: "access denied"},
	}}
	n.Verification = &v1.NoticeVerification{Level: "restore", Passed: 3, Failed: 1, Unknown: 1, Problems: []v1.NoticeCopy{{Snapshot: "etcd-20260101t030405z-aaaaa", Destination: "node", Result: v1.VerificationFailed, Message: "page 7"}}}
	n.Summary = Summary(n)
	return n
}

// The bodies as they are sent, in testdata: go test ./agent/notify -run Bodies -update writes them.
func TestBodies(t *testing.T) {
	for _, form := range []string{v1.WebhookJSON, v1.WebhookSlack, v1.WebhookTeams} {
		body, err := format(form, full())
		require.NoError(t, err)
		requireGolden(t, form+".golden.json", indented(t, body))
	}
	requireGolden(t, "ping.golden.txt", text(full()))
}

func indented(t *testing.T, body []byte) string {
	t.Helper()
	var v any
	require.NoError(t, json.Unmarshal(body, &v))
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	require.NoError(t, enc.Encode(v))
	return b.String()
}

func requireGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "run go test ./agent/notify -run Bodies -update if this is meant")
}

// No error is so long, and no text in it such, that a service would refuse the message or call people by it.
func TestBodiesOfLongAndHostileTexts(t *testing.T) {
	n := full()
	n.Message = strings.Repeat("ä<!everyone>```\n", 10000)
	for form, limit := range map[string]int{v1.WebhookSlack: 12 << 10, v1.WebhookTeams: 28 << 10} {
		body, err := format(form, n)
		require.NoError(t, err)
		require.Less(t, len(body), limit)
		var v map[string]any
		require.NoError(t, json.Unmarshal(body, &v))
		if form == v1.WebhookSlack {
			require.NotContains(t, v["text"], "<")
			require.Equal(t, 2, strings.Count(v["text"].(string), "```"), "it ends where we end it")
			require.Less(t, len([]rune(v["text"].(string))), 40000)
		}
	}
}

func TestSummaries(t *testing.T) {
	first, twelfth, nd := int32(1), int32(112), int32(22)
	for want, n := range map[string]*v1.Notice{
		"etcd snapshot of c failed":                                           {Event: v1.EventFailed, Run: v1.RunSnapshot, ConsecutiveFailures: &first},
		"etcd snapshot of c failed, for the 112th time in a row":              {Event: v1.EventFailed, Run: v1.RunSnapshot, ConsecutiveFailures: &twelfth},
		"etcd snapshot of c failed, for the 22nd time in a row":               {Event: v1.EventFailed, Run: v1.RunSnapshot, ConsecutiveFailures: &nd},
		"etcd snapshot of c is stored, but not in every required destination": {Event: v1.EventPartial, Run: v1.RunSnapshot},
		"verification of etcd snapshots of c failed":                          {Event: v1.EventFailed, Run: v1.RunVerify},
		"verification of etcd snapshots of c succeeded":                       {Event: v1.EventSucceeded, Run: v1.RunVerify},
		"etcd snapshots of c: a stored copy is CORRUPT":                       {Event: v1.EventVerificationFailed, Run: v1.RunVerify},
		"etcd snapshot of c succeeded again":                                  {Event: v1.EventRecovered, Run: v1.RunSnapshot},
		"pruning of etcd snapshots of c failed":                               {Event: v1.EventFailed, Run: v1.RunPrune},
		"TEST, this did not happen: etcd snapshot of c failed":                {Event: v1.EventFailed, Run: v1.RunSnapshot, Test: true},
		"test of the notifications about etcd snapshots of c: they arrive":    {Event: v1.EventTest, Run: v1.RunSnapshot},
	} {
		n.ClusterName = "c"
		require.Equal(t, want, Summary(n))
	}
}

// The signature is what the library of Standard Webhooks takes, and nothing that was changed on the way is taken.
func TestSignature(t *testing.T) {
	server := receive(t, nil)
	spec := webhook(t, server.URL, v1.WebhookJSON)
	spec.Webhook.Signed, spec.Webhook.CredentialsDir = true, secret(t, server.URL, signingKey)
	require.NoError(t, sent(t, notice(v1.EventFailed), spec).Err)
	c := server.got()[0]
	theirs, err := standardwebhooks.NewWebhook(signingKey)
	require.NoError(t, err)
	require.NoError(t, theirs.Verify([]byte(c.body), c.header))
	require.Error(t, theirs.Verify([]byte(c.body+" "), c.header))
	for _, header := range []string{headerID, headerTimestamp, headerSignature} {
		changed := c.header.Clone()
		changed.Set(header, "1"+changed.Get(header))
		require.Error(t, theirs.Verify([]byte(c.body), changed), header)
	}
	other, err := standardwebhooks.NewWebhook("whsec_" + strings.Repeat("AAAA", 10))
	require.NoError(t, err)
	require.Error(t, other.Verify([]byte(c.body), c.header))
}

// An example of the specification, made by another implementation.
func TestSignatureOfTheSpecification(t *testing.T) {
	key, err := parseKey("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	require.NoError(t, err)
	h := http.Header{}
	sign(h, key, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	require.Equal(t, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", h.Get(headerSignature))
	require.Equal(t, fmt.Sprint(1614265330), h.Get(headerTimestamp))
}
